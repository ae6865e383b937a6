"""Messages of keyed sinks: every value of every type comes back, from Avro and from JSON."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import TYPES, columns, texts

from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.errors import InvalidValue
from tidemill.sinks.rows.json import quoted
from tidemill.sinks.rows.messages import Changes, Origin, RowMessages, schemas
from tidemill.types import model
from tidemill.types.arrow import arrow_type, element_type
from tidemill.types.model import INT4, TEXT, Column, Kind, SqlType
from tidemill.types.names import physical_names_of
from tidemill.types.wire.text import encode_text

ORIGIN = Origin("s", "d", "public", "t")
# Names that Avro has.
AVRO_TYPES = [t for t in TYPES if not any(" " in c.name for c in t.fields)] + [
    model.record(Column("a", model.INT4), Column("b_c", model.NUMERIC), Column("c", model.list_(model.TEXT)))
]


def table(array: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(np.arange(len(array), dtype=np.int32)), "v": array})


def of(t: SqlType) -> list[Column]:
    return [Column("id", INT4, nullable=False), Column("v", t)]


def all_after(rows: pa.Table, times: np.ndarray | None = None) -> Changes:
    n = rows.num_rows
    return Changes(rows, np.full(n, -1), np.arange(n), np.arange(n) if times is None else times, False)


def without_logical(schema: Any) -> Any:
    """fastavro has no dates as far away as ours."""
    if isinstance(schema, list):
        return [without_logical(s) for s in schema]
    if isinstance(schema, dict):
        return {k: without_logical(v) for k, v in schema.items() if k not in ("logicalType", "connect.name")}
    return schema


# Where one more byte is needed, and bytes in between that look like a sign.
EDGES = [n * sign for n in (0, 1, 63, 64, 65, 127, 128, 129, 8191, 8192, 65536, 16777217) for sign in (1, -1)]


@settings(deadline=None, max_examples=300)
@example((model.INT8, [*EDGES, 2**63 - 1, -(2**63), None]))
@example((model.numeric(38, 0), [*map(Decimal, EDGES), Decimal(10**38 - 1), Decimal(1 - 10**38), None]))
@example((model.TEXT, ["", "x" * 63, "x" * 64, "x" * 8192, None]))
@given(st.sampled_from(AVRO_TYPES).flatmap(lambda t: st.tuples(st.just(t), columns(t))))
def test_avro_comes_back(case: tuple[SqlType, list[Any]]) -> None:
    t, values = case
    array = pa.array(values, arrow_type(t))
    # Behind another row: sliced columns are encoded as they are.
    rows = table(pa.concat_arrays([array[:1], array])).slice(min(1, len(array)))
    _, schema = schemas(of(t), [0], "upsert")
    found = RowMessages(of(t), [0], "avro", "upsert", ORIGIN, (1, 7)).values(all_after(rows))
    assert len(found) == len(values) and not found.null_count
    decoder = AvroDecoder(schema, framed=True)
    decoded = decoder.decode(found)
    assert decoded.errors is None or decoded.errors.null_count == len(found)
    read, theirs = decoder.columns[1].type, decoded.columns[1]
    shown = t if theirs.type == array.type else read
    assert encode_text(theirs, shown).to_pylist() == encode_text(array, t).to_pylist()
    parsed: Any = fastavro.parse_schema(without_logical(json.loads(schema)))
    for message in found.to_pylist():
        assert message[:5] == b"\x00\x00\x00\x00\x07"
        row = fastavro.schemaless_reader(io.BytesIO(message[5:]), parsed, None)
        again = io.BytesIO()
        fastavro.schemaless_writer(again, parsed, row)
        assert again.getvalue() == message[5:]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(TYPES).flatmap(lambda t: st.tuples(st.just(t), columns(t))))
@example((SqlType(Kind.DATE), [2**31 - 1]))
@example((SqlType(Kind.ARRAY, element=SqlType(Kind.TIMESTAMPTZ)), [[-62_135_596_800_000_001]]))
def test_json_comes_back(case: tuple[SqlType, list[Any]]) -> None:
    t, values = case
    array = pa.array(values, arrow_type(t))
    found = RowMessages(of(t), [0], "json", "upsert", ORIGIN).values(all_after(table(array)))
    shown = [
        json.loads(m, parse_float=str, parse_int=str, parse_constant=pytest.fail) for m in found.to_pylist()
    ]
    wanted = [{"id": str(n), "v": as_json(v, t)} for n, v in enumerate(one_by_one(array))]
    assert shown == wanted


def as_json(value: pa.Array, t: SqlType) -> Any:
    """The simple way, with numbers as their texts. An array of one: Python has not all dates and times."""
    if not value[0].is_valid:
        return None
    text = encode_text(value, t)[0].as_py().decode()
    if t.kind is Kind.JSONB:
        return json.loads(text, parse_float=str, parse_int=str)
    if t.kind is Kind.BOOL:
        return text == "t"
    if t.kind in (Kind.ARRAY, Kind.LIST):
        return [as_json(v, element_type(t)) for v in one_by_one(value.flatten())]
    if t.kind is Kind.MAP:
        entries = value[0].values
        names = entries.field(0).to_pylist()
        values = one_by_one(entries.field(1))
        return {k: as_json(v, element_type(t)) for k, v in zip(names, values, strict=True)}
    if t.kind is Kind.RECORD:
        names = physical_names_of([c.name for c in t.fields])
        return {c.name: as_json(value.field(n), c.type) for n, c in zip(names, t.fields, strict=True)}
    if t.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        text = text.replace(" ", "T", 1)
        return text.replace("+00", "+00:00") if t.kind is Kind.TIMESTAMPTZ else text
    return text


def one_by_one(array: pa.Array) -> list[pa.Array]:
    return [array.slice(n, 1) for n in range(len(array))]


@given(st.lists(st.none() | texts | st.text(st.characters(max_codepoint=127))))
def test_texts_are_quoted(values: list[str | None]) -> None:
    found = quoted(pa.array(values, pa.string())).to_pylist()
    assert [None if f is None else json.loads(f) for f in found] == values


def test_a_debezium_envelope_in_both_formats() -> None:
    rows = pa.table({"id": pa.array([1, 1, 2, 3], pa.int32()), "v": pa.array(["a", "b", "c", None])})
    changes = Changes(
        rows, np.array([0, 2, -1]), np.array([1, -1, 3]), np.array([1_700_000_000_000, 5, 6]), False
    )
    first: Any = {"before": {"id": 1, "v": "a"}, "after": {"id": 1, "v": "b"}, "op": "u"}
    wanted: list[dict[str, Any]] = [
        first,
        {"before": {"id": 2, "v": "c"}, "after": None, "op": "d"},
        {"before": None, "after": {"id": 3, "v": None}, "op": "c"},
    ]
    for one, at in zip(wanted, changes.times.tolist(), strict=True):
        one["ts_ms"] = at
        one["source"] = {
            "connector": "tidemill", "name": "s", "snapshot": "false", "db": "d", "schema": "public",
            "table": "t", "ts_ms": at,
        }  # fmt: skip
    found = RowMessages(of(TEXT), [0], "json", "debezium", ORIGIN).values(changes)
    assert [json.loads(m) for m in found.to_pylist()] == wanted
    key, value = schemas(of(TEXT), [0], "debezium")
    messages = RowMessages(of(TEXT), [0], "avro", "debezium", ORIGIN, (1, 2))
    parsed: Any = fastavro.parse_schema(json.loads(value))
    shown = [
        fastavro.schemaless_reader(io.BytesIO(m[5:]), parsed, None)
        for m in messages.values(changes).to_pylist()
    ]
    assert shown == wanted
    parsed = fastavro.parse_schema(json.loads(key))
    keys = [
        fastavro.schemaless_reader(io.BytesIO(m[5:]), parsed, None) for m in messages.keys(rows).to_pylist()
    ]
    assert keys == [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 3}]
    initial = Changes(rows, np.full(1, -1), np.array([0]), np.array([9]), True)
    (m,) = RowMessages(of(TEXT), [0], "json", "debezium", ORIGIN).values(initial).to_pylist()
    told = json.loads(m)
    assert (told["op"], told["source"]["snapshot"]) == ("r", "true")


def test_keys_are_equal_when_values_are() -> None:
    rows = pa.table({"f": pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.0])})
    for form, ids in (("json", None), ("avro", (1, 2))):
        found = (
            RowMessages([Column("f", model.FLOAT8)], [0], form, "upsert", ORIGIN, ids).keys(rows).to_pylist()
        )
        assert found[0] == found[1] and found[2] == found[3] and len(set(found)) == 3


def test_names_that_avro_does_not_have() -> None:
    inner = model.list_(model.record(Column("x y", INT4)))
    for columns_, said in (
        ([Column("a-b", INT4)], '"a-b" is no name'),
        ([Column("c", inner)], '"x y" in column "c" is no name'),
    ):
        with pytest.raises(InvalidValue, match=said):
            schemas(columns_, [0], "upsert")
