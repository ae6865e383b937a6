"""A real registry: numbers, subjects, references, evolution; Avro and Protobuf from CREATE to columns."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pyarrow as pa
import pytest
from avro_world import varint
from proto_world import COMMON, PROTO3, expected, fill, message_class
from test_protobuf_values import rows_of, same

from support.debezium import SchemaRegistry
from tidemill.decode.formats import open_decoder
from tidemill.decode.protobuf import ProtobufDecoder
from tidemill.decode.registry import Registry, RegistryError
from tidemill.decode.resolve import avro_registered, protobuf_registered
from tidemill.errors import UndefinedObject


def opened(found: Any, registry: SchemaRegistry) -> Any:
    """As a task opens it: the connection replaced by its options."""
    return open_decoder({**found.format, "registry": {"url": registry.url}})


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t, **d} for n, t, d in fields]}


def test_avro_with_references_and_evolution(registry: SchemaRegistry) -> None:
    topic = f"t{uuid.uuid4().hex[:8]}"
    kind = {"type": "enum", "name": "Kind", "namespace": "x", "symbols": ["A", "B"]}
    registry.register(f"{topic}-kind", kind)
    refers = [{"name": "x.Kind", "subject": f"{topic}-kind", "version": 1}]
    older = record("Order", ("id", "int", {}), ("kind", "x.Kind", {}))
    newer = record(
        "Order", ("id", "long", {}), ("note", ["null", "string"], {"default": None}), ("kind", "x.Kind", {})
    )
    first = registry.register(f"{topic}-value", older, references=refers)
    client = Registry({"url": registry.url})
    found = avro_registered(client, {"connection": "u1"}, f"{topic}-value")
    assert [(c.name, str(c.type)) for c in found.columns] == [("id", "integer"), ("kind", "text")]
    second = registry.register(f"{topic}-value", newer, references=refers)
    found = avro_registered(client, {"connection": "u1"}, f"{topic}-value")
    assert json.loads(found.format["schema"])["fields"][2]["type"]["symbols"] == ["A", "B"]
    messages = [
        b"\0" + first.to_bytes(4, "big") + varint(5) + b"\2",
        b"\0" + second.to_bytes(4, "big") + varint(2**40) + b"\2\4hi" + b"\0",
    ]
    decoded = opened(found, registry).decode(pa.array(messages, pa.binary()))
    assert decoded.errors is None
    assert [c.to_pylist() for c in decoded.columns] == [[5, 2**40], [None, "hi"], ["B", "A"]]


def test_protobuf_with_imports(registry: SchemaRegistry) -> None:
    topic = f"p{uuid.uuid4().hex[:8]}"
    registry.register(f"{topic}-common", COMMON, "PROTOBUF")
    refers = [{"name": "shared/common.proto", "subject": f"{topic}-common", "version": 1}]
    number = registry.register(f"{topic}-value", PROTO3, "PROTOBUF", refers)
    found = protobuf_registered(Registry({"url": registry.url}), {"connection": "u1"}, f"{topic}-value")
    assert found.format["message"] == ".shop.Order"
    rng = random.Random(4)
    sent = [fill(rng, message_class("shop.Order")()) for _ in range(20)]
    head = b"\0" + number.to_bytes(4, "big")
    messages: list[bytes | None] = [head + b"\0" + message.SerializeToString() for message in sent]
    messages += [
        head + b"\2\0" + sent[0].SerializeToString(),
        head + b"\2\2" + b"\x0a\1x",
        head + b"\2\6",
        head,
    ]
    decoder = opened(found, registry)
    assert isinstance(decoder, ProtobufDecoder)
    rows, errors = rows_of(decoder, messages)
    for row, error, message in zip(rows, errors, [*sent, sent[0]], strict=False):
        assert error is None
        assert same(row, expected(message))
    prefix = "protobuf deserialization error: "
    assert errors[21:] == [
        f'{prefix}message is a "shop.Other", not a "shop.Order"',
        f"{prefix}schema {number}: Protobuf schema has no message number [3]",
        f"{prefix}the message ends within a number",
    ]


def test_what_is_not_there(registry: SchemaRegistry) -> None:
    client = Registry({"url": registry.url})
    with pytest.raises(UndefinedObject) as missing:
        avro_registered(client, {"connection": "u1"}, "no-such-topic-value")
    assert missing.value.primary == 'schema registry has no schema for the subject "no-such-topic-value"'
    with pytest.raises(RegistryError) as unknown:
        client.by_id(123_456_789)
    assert unknown.value.primary.endswith("has no schema with number 123456789")
    assert unknown.value.status == 404


def test_away_and_back(registry: SchemaRegistry) -> None:
    subject = f"a{uuid.uuid4().hex[:8]}-value"
    registry.register(subject, '"string"')
    client = Registry({"url": registry.url})
    assert client.by_subject(subject).text == '"string"'
    registry.kill()
    try:
        with pytest.raises(RegistryError) as away:
            client.by_subject(subject)
        assert away.value.primary.endswith("cannot be reached")
    finally:
        registry.start()
    # What it was told just before it was killed it may have forgotten.
    registry.register(subject, '"string"')
    assert client.by_subject(subject).text == '"string"'
