"""SQL values as JSON: by column, against a plain model of the mapping."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.server.http.values import MAX_SAFE_INTEGER, fragments, rows_json
from tidemill.types import model as m
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, SqlType


def as_json(values: list[Any], t: SqlType) -> list[Any]:
    array = pa.array(values, arrow_type(t))
    found = [json.loads(text) for text in fragments(array, t).to_pylist()]
    # A slice must heed its offset and length.
    if len(values) > 1:
        part = [json.loads(text) for text in fragments(array[1:], t).to_pylist()]
        assert part == found[1:] or repr(part) == repr(found[1:])
    return found


@pytest.mark.parametrize(
    ("t", "values", "wanted"),
    [
        (m.BOOL, [True, False, None], [True, False, None]),
        (m.INT2, [-1, None], [-1, None]),
        (m.INT8, [2**53, 2**53 + 1, -(2**53), -(2**63)], [2**53, str(2**53 + 1), -(2**53), str(-(2**63))]),
        (m.UINT8, [Decimal(2**64 - 1), Decimal(7), None], [str(2**64 - 1), 7, None]),
        (m.MZ_TIMESTAMP, [1_700_000_000_000], [1_700_000_000_000]),
        (
            m.FLOAT8,
            [0.1, math.nan, math.inf, -math.inf, 1e300, None],
            [0.1, "NaN", "Infinity", "-Infinity", 1e300, None],
        ),
        (m.FLOAT4, [0.1, 3.0], [0.1, 3]),
        (m.numeric(10, 2), [Decimal("1.50"), None], ["1.50", None]),
        (m.TEXT, ["a", 'q"\\', "\n\t\0", "é😀", None, ""], ["a", 'q"\\', "\n\t\0", "é😀", None, ""]),
        (m.BYTEA, [b"\x01\xff"], ["\\x01ff"]),
        (m.DATE, [date(2024, 2, 29)], ["2024-02-29"]),
        (m.TIMESTAMP, [datetime(2024, 2, 29, 12, 0, 0, 500000)], ["2024-02-29 12:00:00.5"]),
        (m.UUID, [bytes(range(16))], ["00010203-0405-0607-0809-0a0b0c0d0e0f"]),
        (m.JSONB, ['{"a": 12345678901234567890}', "null", None], [{"a": 12345678901234567890}, None, None]),
        (m.array(m.INT4), [[1, None, 3], None, []], [[1, None, 3], None, []]),
        (m.list_(m.list_(m.TEXT)), [[["a"], None, []], None], [[["a"], None, []], None]),
        (m.map_(m.INT8), [[("a", 1), ('"', None)], None, []], [{"a": 1, '"': None}, None, {}]),
    ],
    ids=lambda v: str(v) if isinstance(v, SqlType) else "",
)
def test_the_mapping(t: SqlType, values: list[Any], wanted: list[Any]) -> None:
    assert as_json(values, t) == wanted


def test_records_are_objects() -> None:
    t = m.record(Column("a", m.INT4), Column('b"', m.TEXT))
    names = arrow_type(t)
    values = [{names.field(0).name: 1, names.field(1).name: None}, None]
    assert as_json(values, t) == [{"a": 1, 'b"': None}, None]


@given(st.lists(st.none() | st.text()))
def test_any_text_comes_back(values: list[str | None]) -> None:
    clean = [v if v is None else v.encode("utf-8", "ignore").decode() for v in values]
    assert as_json(clean, m.TEXT) == clean


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integers_never_lose_a_digit_in_a_double(values: list[int | None]) -> None:
    for value, shown in zip(values, as_json(values, m.INT8), strict=True):
        if value is None:
            assert shown is None
        elif abs(value) <= MAX_SAFE_INTEGER:
            assert shown == value
        else:
            assert shown == str(value)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles_come_back_exactly(values: list[float]) -> None:
    assert as_json(values, m.FLOAT8) == values


@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1) | st.none(), st.text(alphabet='ab"\\,[]\n', max_size=5))
    )
)
def test_rows_are_joined_in_order(values: list[tuple[int | None, str]]) -> None:
    columns = (Column("n", m.INT4), Column("t", m.TEXT))
    arrays = [pa.array([v[0] for v in values], pa.int32()), pa.array([v[1] for v in values], pa.string())]
    text, count = rows_json(pa.RecordBatch.from_arrays(arrays, names=["n", "t"]), columns)
    assert count == len(values)
    assert json.loads(f"[{text}]") == [list(v) for v in values]


def test_a_relation_without_columns_still_has_rows() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert rows_json(batch, ()) == ("[],[]", 2)
