"""Rows of COPY, as the server writes them, back into columns; and what becomes of each type."""

from __future__ import annotations

import sys
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidemill.client.copy_rows import BinaryRows, CsvRows, rows_of
from tidemill.client.errors import MissingPackage, ProtocolViolation
from tidemill.client.forms import ClientField, held, key_array, shown, unique
from tidemill.client.frames import Frame
from tidemill.engine.api import CopyOptions
from tidemill.server.copy import copy_encoder
from tidemill.types import model
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, SqlType

UUID = bytes(range(16))
UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
# A type; values in storage form; and as the application sees them.
CASES: list[tuple[SqlType, list[Any], list[Any] | None]] = [
    (model.BOOL, [True, False, None], None),
    (model.INT2, [1, -2, None], None),
    (model.INT4, [1, None, -(2**31)], None),
    (model.INT8, [2**63 - 1, None, 0], None),
    (model.UINT2, [65535, None, 0], None),
    (model.UINT4, [2**32 - 1, None, 0], None),
    (model.UINT8, [Decimal(2**64 - 1), None, Decimal(0)], [2**64 - 1, None, 0]),
    (model.FLOAT4, [1.5, None, float("inf")], None),
    (model.FLOAT8, [0.1, None, -1e300], None),
    (model.numeric(10, 2), [Decimal("1.50"), None, Decimal("-0.01")], None),
    (model.NUMERIC, [Decimal("1.5"), None, Decimal(-3)], None),
    (model.TEXT, ["", None, 'a "b", \n\\N é'], None),
    (model.BYTEA, [b"", None, b"\x00\xff,"], None),
    (model.DATE, [date(2026, 11, 15), None, date(1970, 1, 1)], None),
    (model.TIME, [3_600_000_000, None, 1], [time(1), None, time(0, 0, 0, 1)]),
    (model.TIMESTAMPTZ, [1_000_000, None, 0], None),
    (model.INTERVAL, [{"months": 1, "days": -2, "micros": 3}, None, None], None),
    (model.UUID, [UUID, None, UUID], [UUID_TEXT, None, UUID_TEXT]),
    (model.JSONB, ['{"a": 1}', None, "null"], None),
    (model.MZ_TIMESTAMP, [1_794_772_578_968, None, 0], None),
    (model.OID, [7, None, 2**32 - 1], None),
    (model.array(model.INT4), [[1, None], None, []], None),
    (model.array(model.UUID), [[UUID, None], None, []], [[UUID_TEXT, None], None, []]),
]
FIELDS = [ClientField(f"f{i}", t) for i, (t, _, _) in enumerate(CASES)]
TABLE = held([pa.array(values, arrow_type(t)) for t, values, _ in CASES], FIELDS)


def messages(format_: str, table: pa.Table, types: list[SqlType]) -> list[memoryview]:
    """CopyData messages, as the server makes them."""
    null, delimiter = ("", ",") if format_ == "csv" else ("\\N", "\t")
    options = CopyOptions(format=format_, null=null, delimiter=delimiter)
    encoder = copy_encoder([Column(f"f{i}", t) for i, t in enumerate(types)], options)
    rows = [*encoder.start()]
    for batch in table.to_batches():
        rows += encoder.encode(batch).to_pylist()
    return [memoryview(row) for row in [*rows, *encoder.end()]]


def test_binary_comes_back_whatever_the_blocks() -> None:
    rows = messages("binary", TABLE, [f.type for f in FIELDS])
    for cut in range(len(rows) + 1):
        decoder = BinaryRows(FIELDS)
        found = pa.concat_tables([decoder.decode(rows[:cut]), decoder.decode(rows[cut:])])
        assert found.equals(TABLE)


def test_csv_comes_back_whatever_the_blocks() -> None:
    rows = messages("csv", TABLE, [f.type for f in FIELDS])
    for cut in range(len(rows) + 1):
        decoder = CsvRows(FIELDS)
        assert pa.concat_tables([decoder.decode(rows[:cut]), decoder.decode(rows[cut:])]).equals(TABLE)


def test_many_rows_and_none() -> None:
    table = pa.concat_tables([TABLE] * 1000).combine_chunks()
    assert BinaryRows(FIELDS).decode(messages("binary", table, [f.type for f in FIELDS])).equals(table)
    empty = TABLE.slice(0, 0)
    assert BinaryRows(FIELDS).decode(messages("binary", empty, [f.type for f in FIELDS])).equals(empty)


