"""The command line: `tidemill serve`, `doctor`, `inspect`, `watch`, `sql`, `cdcv2`, `version` and `dev`.

Each command has its own module, which is imported when the command runs. `tidemill --help` and shell
completion therefore never load Arrow or Spark. A deliberate error (`TidemillError`) is shown as its text,
detail and hint, without a traceback; the exit status is then 2.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of the console script."""
    from tidemill.cli.app import app
    from tidemill.errors import TidemillError

    try:
        app()
    except TidemillError as e:
        print(f"tidemill: {e}", file=sys.stderr)
        raise SystemExit(2) from None
