"""The address of the server: from a URL or connection string, the environment, and Tidemill's defaults."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidemill.client.errors import ConnectionFailed
from tidemill.errors import InvalidValue

# Tidemill's defaults in place of libpq's; the key is the variable that overrides each.
_DEFAULTS = {
    "host": ("PGHOST", "localhost"),
    "port": ("PGPORT", "6875"),
    "user": ("PGUSER", "materialize"),
    "dbname": ("PGDATABASE", "materialize"),
    "connect_timeout": ("PGCONNECT_TIMEOUT", "10"),
    "application_name": ("PGAPPNAME", "tidemill.client"),
}
# Keepalive detects a vanished machine after 10 + 3 * 5 seconds, although an idle subscription sends nothing.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


def conninfo(url: str, parameters: Mapping[str, object], environ: Mapping[str, str] | None = None) -> str:
    """A connection string for libpq, from a URL (`postgresql://user@host:port/database`) or a string
    (`host=... port=...`), and parameters that override it. PG* variables supply what is missing."""
    env = os.environ if environ is None else environ
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    try:
        known: dict[str, Any] = conninfo_to_dict(url, **given)
        if "service" not in known and "PGSERVICE" not in env:
            for name, (variable, value) in _DEFAULTS.items():
                if variable not in env:
                    known.setdefault(name, value)
        return make_conninfo("", **{**_KEEPALIVE, **known})
    except psycopg.ProgrammingError as e:
        raise InvalidValue(
            f"not a connection string: {str(e).strip()}",
            hint="Write postgresql://user@host:6875/database, or host=... port=...",
        ) from None


def place(text: str) -> str:
    """The host and port of a connection string, for messages."""
    known = conninfo_to_dict(text)
    host = known.get("hostaddr") or known.get("host") or os.environ.get("PGHOST", "")
    return f"{host}:{known.get('port') or os.environ.get('PGPORT', '')}"


def failed(text: str, error: Exception) -> ConnectionFailed:
    """The error of a failed attempt, with the address and never with the password."""
    reason = str(error).strip()
    _, fatal, said = reason.partition("FATAL:")
    lines = [line.strip() for line in (said if fatal else reason).splitlines()]
    hint: str | None = None
    if fatal:
        # The server's message. It ends where another attempt starts (another address, without TLS).
        own = itertools.takewhile(lambda line: "connection to server" not in line, lines[1:])
        parts = [line.partition(":  ") for line in own]
        hint = next((words for kind, _, words in parts if kind == "HINT"), None)
    elif "refused" in reason or "timeout" in reason:
        hint = "Is the server running? `tidemill serve` starts one."
    return ConnectionFailed(
        f"cannot connect to {place(text)}",
        detail=lines[0] if lines and lines[0] else type(error).__name__,
        hint=hint,
    )
