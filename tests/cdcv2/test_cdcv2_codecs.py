"""Avro and JSON: what goes in comes out, others read it, and bytes that are wrong never become something
else."""

from __future__ import annotations

import datetime
import io
import json
import math
from decimal import Decimal
from random import Random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from tidemill.cdcv2 import AvroCodec, InvalidMessage, JsonCodec, Progress, UpdateColumns, python_hash, sealed
from tidemill.errors import Unsupported

ELEMENT = "element"
ALL_TYPES = pa.schema(
    [
        pa.field("b", pa.bool_()),
        pa.field("small", pa.int16()),
        pa.field("i", pa.int32(), nullable=False),
        pa.field("l", pa.int64()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("utc", pa.timestamp("us", "UTC")),
        pa.field("amount", pa.decimal128(38, 18)),
        pa.field("short", pa.decimal128(9, 2)),
        pa.field("list", pa.list_(pa.field(ELEMENT, pa.string()))),
        pa.field("lists", pa.list_(pa.field(ELEMENT, pa.list_(pa.field(ELEMENT, pa.int64()))))),
        pa.field(
            "rec",
            pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.struct([pa.field("z", pa.binary())]))]),
        ),
    ]
)
WITH_MAP = ALL_TYPES.append(pa.field("m", pa.map_(pa.string(), pa.decimal128(9, 2))))
KINDS = [0, 1, 3]


def _value(rng: Random, t: Any, *, finite: bool = False) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_boolean(t):
        return rng.random() < 0.5
    if pa.types.is_integer(t):
        return rng.choice([0, -1, 1, 63, 64, -65, 2 ** (t.bit_width - 1) - 1, -(2 ** (t.bit_width - 1))])
    if pa.types.is_floating(t):
        special = [] if finite else [math.nan, math.inf, -math.inf]
        return rng.choice([0.0, -0.0, 1.5, 0.1, 3e38, 1e-40, *special])
    if pa.types.is_string(t):
        return rng.choice(["", "a", 'quote " and \\ and \n line', "日本", "x" * 200])
    if pa.types.is_binary(t):
        return rng.randbytes(rng.choice([0, 1, 20]))
    if pa.types.is_date32(t):
        return rng.choice([datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)])
    if pa.types.is_timestamp(t):
        zone = datetime.UTC if t.tz else None
        return datetime.datetime(2026, 11, 15, 1, 2, 3, rng.randrange(10**6), tzinfo=zone)
    if pa.types.is_decimal(t):
        digits = rng.choice([0, 1, -1, 127, 128, -128, -129, 10**t.precision - 1, 1 - 10**t.precision])
        return Decimal(f"{digits}E-{t.scale}")
    if pa.types.is_map(t):
        return [(k, _value(rng, t.item_type, finite=finite)) for k in "abc"[: rng.randrange(4)]]
    if pa.types.is_list(t):
        return [_value(rng, t.value_type, finite=finite) for _ in range(rng.randrange(3))]
    return {t.field(i).name: _value(rng, t.field(i).type, finite=finite) for i in range(t.num_fields)}


def _updates(rng: Random, schema: pa.Schema, kind: int, rows: int, *, finite: bool = False) -> UpdateColumns:
    columns = [
        pa.array([_value(rng, f.type, finite=finite) for _ in range(rows)], f.type)
        if f.nullable
        else pa.array(range(rows), f.type)
        for f in schema
    ]
    shape = (rows, kind) if kind else rows
    times = np.random.default_rng(rng.randrange(2**32)).integers(0, 2**63 - 1, shape)
    diffs = np.array([rng.choice([1, -1, 2**62]) for _ in range(rows)], np.int64)
    return UpdateColumns(pa.RecordBatch.from_arrays(columns, schema=schema), times, diffs)


def _same(a: UpdateColumns, b: UpdateColumns) -> None:
    assert a.data.schema == b.data.schema
    assert repr(a.data.to_pylist()) == repr(b.data.to_pylist())
    assert a.times.tolist() == b.times.tolist() and a.diffs.tolist() == b.diffs.tolist()