def test_what_the_application_sees() -> None:
    table = shown(TABLE, FIELDS)
    for field, (t, values, as_seen) in zip(FIELDS, CASES, strict=True):
        wanted = pa.array(values, arrow_type(t)).to_pylist() if as_seen is None else as_seen
        assert table.column(field.name).to_pylist() == wanted, t


def test_numerics_have_the_digits_that_they_need() -> None:
    small, large = "1E-18", "12345678901234567890.123456789012345678"
    values = [Decimal(1), Decimal(0), Decimal("-1.50"), None, Decimal(small), Decimal(large)]
    fields = [
        ClientField("sum", model.NUMERIC),
        ClientField("price", model.numeric(10, 2)),
        ClientField("all", model.array(model.NUMERIC)),
    ]
    prices = [Decimal("1.50")] * len(values)
    columns = [values, prices, [[v] for v in values]]
    table = held([pa.array(c, arrow_type(f.type)) for c, f in zip(columns, fields, strict=True)], fields)
    rows = Frame(table, fields).rows()
    wanted = ["1", "0", "-1.5", "None", small, large]
    assert [str(row["sum"]) for row in rows] == wanted
    assert [str(row["all"][0]) for row in rows] == wanted
    assert {str(row["price"]) for row in rows} == {"1.50"}


def test_a_type_that_is_not_known_here_comes_as_text() -> None:
    opaque = ClientField("m", model.TEXT, opaque=True)
    map_type = model.map_(model.INT4)
    assert isinstance(rows_of([FIELDS[0], opaque]), CsvRows)
    assert isinstance(rows_of(FIELDS), BinaryRows)
    table = pa.table({"a": [1, 2], "m": pa.array([[("x", 1)], None], arrow_type(map_type))})
    rows = messages("csv", table, [model.INT8, map_type])
    found = CsvRows([ClientField("a", model.INT8), opaque]).decode(rows)
    assert found.column(1).to_pylist() == ["{x=>1}", None]


@pytest.mark.parametrize("damage", ["header", "count", "short", "long"])
def test_damaged_rows_are_found(damage: str) -> None:
    fields = [ClientField("a", model.INT4), ClientField("b", model.TEXT)]
    table = held([pa.array([1, 2], pa.int32()), pa.array(["x", "y"])], fields)
    rows = [bytes(row) for row in messages("binary", table, [model.INT4, model.TEXT])]
    match damage:
        case "header":
            rows[0] = b"nonsense" + rows[0]
        case "count":
            rows[1] = b"\x00\x03" + rows[1][2:]
        case "short":
            rows[1] = rows[1][:-1]
        case _:
            rows[1] += b"\x00"
    with pytest.raises(ProtocolViolation):
        BinaryRows(fields).decode([memoryview(row) for row in rows])


@pytest.mark.parametrize("format_", ["binary", "csv"])
def test_progress_is_seen_before_rows_are_decoded(format_: str) -> None:
    types = [model.MZ_TIMESTAMP, model.BOOL, model.INT8, model.TEXT]
    fields = [ClientField(f"f{i}", t) for i, t in enumerate(types)]
    columns = [[0, 10_000, 2**63 - 1], [True, False, True], [None, 1, None], [None, "t,t", None]]
    arrays = [pa.array(c, arrow_type(t)) for c, t in zip(columns, types, strict=True)]
    rows = messages(format_, held(arrays, fields), types)[:3]
    decoder = BinaryRows(fields) if format_ == "binary" else CsvRows(fields)
    assert [decoder.progressed(row) for row in rows] == [True, False, True]
    decoder.decode(rows)
    assert [decoder.progressed(row) for row in rows[1:]] == [False, True]
    assert not decoder.progressed(memoryview(b"\xff\xff"))


def test_names_are_unique() -> None:
    assert unique(["a", "b", "a", "a_2", "a"]) == ["a", "b", "a_3", "a_2", "a_4"]


def test_keys_as_the_application_writes_them() -> None:
    assert key_array(UUID_TEXT, model.UUID).to_pylist() == [UUID]
    assert key_array(5, model.UINT8).to_pylist() == [Decimal(5)]
    assert key_array(None, model.INT4).to_pylist() == [None]
    assert key_array(time(1), model.TIME).to_pylist() == [3_600_000_000]


def test_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Frame(TABLE.select([2, 11]), [FIELDS[2], FIELDS[11]])
    assert len(frame) == 3
    assert frame.to_polars().shape == (3, 2)
    assert frame.rows()[1] == {"f2": None, "f11": None}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="needs pandas"):
        frame.to_pandas()
