"""TO POSTGRES: a database of a PostgreSQL server."""

from __future__ import annotations

from tidemill.sql.parser.connection_kinds.syntax import TLS, ConnectionSyntax, port, text, word

POSTGRES = ConnectionSyntax(
    "PostgreSQL",
    {
        ("host",): text,
        ("port",): port,
        ("database",): text,
        ("user",): text,
        ("password",): text,
        ("ssl", "mode"): word,
        **TLS,
    },
)
