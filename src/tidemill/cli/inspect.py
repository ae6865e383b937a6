"""`tidemill inspect`: shows what a data directory holds and whether its shards are intact."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidemill.cli.sizes import show_size
from tidemill.cli.survey import DirectorySurvey, ShardReport, survey
from tidemill.config import Config
from tidemill.persist.lease import Holder

# Wider than any line; tables take the width they need.
_WIDTH = 1000
# The first frontier of a shard without history. It is not a readable moment.
_EARLIEST_SHOWN = 10**12


def run(config: Config, *, as_json: bool) -> int:
    """Print the report. The exit status is 1 if something is damaged."""
    found = survey(config)
    if as_json:
        print(json.dumps({"healthy": found.healthy, **asdict(found)}, indent=2))
    else:
        _show(found)
    return 0 if found.healthy else 1


def _show(found: DirectorySurvey) -> None:
    # A table cut to a narrow screen would hide results, so lines are as long as necessary.
    console = Console(width=_WIDTH)
    console.print(Text(f"{found.url}, format {found.format if found.format is not None else 'unknown'}"))
    console.print(Text(_held(found.holder)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("shard", "name", "since", "upper", "version", "files", "rows", "size", "log"):
        right = title in ("version", "files", "rows", "size")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for shard in found.shards:
        health = Text("ok", style="green") if not shard.problems else Text("damaged", style="bold red")
        table.add_row(
            shard.id,
            Text(shard.name),
            _time(shard.since),
            _time(shard.upper),
            _number(shard.version),
            _number(shard.files),
            _number(shard.rows),
            _size(shard.bytes),
            health,
        )
    console.print(table)
    for problem in found.problems:
        console.print(Text(problem, style="bold red"))
    for shard in found.shards:
        for text, style in [*((p, "bold red") for p in shard.problems), *((n, "dim") for n in shard.notes)]:
            console.print(Text(f"{shard.id}: {text}", style=style))
    console.print(_summary(found.shards))


def _summary(shards: list[ShardReport]) -> str:
    damaged = sum(bool(shard.problems) for shard in shards)
    files = sum(shard.files or 0 for shard in shards)
    size = show_size(sum(shard.bytes or 0 for shard in shards))
    health = f"{damaged} damaged" if damaged else "all whole"
    return f"{len(shards)} shards, {health}; {files} live files, {size}"


def _held(holder: Holder | None) -> str:
    if holder is None:
        return "nobody has opened it yet"
    where = ", ".join(f"{name} {address}" for name, address in holder.addresses)
    who = f"process {holder.pid} on {holder.host}" + (f" ({where})" if where else "")
    since = f"epoch {holder.epoch}, opened {_time(holder.started)}"
    if holder.released is not None:
        return f"last held by {who}; {since}, closed {_time(holder.released)}"
    return f"held by {who}, or it ended without closing; {since}"


def _time(value: int | str | None) -> str:
    """Milliseconds as they are typed after AS OF, and the moment in readable form."""
    if value is None:
        return "-"
    if isinstance(value, str) or value < _EARLIEST_SHOWN:
        return str(value)
    moment = datetime.fromtimestamp(value / 1000, UTC)
    return f"{value} ({moment:%m-%d %H:%M:%S})"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "-" if value is None else show_size(value)
