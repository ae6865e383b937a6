"""INTO KAFKA: a topic of a broker, through a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.ast.sinks import SinkTarget
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_fields


@dataclass(frozen=True, slots=True)
class IntoKafka(SinkTarget):
    """INTO KAFKA CONNECTION k (TOPIC 't' [, PARTITION COUNT n, REPLICATION FACTOR n, PROGRESS TOPIC 'p'])."""

    WRITTEN: ClassVar[str] = "KAFKA CONNECTION name (TOPIC '...')"
    connection: Name
    topic: str | None = None
    partition_count: int | None = None  # for a new topic; None: the broker's default
    replication_factor: int | None = None  # likewise
    progress_topic: str | None = None  # None: a name made of that of the topic
    offset: int = offset_field()

    def to_sql(self) -> str:
        options = [
            "" if self.topic is None else f"TOPIC {quote_literal(self.topic)}",
            "" if self.partition_count is None else f"PARTITION COUNT {self.partition_count}",
            "" if self.replication_factor is None else f"REPLICATION FACTOR {self.replication_factor}",
            "" if self.progress_topic is None else f"PROGRESS TOPIC {quote_literal(self.progress_topic)}",
        ]
        return f"KAFKA CONNECTION {self.connection} ({', '.join(o for o in options if o)})"

    def through(self, connection: Name) -> IntoKafka:
        return replace(self, connection=connection)


def parse_into_kafka(cursor: TokenCursor, offset: int) -> IntoKafka:
    if cursor.peek_any("broker", "brokers"):
        raise cursor.unsupported(
            "INTO KAFKA BROKER", hint="Make a connection first: CREATE CONNECTION ... TO KAFKA (...)."
        )
    cursor.expect("connection")
    return IntoKafka(cursor.name(), **accept_fields(cursor, _READERS, "a Kafka sink"), offset=offset)


_READERS: dict[tuple[str, ...], Callable[[TokenCursor], object]] = {
    ("topic",): TokenCursor.string,
    ("partition", "count"): TokenCursor.integer,
    ("replication", "factor"): TokenCursor.integer,
    ("progress", "topic"): TokenCursor.string,
}
