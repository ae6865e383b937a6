"""The system relations about secrets and connections, and those about Kafka sources only. None of them shows
the value of a secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tidemill.catalog.connections import KAFKA, completed
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.sources import Rows, Spec
from tidemill.types.model import INT8, OID, TEXT, array

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _secrets(s: Situation) -> Rows:
    return [(i.id, item_oid(i.id), i.schema, i.name) for i in s.catalog.secrets()]


def _connections(s: Situation) -> Rows:
    return [(c.id, item_oid(c.id), c.schema, c.name, c.type) for c in s.catalog.connections()]


def _kafka_connections(s: Situation) -> Rows:
    rows: Rows = []
    for connection in s.catalog.connections():
        if connection.type == KAFKA:
            options = completed(KAFKA, json.loads(connection.options))
            rows.append((connection.id, options["brokers"], options["security_protocol"]))
    return rows


def _kafka_sources(s: Situation) -> Rows:
    rows: Rows = []
    for source in s.catalog.sources():
        if source.type == KAFKA:
            found: dict[str, Any] = json.loads(source.definition)
            # The older syntax has the broker's address in place of a connection.
            connection = found["connection"] if isinstance(found["connection"], str) else None
            rows.append(
                (source.id, connection, found["topic"], found["group_id_prefix"], found["refresh_ms"])
            )
    return rows


CONNECTION_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_secrets",
        [("id", TEXT), ("oid", OID), ("schema_id", TEXT), ("name", TEXT)],
        _secrets,
    ),
    (
        "mz_catalog",
        "mz_connections",
        [("id", TEXT), ("oid", OID), ("schema_id", TEXT), ("name", TEXT), ("type", TEXT)],
        _connections,
    ),
    (
        "mz_catalog",
        "mz_kafka_connections",
        [("id", TEXT), ("brokers", array(TEXT)), ("security_protocol", TEXT)],
        _kafka_connections,
    ),
    (
        "mz_catalog",
        "mz_kafka_sources",
        [
            ("id", TEXT),
            ("connection_id", TEXT),
            ("topic", TEXT),
            ("group_id_prefix", TEXT),
            ("refresh_interval_ms", INT8),
        ],
        _kafka_sources,
    ),
]
