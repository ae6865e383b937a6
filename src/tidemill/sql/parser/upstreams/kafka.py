"""FROM KAFKA: a topic of a broker, through a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tidemill.errors import InvalidValue
from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.ast.sources import Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.connection_kinds.kafka import brokers
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_option, refuse_twice, spelled


@dataclass(frozen=True, slots=True)
class Kafka(Upstream):
    """FROM KAFKA CONNECTION k (TOPIC 't', ...), or (an older spelling) FROM KAFKA BROKER 'h:p' TOPIC 't'."""

    connection: Name | None = None
    brokers: tuple[str, ...] = ()  # of the older spelling
    topic: str | None = None
    start_offset: tuple[int, ...] | None = None  # by partition
    start_timestamp: int | None = None  # in milliseconds; before now where it is negative
    group_id_prefix: str | None = None
    refresh_interval: str | None = None  # TOPIC METADATA REFRESH INTERVAL, as text
    offset: int = offset_field()

    def to_sql(self) -> str:
        options = [
            "" if self.topic is None else f"TOPIC {quote_literal(self.topic)}",
            "" if self.start_offset is None else f"START OFFSET ({', '.join(map(str, self.start_offset))})",
            "" if self.start_timestamp is None else f"START TIMESTAMP {self.start_timestamp}",
            "" if self.group_id_prefix is None else f"GROUP ID PREFIX {quote_literal(self.group_id_prefix)}",
            ""
            if self.refresh_interval is None
            else f"TOPIC METADATA REFRESH INTERVAL {quote_literal(self.refresh_interval)}",
        ]
        if self.connection is not None:
            return f"KAFKA CONNECTION {self.connection} ({_listed(options)})"
        brokers = ", ".join(map(quote_literal, self.brokers))
        more = _listed(options[1:])
        return f"KAFKA BROKERS ({brokers}) {options[0]}{f' ({more})' if more else ''}"

    def through(self, connection: Name) -> Kafka:
        return replace(self, connection=connection)


def _listed(options: list[str]) -> str:
    return ", ".join(o for o in options if o)


_WRITE = "Write FROM KAFKA CONNECTION name (TOPIC '...')."
_WRITE_BROKER = "Write FROM KAFKA BROKER 'host:port' TOPIC '...'."
_WRITE_OFFSETS = "Write START OFFSET (n, ...): one whole number for each partition, in their order."


def parse_kafka(cursor: TokenCursor) -> Kafka:
    """After KAFKA: CONNECTION k (options), or BROKER 'h:p' TOPIC 't' [(options)]."""
    offset = cursor.offset
    if cursor.accept("connection"):
        return Kafka(cursor.name(), **_options(cursor), offset=offset)
    if not cursor.accept("broker"):
        cursor.expect("brokers", hint=_WRITE)
    addresses = brokers(cursor)
    cursor.expect("topic", hint=_WRITE_BROKER)
    topic = cursor.string(_WRITE_BROKER)
    more: dict[str, Any] = _options(cursor, ["TOPIC"]) if cursor.peek_symbol("(") else {}
    return Kafka(None, addresses, topic, **more, offset=offset)


def _options(cursor: TokenCursor, said: list[str] | None = None) -> dict[str, Any]:
    """(option, ...) by the fields of `Kafka`; `said` are the options already given."""
    cursor.expect_symbol("(", _WRITE)
    names = said or []
    found: dict[str, Any] = {}
    while True:
        offset = cursor.offset
        words, value = accept_option(cursor, _READERS, "a Kafka source")
        refuse_twice(spelled(words), names, offset)
        found[_FIELDS[words]] = value
        if cursor.accept_symbol(")"):
            return found
        cursor.expect_symbol(",", "Between options stands a comma, and behind the last a parenthesis.")


def _offsets(cursor: TokenCursor) -> tuple[int, ...]:
    """(n, ...), [n, ...] or n: by partition."""
    for opening, closing in (("(", ")"), ("[", "]")):
        if cursor.accept_symbol(opening):
            found = [_offset(cursor)]
            while cursor.accept_symbol(","):
                found.append(_offset(cursor))
            cursor.expect_symbol(closing, _WRITE_OFFSETS)
            return tuple(found)
    return (_offset(cursor),)


def _offset(cursor: TokenCursor) -> int:
    position = cursor.offset + 1
    if not cursor.accept_symbol("-"):
        return cursor.integer(_WRITE_OFFSETS)
    raise InvalidValue(
        f"START OFFSET cannot be -{cursor.integer(_WRITE_OFFSETS)}",
        hint="Offsets are counted from 0, which is the oldest record that the broker still has. To begin "
        "some time before now, give START TIMESTAMP a negative number of milliseconds.",
        sqlstate="22023",
        position=position,
    )


def _milliseconds(cursor: TokenCursor) -> int:
    sign = -1 if cursor.accept_symbol("-") else 1
    return sign * cursor.integer(
        "Write START TIMESTAMP n: milliseconds since 1970, or a negative number of them before now."
    )


_READERS: dict[tuple[str, ...], Callable[[TokenCursor], object]] = {
    ("topic",): lambda cursor: cursor.string("Write TOPIC '...'."),
    ("start", "offset"): _offsets,
    ("start", "timestamp"): _milliseconds,
    ("group", "id", "prefix"): TokenCursor.string,
    ("topic", "metadata", "refresh", "interval"): TokenCursor.string,
}
_FIELDS: dict[tuple[str, ...], str] = {
    ("topic",): "topic",
    ("start", "offset"): "start_offset",
    ("start", "timestamp"): "start_timestamp",
    ("group", "id", "prefix"): "group_id_prefix",
    ("topic", "metadata", "refresh", "interval"): "refresh_interval",
}