def _all(found: list[Any]) -> UpdateColumns:
    return UpdateColumns(
        pa.concat_batches([f.data for f in found]),
        np.concatenate([f.times for f in found]),
        np.concatenate([f.diffs for f in found]),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schema", [ALL_TYPES, WITH_MAP], ids=["plain", "with map"])
def test_round_trips(kind: int, schema: pa.Schema) -> None:
    for seed in range(8):
        rng = Random(f"{kind} {seed}")
        updates = _updates(rng, schema, kind, 1 + seed * 3, finite=seed % 2 == 0)
        avro, text = AvroCodec(schema, kind, schema_id=seed), JsonCodec(schema, kind)
        _same(_all(avro.decode(avro.encode_updates(updates, 7))), updates)
        _same(_all(text.decode(text.encode_updates(updates, 7))), updates)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("digests", [False, True])
def test_progress_round_trips(kind: int, digests: bool) -> None:
    def time(n: int) -> Any:
        return (n,) * kind if kind else n

    last = 2**63 - 1
    said = Progress([time(0)], [time(last)], [(time(3), last), (time(4), 1)])
    said = sealed(said, [-5, 2**63]) if digests else said
    end = Progress([time(4)], [], [])
    for codec in (AvroCodec(ALL_TYPES, kind, digests=digests), JsonCodec(ALL_TYPES, kind, digests=digests)):
        for progress in (said, sealed(end, []) if digests else end):
            [found] = codec.decode(codec.encode(progress), ["here"])
            assert isinstance(found, Progress) and found.origin == "here"
            assert (list(found.lower), list(found.upper), list(found.counts)) == (
                list(progress.lower),
                list(progress.upper),
                list(progress.counts),
            )
            assert (found.seal, list(found.contents or [])) == (progress.seal, list(progress.contents or []))


def test_the_schema_is_that_of_the_design() -> None:
    schema = json.loads(AvroCodec(pa.schema([pa.field("id", pa.int64(), nullable=False)])).avro_schema)
    longs = {"type": "array", "items": "long"}
    assert schema == [
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "update",
                "namespace": "com.materialize.cdc",
                "fields": [
                    {
                        "name": "data",
                        "type": {
                            "type": "record",
                            "name": "data",
                            "fields": [{"name": "id", "type": "long"}],
                        },
                    },
                    {"name": "time", "type": "long"},
                    {"name": "diff", "type": "long"},
                ],
            },
        },
        {
            "type": "record",
            "name": "progress",
            "namespace": "com.materialize.cdc",
            "fields": [
                {"name": "lower", "type": longs},
                {"name": "upper", "type": longs},
                {
                    "name": "counts",
                    "type": {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "counts",
                            "fields": [{"name": "time", "type": "long"}, {"name": "count", "type": "long"}],
                        },
                    },
                },
            ],
        },
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_fastavro_reads_what_we_write_and_we_read_what_it_writes(kind: int) -> None:
    updates = _updates(Random(1), WITH_MAP, kind, 40)
    codec = AvroCodec(WITH_MAP, kind)
    union: Any = fastavro.parse_schema(json.loads(codec.avro_schema))
    [message] = codec.encode_updates(updates)
    source = io.BytesIO(message)
    rows: Any = fastavro.schemaless_reader(source, union, None)
    assert not source.read()
    expected = updates.rows()
    assert [r["diff"] for r in rows] == [d for _, _, d in expected]
    assert [tuple(r["time"]) if kind else r["time"] for r in rows] == [t for _, t, _ in expected]
    for row, (data, _, _) in zip(rows, expected, strict=True):
        for f, value in zip(WITH_MAP, data, strict=True):
            shown = row["data"][f.name]
            if pa.types.is_map(f.type) and value is not None:
                shown = list(shown.items())
            assert repr(shown) == repr(value) or shown == value
    out = io.BytesIO()
    fastavro.schemaless_writer(out, union, rows)
    [back] = codec.decode([out.getvalue()])
    assert isinstance(back, UpdateColumns)
    _same(back, updates)
    # Framed, it is the same behind five bytes.
    [framed] = AvroCodec(WITH_MAP, kind, schema_id=258).encode_updates(updates)
    assert framed == b"\x00\x00\x00\x01\x02" + message


def test_a_writer_with_another_schema_is_resolved() -> None:
    narrow = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("gone", pa.string())])
    wide = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    old = AvroCodec(narrow)
    data = pa.record_batch([pa.array([1, 2], pa.int32()), pa.array(["a", None])], schema=narrow)
    messages = old.encode_updates(UpdateColumns.of(data, [3, 4]))
    [found] = AvroCodec(wide, writer=old.avro_schema).decode(messages)
    assert isinstance(found, UpdateColumns)
    assert found.rows() == [((1,), 3, 1), ((2,), 4, 1)]


def test_a_schema_change_in_the_middle_is_named() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    updates = UpdateColumns.of(pa.record_batch([pa.array([1])], schema=schema), [3])
    codec = AvroCodec(schema, schema_id=1)
    messages = codec.encode_updates(updates) + AvroCodec(schema, schema_id=2).encode_updates(updates)
    with pytest.raises(InvalidMessage, match="schema 2 among those of schema 1") as caught:
        codec.decode(messages, ["offset 7", "offset 8"])
    assert "offset 8" in str(caught.value)
    errors: list[InvalidMessage] = []
    assert len(codec.decode(messages, ["offset 7", "offset 8"], errors)) == 1
    assert [e.origin for e in errors] == ["offset 8"]


