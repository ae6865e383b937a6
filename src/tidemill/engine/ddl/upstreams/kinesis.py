"""FROM KINESIS: makes the definition of a source over a stream from the statement.

Unless VALIDATE = false, asks for the shards of the stream. Where reading begins becomes a time of the service
once, so that it is the same after a restart.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from tidemill.catalog import connections
from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described, refuse_choice
from tidemill.engine.ddl.upstreams.messages import DescribedOutput, describe_output
from tidemill.errors import InvalidValue, SyntaxError_, UndefinedObject, Unsupported
from tidemill.sources.aws_role import frozen
from tidemill.sources.definition import KINESIS as KIND
from tidemill.sources.kinesis.client import KinesisClient, open_client
from tidemill.sources.kinesis.layout import GAUGE, INCLUDED
from tidemill.sources.kinesis.shards import ShardInfo, list_shards
from tidemill.sql import ast
from tidemill.sql.parser.envelopes.debezium_upsert import DebeziumUpsert
from tidemill.sql.parser.envelopes.none import NoEnvelope
from tidemill.sql.parser.envelopes.upsert import Upsert
from tidemill.sql.parser.upstreams.kinesis import LATEST, TRIM_HORIZON, Kinesis

# As the service has it.
_STREAM = re.compile(r"[A-Za-z0-9._-]{1,128}")


def describe_kinesis(statement: ast.CreateSource, kinesis: Kinesis, context: DescribeContext) -> Described:
    stream = kinesis.stream
    if not _STREAM.fullmatch(stream):
        raise InvalidValue(
            f'"{stream[:255]}" is no name of a stream',
            hint="A stream's name has up to 128 letters, digits, dots, underscores and hyphens.",
            sqlstate="22023",
        )
    if statement.tables is not None:
        raise Unsupported(
            "FOR TABLES is not possible: a stream has no tables",
            hint="Leave FORMAT out and write CREATE TABLE ... FROM SOURCE ... FORMAT ... for each relation.",
        )
    connection = context.find(kinesis.connection, connections.AWS)
    client = open_client(frozen(context.reached(connection)))
    shards: dict[str, ShardInfo] = {}
    if statement.validate:
        shards = asking(lambda: list_shards(client, stream))
    said = statement.messages
    output = None if said.silent else _output(stream, said, context)
    definition = {
        "kind": KIND,
        "connection": connection.id,
        "stream": stream,
        "start_ms": _start(kinesis, client, context.started, asked=statement.validate),
        "shards": sorted(shards),
        "outputs": [] if output is None else [output.spec],
        "started": context.started,
    }
    needed = [connection.id, *(() if output is None else output.connections)]
    return Described(
        KIND,
        f'Kinesis stream "{stream}"',
        definition,
        GAUGE,
        () if output is None else (output.output,),
        None if output is None else output.envelope,
        tuple(dict.fromkeys(needed)),
    )


def _start(kinesis: Kinesis, client: KinesisClient, started: int, *, asked: bool) -> int | None:
    """The time at which reading begins, in milliseconds; None: with the oldest record."""
    start = kinesis.start
    if start == TRIM_HORIZON:
        return None
    # The clock of the service decides when records arrive.
    now = client.server_ms if asked and client.server_ms is not None else started
    if start == LATEST:
        return now
    at = int(start)
    if at > now:
        raise InvalidValue(
            f"START TIMESTAMP {at} is in the future",
            hint="Give milliseconds since 1970, or a negative number of them before now.",
            sqlstate="22023",
        )
    return at if at >= 0 else max(0, now + at)


def _output(stream: str, said: ast.Messages, context: DescribeContext) -> DescribedOutput:
    if said.value is None:
        raise SyntaxError_(
            "a Kinesis source needs FORMAT",
            hint="Write FORMAT, or leave all of it to CREATE TABLE ... FROM SOURCE.",
        )
    if said.on_error is not None and said.on_error.dead_letter:
        raise Unsupported(
            "ON ERROR DEAD LETTER is not possible for a stream of Kinesis",
            hint="Leave it out: records that cannot be read are errors of the relation.",
            position=said.on_error.offset + 1,
        )
    envelope = said.envelope
    if envelope is not None and not isinstance(envelope, NoEnvelope | Upsert | DebeziumUpsert):
        raise Unsupported(
            f"ENVELOPE {envelope.kind} is not possible for a stream of Kinesis",
            hint="It can be NONE, UPSERT or DEBEZIUM UPSERT.",
            position=envelope.offset + 1,
        )
    if isinstance(envelope, DebeziumUpsert) and envelope.transactions is not None:
        raise Unsupported(
            "TRANSACTION METADATA is not possible for a stream of Kinesis",
            position=envelope.transactions.offset + 1,
        )
    if isinstance(envelope, Upsert) and envelope.order_by:
        raise Unsupported(
            "ENVELOPE UPSERT (ORDER BY ...) is not possible for a stream of Kinesis",
            hint="The last record of a key is its row: shards keep the order of a key.",
            position=envelope.offset + 1,
        )
    for include in said.include:
        if include.what in ("HEADERS", "HEADER"):
            raise Unsupported(
                f"INCLUDE {include.what} is not possible: records of Kinesis have no headers",
                hint="What can be included is KEY, PARTITION (the shard), OFFSET (the sequence number) and "
                "TIMESTAMP.",
                position=include.offset + 1,
            )
    keyed = isinstance(envelope, Upsert | DebeziumUpsert)
    if said.key is None and (keyed or any(include.what == "KEY" for include in said.include)):
        # The partition key of each record is text.
        said = replace(said, key=ast.PlainFormat("TEXT", offset=said.value.offset))
    return describe_output(stream, stream, said, context, INCLUDED)


# -- tables


def describe_kinesis_table(
    source: Source, statement: ast.CreateTableFromSource, context: DescribeContext
) -> DescribedOutput:
    """The output that a table adds to its source."""
    refuse_choice(statement.choice, "a stream")
    definition: dict[str, Any] = json.loads(source.definition)
    stream = str(definition["stream"])
    reference = ".".join(statement.reference.parts)
    if reference != stream:
        raise UndefinedObject(
            f'source "{source.name}" has no stream "{reference}"',
            hint=f'It reads one stream: write (REFERENCE "{stream}").',
            sqlstate="42P01",
            position=statement.reference.offset + 1,
        )
    return _output(stream, statement.messages, context)
