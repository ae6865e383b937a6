"""`tidemill doctor`: runs the checks and reports what to fix, to a person or a script."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemill.cli.checks import Check, all_checks
from tidemill.config import Config

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def run(config: Config, *, as_json: bool) -> int:
    """Print the findings. The exit status is 1 if one of them would keep the server from working."""
    checks = all_checks(config)
    failed = any(check.status == "fail" for check in checks)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _show(checks)
    return 1 if failed else 0


def _show(checks: list[Check]) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        found = Text(check.found)
        if check.hint:
            found.append(f"\n-> {check.hint}", style="bold")
        table.add_row(Text(check.status, style=_STYLES[check.status]), check.name, found)
    console.print(table)
    bad = sum(check.status != "ok" for check in checks)
    console.print("All is well." if not bad else f"{bad} of {len(checks)} checks need attention.")
