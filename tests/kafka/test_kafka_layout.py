"""Columns of a topic: names, order, types, and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kafka.kafka_decoders import spec
from tidemill.errors import TidemillError
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.kafka.envelopes import ENVELOPES, plan
from tidemill.sources.kafka.layout import HEADERS, INLINE_ERROR, order_of
from tidemill.types.model import (
    BYTEA,
    INT4,
    INT8,
    JSONB,
    TEXT,
    TIMESTAMP,
    UINT8,
    Column,
    RelationDesc,
    SqlType,
    record,
)

KEY = (Column("text", TEXT, nullable=False),)
VALUE = (Column("text", TEXT, nullable=False),)
FIELDS = (Column("id", INT8, nullable=False), Column("name", TEXT))
AVRO = {"format": "avro", "schema": json.dumps({"type": "record", "name": "r", "fields": []})}


def columns(output: OutputDefinition) -> list[tuple[str, SqlType]]:
    return [(c.name, c.type) for c in output.desc.columns]


def test_none_has_the_value_and_what_was_asked_for() -> None:
    include = [
        {"what": "partition", "as": None},
        {"what": "offset", "as": "o"},
        {"what": "timestamp", "as": None},
        {"what": "headers", "as": None},
        {"what": "header", "as": "trace", "header": "x", "bytes": True},
        {"what": "header", "as": "who", "header": "y"},
    ]
    layout = plan(spec(include=include), None, VALUE)
    assert columns(layout.output) == [
        ("text", TEXT),
        ("partition", INT4),
        ("o", UINT8),
        ("timestamp", TIMESTAMP),
        ("headers", HEADERS),
        ("trace", BYTEA),
        ("who", TEXT),
    ]
    assert layout.output.key is None and layout.output.desc.hidden == ()
    # A record may have a key alone.
    assert layout.output.desc.columns[0].nullable


def test_keys_come_first_and_are_named_by_their_format() -> None:
    asked = [{"what": "offset", "as": None}, {"what": "key", "as": None}]
    layout = plan(spec(include=asked), KEY, VALUE)
    assert [n for n, _ in columns(layout.output)] == ["key", "text", "offset"]
    layout = plan(spec(key=AVRO, value=AVRO, include=asked), FIELDS, (Column("v", TEXT),))
    assert [n for n, _ in columns(layout.output)] == ["id", "name", "v", "offset"]


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("long", "key"),
        ({"type": "long"}, "key"),
        (["null", "string"], "key"),
        ({"type": "record", "name": "r", "fields": []}, "data"),
        (["null", {"type": "record", "name": "r", "fields": []}], "data"),
    ],
)
def test_an_avro_key_without_fields_is_called_key(schema: Any, name: str) -> None:
    key = {"format": "avro", "schema": json.dumps(schema)}
    layout = plan(spec("upsert", key=key), (Column("data", INT8),), VALUE)
    assert columns(layout.output)[0] == (name, INT8)


def test_include_key_as_renames_one_field_and_packs_several() -> None:
    asked = [{"what": "key", "as": "k"}]
    one = plan(spec("upsert", include=asked), KEY, VALUE)
    assert columns(one.output) == [("k", TEXT), ("text", TEXT)]
    assert one.output.key == ("k", "mz_key") and not one.key_record
    several = plan(spec("upsert", key=AVRO, include=asked), FIELDS, VALUE)
    assert columns(several.output) == [("k", record(*FIELDS)), ("text", TEXT)]
    assert several.output.key == ("k", "mz_key") and several.key_record


def test_upsert_has_its_key_and_hidden_columns() -> None:
    order = ["timestamp", "offset"]
    include = [{"what": "timestamp", "as": "ts"}]
    layout = plan(spec("upsert", include=include, order_by=order), KEY, VALUE)
    assert columns(layout.output) == [("key", TEXT), ("text", TEXT), ("ts", TIMESTAMP)]
    assert layout.output.desc.hidden == (
        Column("mz_key", BYTEA),
        Column("mz_order1", INT8),
        Column("mz_order2", INT8),
    )
    assert layout.output.key == ("key", "mz_key")
    assert layout.output.order == ("mz_order1", "mz_order2")
    assert layout.order == ("timestamp", "offset")
    assert plan(spec("upsert"), KEY, VALUE).output.desc.hidden == (Column("mz_key", BYTEA),)


def test_inline_errors_stand_between_key_and_value() -> None:
    layout = plan(spec("upsert", inline_errors="wrong"), KEY, VALUE)
    assert columns(layout.output) == [("key", TEXT), ("wrong", INLINE_ERROR), ("text", TEXT)]
    assert layout.error_at == 1 and layout.value_at == (2,)
    assert layout.output.desc.columns[2].nullable


AFTER = record(Column("name", TEXT), Column("id", INT8), Column("part", INT8))
ENVELOPE = (Column("before", AFTER), Column("after", AFTER), Column("op", TEXT))
IDS = (Column("part", INT8), Column("id", INT8))


def test_debezium_has_the_fields_of_after_with_keys_in_any_order() -> None:
    include = [{"what": "offset", "as": None}]
    layout = plan(spec("debezium upsert", key=AVRO, value=AVRO, include=include), IDS, ENVELOPE)
    assert columns(layout.output) == [("name", TEXT), ("id", INT8), ("part", INT8), ("offset", UINT8)]
    assert layout.output.key == ("part", "id", "mz_key")
    assert layout.key_at == (2, 1) and layout.value_at == (0, None, None)


def test_debezium_in_json_has_the_key_and_after() -> None:
    data = (Column("data", JSONB, nullable=False),)
    layout = plan(spec("debezium upsert", key="json", value="json"), data, data)
    assert columns(layout.output) == [("key", JSONB), ("data", JSONB)]
    assert layout.envelope is ENVELOPES["debezium upsert"] and layout.output.key == ("key", "mz_key")


@pytest.mark.parametrize(
    ("of", "key", "value", "text"),
    [
        (spec("upsert", key=None), None, VALUE, "ENVELOPE UPSERT requires that KEY FORMAT be specified"),
        (
            spec("debezium upsert", key=None, value=AVRO),
            None,
            ENVELOPE,
            "ENVELOPE DEBEZIUM UPSERT requires that KEY FORMAT be specified",
        ),
        (
            spec("debezium upsert", value="csv"),
            KEY,
            VALUE,
            "ENVELOPE DEBEZIUM requires that VALUE FORMAT is set to AVRO",
        ),
        (
            spec("debezium upsert", value=AVRO, include=[{"what": "key", "as": None}]),
            KEY,
            ENVELOPE,
            "Cannot use INCLUDE KEY with ENVELOPE DEBEZIUM: Debezium values include all keys.",
        ),
        (
            spec(key=None, include=[{"what": "key", "as": None}]),
            None,
            VALUE,
            "INCLUDE KEY requires specifying KEY FORMAT .. VALUE FORMAT, got bare FORMAT",
        ),
        (
            spec("debezium upsert", key=AVRO, value=AVRO),
            IDS,
            FIELDS,
            "'after' column missing from debezium input",
        ),
        (
            spec("debezium upsert", key=AVRO, value=AVRO),
            (Column("uid", INT8),),
            ENVELOPE,
            "Value schema missing primary key column: uid",
        ),
        (
            spec("debezium upsert", key=AVRO, value=AVRO),
            (Column("id", TEXT),),
            ENVELOPE,
            'column "id" is text in the key and bigint in the value',
        ),
        (
            spec("upsert", key=AVRO, value=AVRO),
            FIELDS,
            FIELDS,
            'column "id" specified more than once',
        ),
    ],
)
def test_refusals(
    of: dict[str, Any], key: Sequence[Column] | None, value: Sequence[Column], text: str
) -> None:
    with pytest.raises(TidemillError) as e:
        plan(of, key, value)
    assert e.value.primary == text


# The examples of the document on ORDER BY, valid and invalid.
ONLY = (
    "Only `TIMESTAMP` and `OFFSET` (from `INCLUDE TIMESTAMP` and `INCLUDE OFFSET`) "
    "are supported as `ORDER BY` columns"
)
NO_OFFSET = "OFFSET (from `INCLUDE OFFSET`) must be explicitly specified as an order by column"


def included(**names: str | None) -> list[dict[str, Any]]:
    return [{"what": what, "as": name} for what, name in names.items()]


@pytest.mark.parametrize(
    ("names", "include", "order"),
    [
        (["timestamp", "offset"], included(timestamp=None), ["timestamp", "offset"]),
        (["ts", "o"], included(timestamp="ts", offset="o"), ["timestamp", "offset"]),
        (["o"], included(offset="o"), ["offset"]),
        (["offset"], [], ["offset"]),
        (["offset", "timestamp"], included(timestamp=None), ["offset", "timestamp"]),
    ],
)
def test_order_by(names: list[str], include: list[dict[str, Any]], order: list[str]) -> None:
    assert order_of(names, include) == order


@pytest.mark.parametrize(
    ("names", "include", "text", "detail"),
    [
        (["timestamp"], included(offset=None), NO_OFFSET, "ORDER BY has timestamp."),
        (["timestamp", "offset"], included(offset=None), ONLY, "TIMESTAMP is not included."),
        (["p"], included(partition="p"), ONLY, '"p" is PARTITION.'),
        (["x", "offset"], included(), ONLY, '"x" is no included column.'),
        (["timestamp", "offset"], included(timestamp="ts"), ONLY, "TIMESTAMP is included as ts."),
        (["offset"], included(offset="o"), ONLY, "OFFSET is included as o."),
    ],
)
def test_order_by_refusals(names: list[str], include: list[dict[str, Any]], text: str, detail: str) -> None:
    with pytest.raises(TidemillError) as e:
        order_of(names, include)
    assert (e.value.primary, e.value.detail) == (text, detail)


def test_the_same_definition_gives_the_same_relation() -> None:
    of = spec("upsert", order_by=["offset"])
    assert plan(of, KEY, VALUE) == plan(json.loads(json.dumps(of)), KEY, VALUE)
    assert isinstance(plan(of, KEY, VALUE).output.desc, RelationDesc)
