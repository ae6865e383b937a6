"""TO PUBNUB: a key set of PubNub."""

from __future__ import annotations

from tidemill.sql.parser.connection_kinds.syntax import ConnectionSyntax, text

PUBNUB = ConnectionSyntax(
    "PubNub",
    {
        ("subscribe", "key"): text,
        ("auth", "key"): text,
        ("endpoint",): text,
    },
)
