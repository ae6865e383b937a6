"""The system relations of single kinds: what a connection or a source of a kind has that others have not.

A kind with such details is a line in `CONNECTION_DETAILS` or `SOURCE_DETAILS`: the relation's name, its
columns after `id`, and their values from the options of a connection, completed and without secrets, or from
the definition of a source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemill.catalog import connections
from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.sources import Rows, Spec
from tidemill.sources import definition
from tidemill.types.model import INT8, TEXT, SqlType, array

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

Values: TypeAlias = tuple[Any, ...]
KindDetails: TypeAlias = tuple[str, list[tuple[str, SqlType]], Callable[[Mapping[str, Any]], Values]]


def _kafka_connection(options: Mapping[str, Any]) -> Values:
    return options["brokers"], options["security_protocol"]


def _kafka_source(found: Mapping[str, Any]) -> Values:
    # The older syntax has the broker's address in place of a connection.
    connection = found["connection"] if isinstance(found["connection"], str) else None
    return connection, found["topic"], found["group_id_prefix"], found["refresh_ms"]


def _postgres_source(found: Mapping[str, Any]) -> Values:
    return found["connection"], found["publication"], found["slot"], found["timeline"]


def _kinesis_source(found: Mapping[str, Any]) -> Values:
    return found["connection"], found["stream"], found["start_ms"]


def _aws_connection(options: Mapping[str, Any]) -> Values:
    key = options.get("access_key_id")
    return options.get("endpoint"), options["region"], key if isinstance(key, str) else None


def _s3_source(found: Mapping[str, Any]) -> Values:
    return found["connection"], found["bucket"], found["matching"], found["compression"]


def _pubnub_connection(options: Mapping[str, Any]) -> Values:
    key = options.get("subscribe_key")
    return options.get("endpoint"), key if isinstance(key, str) else None


def _pubnub_source(found: Mapping[str, Any]) -> Values:
    # The older syntax has the key in place of a connection.
    connection = found["connection"] if isinstance(found["connection"], str) else None
    return connection, found["channels"], found["groups"], found["history_seconds"]


CONNECTION_DETAILS: dict[str, KindDetails] = {
    connections.KAFKA: (
        "mz_kafka_connections",
        [("brokers", array(TEXT)), ("security_protocol", TEXT)],
        _kafka_connection,
    ),
    connections.AWS: (
        "mz_aws_connections",
        columns_of("endpoint text, region text, access_key_id text"),
        _aws_connection,
    ),
    connections.PUBNUB: (
        "mz_pubnub_connections",
        columns_of("endpoint text, subscribe_key text"),
        _pubnub_connection,
    ),
}
SOURCE_DETAILS: dict[str, KindDetails] = {
    definition.KAFKA: (
        "mz_kafka_sources",
        columns_of("connection_id text, topic text, group_id_prefix text, refresh_interval_ms int8"),
        _kafka_source,
    ),
    definition.POSTGRES: (
        "mz_postgres_sources",
        columns_of("connection_id text, publication text, replication_slot text, timeline_id int8"),
        _postgres_source,
    ),
    definition.S3: (
        "mz_s3_sources",
        columns_of("connection_id text, bucket text, matching text, compression text"),
        _s3_source,
    ),
    definition.PUBNUB: (
        "mz_pubnub_sources",
        [
            ("connection_id", TEXT),
            ("channels", array(TEXT)),
            ("channel_groups", array(TEXT)),
            ("history_seconds", INT8),
        ],
        _pubnub_source,
    ),
    definition.KINESIS: (
        "mz_kinesis_sources",
        columns_of("connection_id text, stream text, start_ms int8"),
        _kinesis_source,
    ),
}


def _connection_rows(kind: str, s: Situation) -> Rows:
    found = [c for c in s.catalog.connections() if c.type == kind]
    values = CONNECTION_DETAILS[kind][2]
    return [(c.id, *values(connections.completed(kind, json.loads(c.options)))) for c in found]


def _source_rows(kind: str, s: Situation) -> Rows:
    values = SOURCE_DETAILS[kind][2]
    return [(i.id, *values(json.loads(i.definition))) for i in s.catalog.sources() if i.type == kind]


def detail_specs() -> list[Spec]:
    tables = ((CONNECTION_DETAILS, _connection_rows), (SOURCE_DETAILS, _source_rows))
    return [
        ("mz_catalog", name, [("id", TEXT), *columns], partial(rows, kind))
        for details, rows in tables
        for kind, (name, columns, _) in details.items()
    ]
