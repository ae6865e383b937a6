"""The command line: `tidemill serve`, `doctor`, `inspect`, `watch`, `sql`, `cdcv2`, `version` and `dev`.

Each command lives in a module of its own, which is imported when the command runs: `tidemill --help` and
shell completion answer before Arrow or Spark could even be loaded. A deliberate error (`TidemillError`) is
shown as its text, detail and hint, without a trace, and ends the process with status 2.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from tidemill.cli.app import app
    from tidemill.errors import TidemillError

    try:
        app()
    except TidemillError as e:
        print(f"tidemill: {e}", file=sys.stderr)
        raise SystemExit(2) from None
