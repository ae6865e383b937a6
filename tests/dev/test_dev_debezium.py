"""The schema registry and Debezium that tests and `tidemill dev kafka` stand on."""

from __future__ import annotations

import io
import json
import time
import urllib.error
import uuid
from typing import Any

import fastavro
import pytest

from support.debezium import Debezium, SchemaRegistry
from support.kafka import REQUEST_SECONDS, Kafka

USER: dict[str, Any] = {
    "type": "record",
    "name": "User",
    "namespace": "test",
    "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}],
}


def test_a_schema_is_registered_once_and_found_by_id_and_subject(registry: SchemaRegistry) -> None:
    users = f"users-{uuid.uuid4().hex[:12]}"
    number = registry.register(f"{users}-value", USER)
    assert registry.register(f"{users}-value", USER) == number
    assert json.loads(registry.request("GET", f"/schemas/ids/{number}")["schema"]) == USER
    latest = registry.request("GET", f"/subjects/{users}-value/versions/latest")
    assert (latest["id"], latest["version"], latest["schemaType"]) == (number, 1, "AVRO")
    reference = {"name": "test.User", "subject": f"{users}-value", "version": 1}
    group = {"type": "record", "name": "Pair", "fields": [{"name": "a", "type": "test.User"}]}
    other = registry.register("pair-value", group, references=[reference])
    assert registry.request("GET", f"/schemas/ids/{other}")["references"] == [reference]
    proto = registry.register("proto-value", 'syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF")
    assert registry.request("GET", f"/schemas/ids/{proto}")["schemaType"] == "PROTOBUF"


def test_what_is_not_there_or_no_schema_is_refused(registry: SchemaRegistry) -> None:
    for path in ("/schemas/ids/999999", "/subjects/nobody-value/versions/latest"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            registry.request("GET", path)
        assert caught.value.code == 404
    with pytest.raises(urllib.error.HTTPError) as caught:
        registry.register("bad-value", '{"type": "nothing"}')
    assert caught.value.code == 422


def test_schemas_survive_kill_9(registry: SchemaRegistry) -> None:
    kept = USER | {"name": "Kept"}
    number = registry.register("kept-value", kept)
    registry.kill()
    registry.start()
    assert json.loads(registry.request("GET", f"/schemas/ids/{number}")["schema"]) == kept
    assert registry.register("kept-value", kept) == number


def records(kafka: Kafka, registry: SchemaRegistry, topic: str, count: int) -> list[Any]:
    """The (key, value) of the first `count` messages, decoded from Avro in Confluent's framing."""

    def decode(data: bytes | None) -> Any:
        if data is None:
            return None
        assert data[0] == 0
        schema = registry.request("GET", f"/schemas/ids/{int.from_bytes(data[1:5], 'big')}")["schema"]
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), json.loads(schema), None)

    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        found = kafka.read(topic)
        if len(found) >= count:
            return [(decode(m.key()), decode(m.value())) for m in found]
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        time.sleep(0.1)


def until_tombstone(kafka: Kafka, topic: str) -> None:
    deadline = time.monotonic() + REQUEST_SECONDS
    while kafka.read(topic)[-1].value() is not None:
        assert time.monotonic() < deadline, "the delete did not come"
        time.sleep(0.1)


def test_debezium_delivers_rows_in_avro_and_goes_on_after_kill_9(
    kafka: Kafka, registry: SchemaRegistry, debezium: Debezium
) -> None:
    # What Debezium will register has a number already: the message must carry that one, by which clients of
    # Confluent's protocol find the schema, and not the number of its own subject's version.
    prefix = f"d{uuid.uuid4().hex[:12]}"
    name = f"{prefix}.public.people"
    key_schema = (
        f'{{"type":"record","name":"Key","namespace":"{name}","fields":[{{"name":"id","type":"int"}}],'
        f'"connect.name":"{name}.Key"}}'
    )
    number = registry.register("elsewhere-key", key_schema)
    with debezium.sql() as sql:
        sql.execute("CREATE TABLE people (id int PRIMARY KEY, name text)")
        sql.execute("INSERT INTO people VALUES (1, 'ada')")
        topic = f"{debezium.capture('public.people', prefix=prefix)}.public.people"
        ((key, value),) = records(kafka, registry, topic, 1)
        assert (key, value["op"], value["after"]) == ({"id": 1}, "r", {"id": 1, "name": "ada"})
        assert (kafka.read(topic)[0].key() or b"")[1:5] == number.to_bytes(4, "big")
        sql.execute("ALTER TABLE people ADD COLUMN born int")
        sql.execute("INSERT INTO people VALUES (2, 'bob', 1901)")
        key, value = records(kafka, registry, topic, 2)[1]
        assert (value["op"], value["after"]) == ("c", {"id": 2, "name": "bob", "born": 1901})
        debezium.kill()
        sql.execute("DELETE FROM people WHERE id = 1")
        debezium.start()
        # What was not noted in time comes again; the delete comes last, with its tombstone.
        until_tombstone(kafka, topic)
        tail = records(kafka, registry, topic, 4)[-2:]
        assert tail[0][0] == tail[1][0] == {"id": 1}
        assert (tail[0][1]["op"], tail[0][1]["after"], tail[1][1]) == ("d", None, None)
    debezium.release(prefix)


def test_debezium_delivers_rows_in_json(kafka: Kafka, debezium: Debezium) -> None:
    with debezium.sql() as sql:
        sql.execute("CREATE TABLE things (id int PRIMARY KEY, size float8)")
        sql.execute("INSERT INTO things VALUES (1, 1.5)")
    prefix = debezium.capture("public.things", avro=False)
    deadline = time.monotonic() + REQUEST_SECONDS
    while not (found := kafka.read(f"{prefix}.public.things")):
        assert time.monotonic() < deadline
    assert json.loads(found[0].key() or b"") == {"id": 1}
    assert json.loads(found[0].value() or b"")["after"] == {"id": 1, "size": 1.5}
    debezium.release(prefix)
