"""The address of the server: the options that `tidemill sql` and `tidemill watch` share, named as in psql."""

from __future__ import annotations

from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option("--host", "-h", metavar="HOST", help="[PGHOST, localhost]")]
Port = Annotated[str | None, typer.Option("--port", "-p", metavar="PORT", help="[PGPORT, 6875]")]
User = Annotated[str | None, typer.Option("--username", "-U", metavar="NAME", help="[PGUSER, materialize]")]
