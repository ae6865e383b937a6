"""Round trips of every type over the wire, and the edges that PostgreSQL cannot judge (its lack of lists,
maps, uint)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import NESTED, SCALARS, TYPES, columns

from tidemill.errors import InvalidValue, TidemillError
from tidemill.types import model
from tidemill.types.arrow import arrow_type
from tidemill.types.identity import canonical
from tidemill.types.model import Kind, SqlType
from tidemill.types.parse_name import parse_type
from tidemill.types.wire import (
    InvalidField,
    decode_binary,
    decode_text,
    encode_binary,
    encode_text,
    format_value,
    oid,
    parse_literal,
    type_of_oid,
)
from tidemill.types.wire.oids import MZ_TIMESTAMP_OID


def same(left: pa.Array, right: pa.Array, t: SqlType) -> bool:
    """Equal as rows are: NaN is NaN. (Bytes tell what Arrow's equality does not.)"""
    return encode_binary(canonical(left, t), t).equals(encode_binary(canonical(right, t), t))


def column_of(rows: list[Any], t: SqlType) -> pa.Array:
    target = arrow_type(t)
    if t.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        # By way of integers: Python's own dates end at the years 1 and 9999.
        return pa.array(rows, pa.int32() if t.kind is Kind.DATE else pa.int64()).cast(target)
    if t.kind is Kind.ARRAY and t.element is not None and t.element.kind is Kind.TIMESTAMPTZ:
        return pa.array(rows, pa.list_(pa.field("element", pa.int64()))).cast(target)
    return pa.array(rows, target)


@pytest.mark.parametrize("t", TYPES, ids=str)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_round_trips(t: SqlType, data: st.DataObject) -> None:
    rows = data.draw(columns(t))
    skip = data.draw(st.integers(0, 2))
    column = column_of(rows, t).slice(skip)
    text, binary = encode_text(column, t), encode_binary(column, t)
    assert pa.types.is_binary(text.type) and pa.types.is_binary(binary.type)
    for encoded in (text, binary):
        assert encoded.is_null().equals(column.is_null())
    back = decode_text(text, t)
    assert back.type == arrow_type(t)
    back.validate(full=True)
    assert same(back, column, t)
    again = decode_binary(binary, t)
    again.validate(full=True)
    assert same(again, column, t)


@pytest.mark.parametrize("t", TYPES, ids=str)
@given(
    raw=st.one_of(
        st.binary(max_size=30), st.text(alphabet='{}(),"\\=> 019-:.aTeinfPx\0', max_size=20).map(str.encode)
    )
)
@settings(max_examples=12, deadline=None)
def test_garbage_is_refused_with_an_error_of_ours_or_read(t: SqlType, raw: bytes) -> None:
    """Whatever a client sends, it is a value or a deliberate error; and what was read can be printed and read
    again."""
    for decode in (decode_text, decode_binary):
        try:
            column = decode(pa.array([None, raw], pa.binary()), t)
        except TidemillError as error:
            assert len(error.sqlstate) == 5 and error.sqlstate != "XX001"
            continue
        column.validate(full=True)
        assert same(decode_text(encode_text(column, t), t), column, t)


@pytest.mark.parametrize(
    ("type_text", "text", "shown"),
    [
        ("uint2", "65535", "65535"),
        ("uint8", "18446744073709551615", "18446744073709551615"),
        ("mz_timestamp", "1700000000000", "1700000000000"),
        ("numeric", "1.500", "1.5"),
        ("numeric", "100", "100"),
        ("numeric", "-0", "0"),
        ("numeric", "0.1234567890123456785", "0.123456789012345679"),
        ("int4 list", "{1,NULL,3}", "{1,NULL,3}"),
        ("int4 list list", "{{1,2},NULL,{}}", "{{1,2},NULL,{}}"),
        ("text list list", '{{"a b"},{"{"}}', '{{"a b"},{"{"}}'),
        ("map[text=>int4]", '{ b => 1, "a c" => NULL, b=>2}', '{"a c"=>NULL,b=>2}'),
        ("map[text=>int4 list]", "{a=>{1,2}}", "{a=>{1,2}}"),
        ("record(a int4, b text)", '(1,"x, ""y""")', '(1,"x, ""y""")'),
        ("record(a int4, b text)", "(,)", "(,)"),
        ("jsonb", '{"b": 1.0, "a": [1e2, 1.50]}', '{"a": [100, 1.5], "b": 1}'),
        ("bpchar", "ab ", "ab "),
    ],
)
def test_own_types_and_listed_differences(type_text: str, text: str, shown: str) -> None:
    t = parse_type(type_text)
    assert format_value(parse_literal(text, t), t) == shown


@pytest.mark.parametrize(
    ("type_text", "text", "sqlstate", "primary"),
    [
        ("uint2", "-1", "22003", 'value "-1" is out of range for type uint2'),
        ("uint4", "4294967296", "22003", 'value "4294967296" is out of range for type uint4'),
        ("uint8", "x", "22P02", 'invalid input syntax for type uint8: "x"'),
        ("mz_timestamp", "-1", "22003", 'value "-1" is out of range for type mz_timestamp'),
        ("numeric", "1e20", "22003", "numeric field overflow"),
        ("numeric", "123456789012345678901234567890123456789012345", "22003", "numeric field overflow"),
        ("numeric", "NaN", "0A000", '"NaN" is not supported for type numeric'),
        ("int4[]", "{{1},{2}}", "0A000", "arrays of several dimensions are not supported"),
        ("int4[]", "[0:1]={1,2}", "0A000", "arrays with a lower bound other than 1 are not supported"),
        ("int4[]", "{{}", "0A000", "arrays of several dimensions are not supported"),
        ("int4 list", "1", "22P02", 'malformed list literal: "1"'),
        ("map[text=>int4]", "{a}", "22P02", 'malformed map literal: "{a}"'),
        ("map[text=>int4]", "{NULL=>1}", "22P02", 'malformed map literal: "{NULL=>1}"'),
        ("record(a int4, b text)", "(1)", "22P02", 'malformed record literal: "(1)"'),
        ("record(a int4, b text)", "(1,2,3)", "22P02", 'malformed record literal: "(1,2,3)"'),
        ("record(a int4, b text)", "1,2", "22P02", 'malformed record literal: "1,2"'),
        ("date", "today", "22007", 'invalid input syntax for type date: "today"'),
        ("timestamp", "now", "22007", 'invalid input syntax for type timestamp: "now"'),
    ],
)
def test_refusals(type_text: str, text: str, sqlstate: str, primary: str) -> None:
    with pytest.raises(TidemillError) as caught:
        parse_literal(text, parse_type(type_text))
    assert (caught.value.sqlstate, caught.value.primary) == (sqlstate, primary)


def test_bytes_that_are_no_text() -> None:
    for raw, shown in (
        (b"a\xff", "0xff"),
        (b"\xc3(", "0xc3 0x28"),
        (b"a\0b", "0x00"),
        (b"\xf0\x9f\x98", "0xf0 0x9f 0x98"),
    ):
        with pytest.raises(InvalidField) as caught:
            decode_text(pa.array([b"fine", raw], pa.binary()), model.TEXT)
        assert caught.value.primary == f'invalid byte sequence for encoding "UTF8": {shown}'
        assert (caught.value.sqlstate, caught.value.row) == ("22021", 1)


@pytest.mark.parametrize(
    "t", [model.INT4, model.UUID, model.numeric(5, 2), model.array(model.INT4), model.DATE], ids=str
)
def test_binary_of_the_wrong_length(t: SqlType) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_binary(pa.array([None, b"\0\0\0"], pa.binary()), t)
    assert caught.value.sqlstate == "22P03"


def test_oids_go_both_ways() -> None:
    for t in SCALARS:
        if t.kind is not Kind.MZ_TIMESTAMP:
            found = type_of_oid(oid(t))
            assert found is not None and found.kind is t.kind
            in_array = type_of_oid(oid(model.array(t)))
            assert in_array is not None and in_array.element is not None and in_array.element.kind is t.kind
    assert type_of_oid(MZ_TIMESTAMP_OID) == model.MZ_TIMESTAMP
    assert type_of_oid(0) is None
    assert all(oid(t) > 0 for t in NESTED)


def test_chunked_columns_and_empty_ones() -> None:
    chunked = pa.chunked_array([pa.array([1, None]), pa.array([3])])
    assert encode_text(chunked, model.INT8).to_pylist() == [b"1", None, b"3"]
    assert encode_binary(pa.chunked_array([], pa.int64()), model.INT8).to_pylist() == []
    for t in TYPES:
        nothing = pa.array([], pa.binary())
        assert decode_text(nothing, t).type == decode_binary(nothing, t).type == arrow_type(t)
        assert (
            len(encode_text(pa.array([], arrow_type(t)), t))
            == len(encode_binary(pa.array([], arrow_type(t)), t))
            == 0
        )


def test_a_numeric_shows_as_many_digits_as_its_query_tells() -> None:
    plain, told = model.NUMERIC, replace(model.NUMERIC, shown=2)
    texts = ["2.5", "0", "-1", "-0.25", "100", None, "99999999999999999999.99"]
    column = decode_text(pa.array(texts), plain)
    shown = [b"2.50", b"0.00", b"-1.00", b"-0.25", b"100.00", None, b"99999999999999999999.99"]
    assert encode_text(column, told).to_pylist() == shown
    assert encode_text(column, plain).to_pylist() == [None if t is None else t.encode() for t in texts]
    fixed = decode_text(pa.array(texts), model.numeric(38, 2))
    assert encode_binary(column, told).to_pylist() == encode_binary(fixed, model.numeric(38, 2)).to_pylist()
    assert encode_text(pa.array([[v] for v in column]), model.array(told)).to_pylist()[0] == b"{2.50}"
    # More digits than were told are never hidden; nor are types others for what they show.
    longer = decode_text(pa.array(["1.234"]), plain)
    assert encode_text(longer, told).to_pylist() == [b"1.234"]
    assert told == plain and model.face(told) != model.face(plain) and model.plain(told).shown is None
