"""FROM KAFKA: makes the definition of a Kafka source from the statement.

Unless VALIDATE = false, asks the broker whether the topic exists and where it begins. START OFFSET and
START TIMESTAMP are resolved to offsets once, so the content of the source is fixed when it is created.
Every network request has a deadline.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tidemill.catalog.connections import KAFKA
from tidemill.catalog.items import Source
from tidemill.engine.ddl.connection_kinds.kafka import check_addresses
from tidemill.engine.ddl.connection_options import split_addresses
from tidemill.engine.ddl.upstreams.connection_check import is_compacted, offsets_for_time, topic_info
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described, refuse_choice
from tidemill.engine.ddl.upstreams.messages import DescribedOutput, describe_output
from tidemill.engine.ddl.upstreams.transaction_metadata import refuse_transactions
from tidemill.engine.session.durations import milliseconds
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError, UndefinedObject, Unsupported
from tidemill.sources.kafka.dead_letters import twin_output
from tidemill.sources.kafka.layout import OFFSETS
from tidemill.sources.kafka.metadata import TopicInfo
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.debezium import Debezium
from tidemill.sql.parser.envelopes.debezium_upsert import DebeziumUpsert
from tidemill.sql.parser.upstreams.kafka import Kafka

# As brokers have it.
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# The default interval of requests for new partitions. librdkafka's default is five minutes, for which records
# of a new partition would wait.
DEFAULT_REFRESH_MS = 60_000
MIN_REFRESH_MS, MAX_REFRESH_MS = 100, 3_600_000


def describe_kafka(statement: ast.CreateSource, kafka: Kafka, context: DescribeContext) -> Described:
    topic = _topic(kafka)
    if statement.tables is not None:
        raise Unsupported(
            "FOR TABLES is not possible: a topic has no tables",
            hint="Leave FORMAT out and write CREATE TABLE ... FROM SOURCE ... FORMAT ... for each relation.",
        )
    if kafka.start_offset is not None and kafka.start_timestamp is not None:
        raise SyntaxError_("cannot specify START TIMESTAMP and START OFFSET at same time")
    refresh = _refresh(kafka.refresh_interval)
    connection = None if kafka.connection is None else context.find(kafka.connection, KAFKA)
    if connection is None:
        brokers = split_addresses(kafka.brokers)
        check_addresses(brokers)
        kept: str | dict[str, Any] = {"brokers": brokers, "security_protocol": "PLAINTEXT"}
        reached = kept
    else:
        kept, reached = connection.id, context.reached(connection)
    output = _output(topic, statement.messages, context)
    letters = None if output is None else output.dead_letters
    info = topic_info(reached, topic) if statement.validate else None
    if info is not None and output is not None:
        needs = _NEEDS_ALL if output.output.changes else _NEEDS_WHOLE if output.transactions else None
        if needs is not None and is_compacted(reached, topic):
            raise _compacted(topic, needs)
    definition = {
        "kind": KAFKA,
        "connection": kept,
        "topic": topic,
        "topic_id": None if info is None else info.topic_id,
        "partitions": _start(kafka, reached, info, context.started),
        "group_id_prefix": kafka.group_id_prefix,
        "refresh_ms": refresh,
        "outputs": [] if output is None else [output.spec, *([letters] if letters else [])],
        "started": context.started,
    }
    needed = [] if connection is None else [connection.id]
    needed += [] if output is None else output.connections
    return Described(
        KAFKA,
        f'Kafka topic "{topic}"',
        definition,
        OFFSETS,
        () if output is None else (output.output,),
        None if output is None else output.envelope,
        tuple(dict.fromkeys(needed)),
        None if letters is None else twin_output(letters["name"]),
        None if output is None else output.transactions,
    )


_NEEDS_ALL = "ENVELOPE DEBEZIUM needs every change since the snapshot, and compaction removes changes."
_NEEDS_WHOLE = "TRANSACTION METADATA needs every change of a transaction, and compaction removes changes."


def _compacted(topic: str, needs: str) -> TidemillError:
    return TidemillError(
        f'topic "{topic}" is compacted',
        detail=needs,
        hint="Set cleanup.policy of the topic to delete, or use ENVELOPE DEBEZIUM UPSERT alone. "
        "If nothing was removed yet, WITH (VALIDATE = false) does without the check.",
        sqlstate="55000",
    )


def _topic(kafka: Kafka) -> str:
    if kafka.topic is None:
        raise SyntaxError_("a Kafka source needs the option TOPIC", hint="Write (TOPIC 'name').")
    if not _TOPIC.fullmatch(kafka.topic) or kafka.topic in (".", ".."):
        raise InvalidValue(
            f'"{kafka.topic[:255]}" is no name of a topic',
            hint="A topic's name has up to 249 letters, digits, dots, underscores and hyphens.",
            sqlstate="22023",
        )
    return kafka.topic


def _refresh(text: str | None) -> int:
    if text is None:
        return DEFAULT_REFRESH_MS
    found = milliseconds(text)
    if not MIN_REFRESH_MS <= found <= MAX_REFRESH_MS:
        raise InvalidValue(
            f'TOPIC METADATA REFRESH INTERVAL cannot be "{text}"',
            hint=f"Give {MIN_REFRESH_MS} milliseconds to {MAX_REFRESH_MS // 3_600_000} hour.",
            sqlstate="22023",
        )
    return found


def _output(topic: str, said: ast.Messages, context: DescribeContext) -> DescribedOutput | None:
    """None for a source without a format: its tables specify the formats."""
    if said.silent:
        return None
    if said.value is None:
        clauses = (("ENVELOPE", said.envelope), ("ON ERROR", said.on_error), ("INCLUDE", *said.include[:1]))
        clause, part = next((name, part) for name, part in clauses if part is not None)
        raise SyntaxError_(
            f"{clause} without FORMAT",
            hint="Write FORMAT, or leave all of it to CREATE TABLE ... FROM SOURCE.",
            position=part.offset + 1,
        )
    return describe_output(topic, topic, said, context)


# -- where reading begins


def _start(kafka: Kafka, reached: dict[str, Any], info: TopicInfo | None, started: int) -> dict[str, int]:
    """The start offsets by partition. A partition without an entry is read from its beginning."""
    if info is None:
        if kafka.start_timestamp is not None:
            raise Unsupported(
                "START TIMESTAMP cannot be resolved with VALIDATE = false",
                hint="Give START OFFSET, or let the broker be asked.",
            )
        return {str(n): offset for n, offset in enumerate(kafka.start_offset or ())}
    starts = {n: low for n, (low, _) in info.partitions.items()}
    if kafka.start_timestamp is not None:
        at = kafka.start_timestamp if kafka.start_timestamp >= 0 else max(0, started + kafka.start_timestamp)
        starts |= offsets_for_time(reached, kafka.topic or "", at)
    elif kafka.start_offset is not None:
        starts |= _checked(kafka.start_offset, info)
    return {str(n): starts[n] for n in sorted(starts)}


def _checked(given: tuple[int, ...], info: TopicInfo) -> dict[int, int]:
    """Checks START OFFSET against the topic. 0 means the current beginning of the partition."""
    if len(given) > len(info.partitions):
        raise InvalidValue(
            f"START OFFSET has {len(given)} entries, the topic has {len(info.partitions)} partitions",
            sqlstate="22023",
        )
    starts: dict[int, int] = {}
    for n, offset in enumerate(given):
        low, high = info.partitions[n]
        if offset and not low <= offset <= high:
            raise InvalidValue(
                f"START OFFSET {offset} is not in partition {n}",
                detail=f"It begins at {low}, and its next record will be {high}.",
                hint="Give an offset in between, or 0 for the beginning.",
                sqlstate="22023",
            )
        starts[n] = max(offset, low)
    return starts


# -- tables


def describe_kafka_table(
    source: Source, statement: ast.CreateTableFromSource, context: DescribeContext
) -> DescribedOutput:
    """The output that a table adds to its source."""
    refuse_choice(statement.choice, "a topic")
    topic: str = json.loads(source.definition)["topic"]
    reference = ".".join(statement.reference.parts)
    if reference != topic:
        raise UndefinedObject(
            f'source "{source.name}" has no topic "{reference}"',
            hint=f'It reads one topic: write (REFERENCE "{topic}").',
            sqlstate="42P01",
            position=statement.reference.offset + 1,
        )
    if statement.messages.value is None:
        raise SyntaxError_(
            f'a table of source "{source.name}" needs FORMAT',
            detail="The source reads a Kafka topic and says nothing of its messages.",
            position=statement.source.offset + 1,
        )
    envelope = statement.messages.envelope
    if isinstance(envelope, Debezium | DebeziumUpsert) and envelope.transactions is not None:
        raise refuse_transactions(envelope.transactions, str(statement.name))
    return describe_output(topic, topic, statement.messages, context)
