"""TO AWS: an account of Amazon Web Services, or a server that speaks the protocol of S3 or of Kinesis."""

from __future__ import annotations

from tidemill.sql.parser.connection_kinds.syntax import ConnectionSyntax, text

AWS = ConnectionSyntax(
    "AWS",
    {
        ("endpoint",): text,
        ("region",): text,
        ("access", "key", "id"): text,
        ("secret", "access", "key"): text,
        ("session", "token"): text,
        ("assume", "role", "arn"): text,
        ("assume", "role", "session", "name"): text,
        ("assume", "role", "external", "id"): text,
    },
)