def _outcome(codec: Any, message: bytes) -> Any:
    try:
        [found] = codec.decode([message])
    except InvalidMessage:
        return "invalid"
    if isinstance(found, Progress):
        return (list(found.lower), list(found.upper), list(found.counts))
    return repr((found.data.to_pylist(), found.times.tolist(), found.diffs.tolist()))


def _mangled(rng: Random, message: bytes) -> bytes:
    at = rng.randrange(len(message))
    choice = rng.randrange(5)
    if choice == 0:
        return message[:at]
    if choice == 1:
        return message + rng.randbytes(rng.randint(1, 3))
    if choice == 2:
        return message[:at] + rng.randbytes(1) + message[at + 1 :]
    if choice == 3:
        return message[:at] + message[at + 1 :]
    return message[:at] + bytes([message[at] ^ (1 << rng.randrange(8))]) + message[at + 1 :]


FUZZED = pa.schema(
    [
        pa.field("i", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("f", pa.float64()),
        pa.field("l", pa.list_(pa.field(ELEMENT, pa.int64()))),
        pa.field("d", pa.decimal128(9, 2)),
    ]
)


def _fuzz(rounds: int, seed: int) -> None:
    """Whatever is done to the bytes: an error, or exactly what the slow reader makes of them."""
    rng = Random(seed)
    for kind in (0, 2):
        avro, text = AvroCodec(FUZZED, kind), JsonCodec(FUZZED, kind)
        time: Any = (3,) * kind if kind else 3
        for _ in range(rounds):
            updates = _updates(rng, FUZZED, kind, rng.randint(1, 3), finite=True)
            for codec in (avro, text):
                said = Progress([time], [], [(time, 2)])
                message = _mangled(rng, codec.encode(rng.choice([updates, said]))[0])
                found = _outcome(codec, message)
                try:
                    slow = codec._slow(memoryview(message) if codec is avro else message, "x")  # pyright: ignore
                    expected = _outcome(_Given(slow), message)
                except InvalidMessage:
                    expected = "invalid"
                assert found == expected, message
                # Among good ones, the bad one alone is left out.
                good = codec.encode_updates(updates)[0]
                errors: list[InvalidMessage] = []
                together = codec.decode([good, message, good], None, errors)
                assert len(together) + len(errors) == 3
                assert [e.origin for e in errors] == (["message 1"] if found == "invalid" else [])


class _Given:
    def __init__(self, message: Any) -> None:
        self.message = message

    def decode(self, _: Any) -> list[Any]:
        return [self.message]


def test_mangled_bytes() -> None:
    _fuzz(100, 7)


@pytest.mark.chaos
def test_mangled_bytes_long() -> None:
    _fuzz(5_000, Random().randrange(2**32))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"nonsense",
        b"[",
        b"{}",
        b"[1]",
        b'[{"data":{"i":1},"time":1}]',
        b'[{"data":{"i":null},"time":1,"diff":1}]',
        b'[{"data":{"i":1,"x":1},"time":1,"diff":1}]',
        b'[{"data":{"i":1},"time":1,"diff":1,"more":1}]',
        b'[{"data":{"i":1},"time":1.5,"diff":1}]',
        b'[{"data":{"i":1},"time":9223372036854775808,"diff":1}]',
        b'[{"data":{"i":1,"i":2},"time":1,"diff":1}]',
        b'[]} {"u":[]',
        b'[],"u":[]',
        b'[{"data":{"i":1,"s":"\xff"},"time":1,"diff":1}]',
        b'[{"data":{"i":1,"f":NaN},"time":1,"diff":1}]',
        b'[{"data":{"i":true},"time":1,"diff":1}]',
        b'{"lower":[0],"upper":[1],"counts":[{"time":1}]}',
        b'{"lower":[0],"upper":[true],"counts":[]}',
    ],
)
def test_json_that_is_no_message(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match="not a CDCv2 message in JSON"):
        JsonCodec(FUZZED).decode([text])


def test_json_as_people_write_it() -> None:
    text = b"""[
      {"data": {"i": 1, "s": "a"}, "time": 3, "diff": 1}
    ]"""
    [found] = JsonCodec(FUZZED).decode([text])
    assert isinstance(found, UpdateColumns)
    assert found.rows() == [((1, "a", None, None, None), 3, 1)]


def test_no_columns_is_said() -> None:
    for codec in (AvroCodec, JsonCodec):
        with pytest.raises(Unsupported):
            codec(pa.schema([]))


def test_a_stable_hash() -> None:
    """Stored digests outlive processes: these numbers never change."""
    assert python_hash(("a", 1, None, 1.5, b"x"), 3, -1) == 11755935397558535585
