"""Bad records on a real server, broker and registry: each is the right error in the right slot, goes when the
upstream corrects it, and is nobody else's trouble."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import psycopg
import pytest
from confluent_kafka import Producer

from support.debezium import SchemaRegistry
from support.kafka import Kafka, Record, send
from support.server import ServerProcess

SECONDS = 180.0
KEY = {"type": "record", "name": "k", "fields": [{"name": "id", "type": "int"}]}
VALUE: dict[str, Any] = {"type": "record", "name": "v", "fields": [{"name": "text", "type": "string"}]}
LARGE = 10 << 20


def framed(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


class World:
    """A source `s` of an Avro topic under UPSERT, and a source `calm` that must never notice anything."""

    def __init__(self, connection: psycopg.Connection[Any], kafka: Kafka, registry: SchemaRegistry) -> None:
        self._connection = connection
        self._registry = registry
        self.kafka = kafka
        self.topic = kafka.create_topic(config={"max.message.bytes": str(2 * LARGE)})
        self._calm = kafka.create_topic()
        self._producer = Producer(kafka.client(**{"message.max.bytes": 2 * LARGE}))
        self.key_id = registry.register(f"{self.topic}-key", KEY)
        # Nobody else has it, so that its number is the registry's latest.
        self.schema: dict[str, Any] = {**VALUE, "doc": self.topic}
        self.value_id = registry.register(f"{self.topic}-value", self.schema)
        self._sent = 0
        self.run(f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
        self.run(f"CREATE CONNECTION c TO CONFLUENT SCHEMA REGISTRY (URL '{registry.url}')")
        self.run(
            f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{self.topic}') "
            "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c ENVELOPE UPSERT"
        )
        self.run(f"CREATE SOURCE calm FROM KAFKA CONNECTION k (TOPIC '{self._calm}') FORMAT TEXT")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.encode())
        return [] if cursor.description is None else cursor.fetchall()

    def rows(self) -> object:
        """What a reader sees: rows, or the text and the detail of an error."""
        try:
            return self.run("SELECT id, CASE WHEN length(text) < 99 THEN text END FROM s ORDER BY 1")
        except psycopg.errors.DataException as e:
            return e.diag.message_primary, e.diag.message_detail

    def key(self, number: int) -> bytes:
        return framed(self.key_id, KEY, {"id": number})

    def value(self, text: str) -> bytes:
        return framed(self.value_id, self.schema, {"text": text})

    def send(self, key: bytes | None, value: bytes | None) -> int:
        """Its offset."""
        ((_, offset),) = send(self._producer, self.topic, [Record(key, value)])
        return offset

    def calm_goes_on(self) -> None:
        self._sent += 1
        self.kafka.produce(self._calm, [(None, "x")])
        until(lambda: self.run("SELECT count(*) FROM calm"), [(self._sent,)])

    def status(self) -> tuple[str, str | None]:
        sql = "SELECT st.status, st.error FROM mz_internal.mz_source_statuses st JOIN mz_kafka_sources k"
        ((state, error),) = self.run(f"{sql} ON k.id = st.id WHERE k.topic = '{self.topic}'")
        return state, error


def until(ask: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := ask()) != wanted:
        assert time.monotonic() < deadline, f"{str(found)[:2000]} instead of {str(wanted)[:2000]}"
        time.sleep(0.1)


@pytest.fixture
def world(
    server: ServerProcess, request: pytest.FixtureRequest, kafka: Kafka, registry: SchemaRegistry
) -> Iterator[World]:
    name = request.node.name
    with psycopg.connect(server.sql_dsn, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
        with psycopg.connect(f"{server.sql_dsn} dbname={name}", autocommit=True) as connection:
            yield World(connection, kafka, registry)
        admin.execute(f'DROP DATABASE "{name}" CASCADE'.encode())


AVRO = "Envelope error: Upsert: Value error: avro deserialization error: "
NULL_KEY = (
    "Envelope error: Upsert: Null key: record with NULL key in UPSERT source; "
    "to retract this error, produce a record upstream with a NULL key and NULL value"
)
MAGIC = "wrong Confluent-style avro serialization magic: expected 0, got 103"
GARBAGE = 'original text: garbage, original bytes: "67617262616765"'


def test_bad_records_are_errors_until_they_are_corrected(world: World) -> None:
    world.send(world.key(1), world.value("one"))
    good = world.value("x")
    cases: list[tuple[bytes | None, bytes, str, bytes | None]] = [
        # Its key and value, how the error begins, the value that corrects it.
        (None, good, NULL_KEY, None),
        (
            b"garbage",
            good,
            f"Envelope error: Upsert: Key decode: avro deserialization error: {MAGIC} ({GARBAGE})",
            None,
        ),
        (world.key(2), b"garbage", f"{AVRO}{MAGIC} ({GARBAGE}), decoded key: (2)", None),
        (world.key(2), good[:-1], AVRO, world.value("two")),
        (world.key(3), good + b"\0", AVRO, None),
        (world.key(3), good[:3], f"{AVRO}Confluent-style avro serialization takes at least 5 bytes", None),
        (world.key(4), good[:5] + b"\xff" * LARGE, AVRO, None),
    ]
    until(world.rows, [(1, "one")])
    left = [(1, "one")]
    for key, value, text, correction in cases:
        offset = world.send(key, value)
        detail = f'Topic "{world.topic}", partition 0, offset {offset}.'

        def told(text: str = text, detail: str = detail) -> bool:
            found = world.rows()
            return isinstance(found, tuple) and str(found[0]).startswith(text) and found[1] == detail

        until(told, True)
        error, _ = world.rows()  # type: ignore[misc]
        assert len(str(error)) < 10_000
        world.calm_goes_on()
        state, first = world.status()
        assert state == "running" and (first or "").startswith(text)
        world.send(key, correction)
        left = left if correction is None else [*left, (2, "two")]
        until(world.rows, left)
        until(world.status, ("running", None))
    # As long as it is sound a message may be large.
    world.send(world.key(9), world.value("y" * LARGE))
    until(world.rows, [*left, (9, None)])
    assert world.run("SELECT length(text) FROM s WHERE id = 9") == [(LARGE,)]


def test_schemas_that_nobody_has_and_a_registry_that_is_away_hold_only_their_source_up(
    world: World, registry: SchemaRegistry
) -> None:
    world.send(world.key(1), world.value("one"))
    until(world.rows, [(1, "one")])

    # A number that comes next: the message is there before its schema is.
    wider: dict[str, Any] = {
        **world.schema,
        "fields": [*VALUE["fields"], {"name": "more", "type": "int", "default": 0}],
    }
    number = world.value_id + 1
    world.send(world.key(2), framed(number, wider, {"text": "two", "more": 2}))
    unknown = f'schema registry at "{registry.url}" has no schema with number {number}'
    until(world.status, ("stalled", unknown))
    world.calm_goes_on()
    assert registry.register(f"{world.topic}-value", wider) == number
    until(world.rows, [(1, "one"), (2, "two")])
    until(world.status, ("running", None))

    wider["fields"].append({"name": "still", "type": "int", "default": 0})
    number = registry.register(f"{world.topic}-value", wider)
    registry.kill()
    world.send(world.key(3), framed(number, wider, {"text": "three", "more": 2, "still": 3}))
    until(world.status, ("stalled", f'schema registry at "{registry.url}" cannot be reached'))
    world.calm_goes_on()
    registry.start()
    until(world.rows, [(1, "one"), (2, "two"), (3, "three")])
    until(world.status, ("running", None))
