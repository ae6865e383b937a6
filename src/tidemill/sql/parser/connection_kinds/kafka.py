"""TO KAFKA: the brokers of a cluster."""

from __future__ import annotations

from tidemill.sql.parser.connection_kinds.syntax import TLS, ConnectionSyntax, text, word
from tidemill.sql.parser.cursor import TokenCursor


def brokers(cursor: TokenCursor) -> tuple[str, ...]:
    """'h:p', or several in brackets or parentheses."""
    for opening, closing in (("[", "]"), ("(", ")")):
        if cursor.accept_symbol(opening):
            found = [_broker(cursor)]
            while cursor.accept_symbol(","):
                found.append(_broker(cursor))
            cursor.expect_symbol(closing)
            return tuple(found)
    return (_broker(cursor),)


def _broker(cursor: TokenCursor) -> str:
    address = cursor.string("Write the address of a broker as 'host:port'.")
    if cursor.peek_any("using"):
        raise cursor.unsupported(
            "BROKER ... USING", hint="Give the address at which the server reaches the broker."
        )
    return address


KAFKA = ConnectionSyntax(
    "Kafka",
    {
        ("broker",): brokers,
        ("brokers",): brokers,
        ("security", "protocol"): word,
        ("sasl", "mechanisms"): word,
        ("sasl", "mechanism"): word,
        ("sasl", "username"): text,
        ("sasl", "password"): text,
        **TLS,
    },
    {("broker",): "BROKERS", ("sasl", "mechanism"): "SASL MECHANISMS"},
)
