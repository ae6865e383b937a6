"""Sessions with a PostgreSQL server: parameters of libpq, settings, errors.

Used by the engine (descriptions), on the driver and in tasks. All sessions have the same settings, those of
the stream included, so that a value has one text wherever it is read. Nothing is taken from the environment
of this process: it has passwords that are not the connection's.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import psycopg

from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres.definition import shown

CONNECT_SECONDS = 10
# A peer that is gone without a word is noticed after this.
SILENT_SECONDS = 30

# Text forms, and nothing that would end a long COPY or hide rows.
SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    # A row-level policy would leave rows out without a word: with this it is an error.
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
# Settings that servers know since a version.
_NEWER = {140_000: ("idle_session_timeout",), 170_000: ("transaction_timeout",)}

_FILES = {"ssl_ca": "sslrootcert", "ssl_certificate": "sslcert", "ssl_key": "sslkey"}


class PostgresUnreachable(UpstreamError):
    """No connection: the server is not there, or refuses us. A retry may succeed."""

    sqlstate = "08001"
    transient = True


@contextlib.contextmanager
def conninfo(options: Mapping[str, Any], *, replication: bool = False) -> Generator[dict[str, Any]]:
    """The parameters of libpq. Files of certificates exist inside the context: libpq reads them while it
    connects."""
    found: dict[str, Any] = {
        "host": options["host"],
        "port": options["port"],
        "dbname": options["database"],
        "user": options["user"],
        # Given even if empty: else libpq looks for one in the environment and in the user's files.
        "password": options.get("password", ""),
        "passfile": f"{os.devnull}/none",
        "sslmode": options["ssl_mode"],
        "gssencmode": "disable",
        "target_session_attrs": "any",
        "application_name": "tidemill",
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": SILENT_SECONDS // 3,
        "keepalives_interval": SILENT_SECONDS // 3,
        "keepalives_count": 2,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
        "options": " ".join(f"-c {name}={value}" for name, value in SETTINGS.items()),
    }
    if replication:
        found["replication"] = "database"
    if options["ssl_mode"] == "disable":
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="tidemill-pg-") as folder:
        for option, parameter in _FILES.items():
            # A path without a file stands for "none"; else libpq takes that of the user's home.
            path = Path(folder) / parameter
            if option in options:
                path.touch(0o600)
                path.write_text(options[option])
            found[parameter] = str(path)
        if options["ssl_mode"] == "verify-full" and "ssl_ca" not in options:
            found["sslrootcert"] = ssl.get_default_verify_paths().cafile or "system"
        if "ssl_certificate" not in options:
            found["sslcertmode"] = "disable"
        yield found


def connect(options: Mapping[str, Any], *, replication: bool = False) -> psycopg.Connection[Any]:
    """A session that commits each statement. Raises UpstreamError."""
    try:
        with conninfo(options, replication=replication) as parameters:
            made = psycopg.connect(autocommit=True, **parameters)
    except psycopg.Error as e:
        raise upstream_error(e, options) from None
    for since, names in _NEWER.items():
        if made.pgconn.server_version >= since:
            for name in names:
                made.pgconn.exec_(f"SET {name} = 0".encode())
    # Rows are few, and their statements are never repeated.
    made.prepare_threshold = None
    return made


def place(options: Mapping[str, Any]) -> str:
    return f'database "{options["database"]}" at {options["host"]}:{options["port"]}'


def upstream_error(error: psycopg.Error, options: Mapping[str, Any]) -> UpstreamError:
    """The error of a statement or of a connection as one of the source, with what can be done about it."""
    diag = error.diag
    if diag.sqlstate is not None and diag.message_primary is not None:
        return _of_server(diag, options)
    text = " ".join(str(error).split())
    at = text.rfind("FATAL: ")
    said = text[at + len("FATAL: ") :].strip() if at >= 0 else text.removeprefix("connection failed: ")
    said = said.replace(" DETAIL: ", ". ")
    made = PostgresUnreachable(f"cannot reach {place(options)}", detail=f"{said.rstrip('.')}.")
    made.hint = _hint(said, options)
    # (libpq gives up by itself where it has no password, or the server no TLS.)
    reached = ("no password supplied", "does not support SSL")
    if at >= 0 or any(words in said for words in reached):
        made.primary = f"{place(options)} refuses the connection"
        made.args = (made.primary,)
    if any(words in said for words in ("authentication failed", "no pg_hba.conf entry", reached[0])):
        made.sqlstate = "28P01" if "password authentication failed" in said else "28000"
    return made


def _of_server(diag: psycopg.errors.Diagnostic, options: Mapping[str, Any]) -> UpstreamError:
    primary = diag.message_primary or "unknown error"
    state = diag.sqlstate or "58000"
    detail = " ".join(part for part in (f"{primary}.", diag.message_detail) if part)
    made = UpstreamError(f"{place(options)} reports an error", detail=detail, sqlstate=state)
    made.hint = diag.message_hint or _hint(primary, options, state)
    # Shutdown, crash, recovery, too many connections, lost connections: it comes back.
    made.transient = state[:2] in ("08", "53", "57", "40")
    return made


def _hint(said: str, options: Mapping[str, Any], state: str = "") -> str | None:
    user = options["user"]
    for words, hint in (
        ("password authentication failed", "Check USER and PASSWORD of the connection."),
        ("no password supplied", "The server wants a password: add PASSWORD SECRET ... to the connection."),
        ("no pg_hba.conf entry", "Allow it in pg_hba.conf of the server, and for replication too."),
        ("does not exist", "Check DATABASE and USER of the connection."),
        ("does not support SSL", "The server has no TLS: SSL MODE 'disable' does without."),
        ("certificate", "Check SSL MODE, SSL CERTIFICATE AUTHORITY and HOST of the connection."),
        (
            "onnection refused",
            "Is the server running, and does it listen at this address (listen_addresses)?",
        ),
        ("ould not translate host name", "Check HOST of the connection."),
        ("ailed to resolve host", "Check HOST of the connection."),
        ("timeout expired", "Check HOST and PORT of the connection, and firewalls in between."),
        ("start WAL sender", f"ALTER ROLE {shown(user)} REPLICATION; at the server"),
        (
            "invalid byte sequence for encoding",
            "Is the database's encoding SQL_ASCII? Correct them, or leave the column out of the publication.",
        ),
        ("has no equivalent in encoding", "Correct the text, or leave the column out of the publication."),
        ("too many", "Raise max_connections of the server, or end other sessions."),
    ):
        if words in said:
            return hint
    if state == "42501":
        return f"Give the rights to {user} at the server."
    return None
