"""TO CONFLUENT SCHEMA REGISTRY: the schemas of messages."""

from __future__ import annotations

from tidemill.sql.parser.connection_kinds.syntax import TLS, ConnectionSyntax, text

SCHEMA_REGISTRY = ConnectionSyntax(
    "schema registry", {("url",): text, ("username",): text, ("password",): text, **TLS}
)
