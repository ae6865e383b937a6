"""Every decoder on batches of any form: empty, of nulls, slices of others."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tidemill.decode.formats import open_decoder
from tidemill.decode.protobuf import compiled
from tidemill.decode.resolve import csv_format, plain_format, protobuf_inline, regex_format
from tidemill.types.arrow import arrow_type

NESTED = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": {"type": "array", "items": "string"}},
        {"name": "m", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "u", "type": ["null", "int", "string", {"type": "record", "name": "I", "fields": []}]},
    ],
}
PROTO = """syntax = "proto3";
message M { repeated string a = 1; map<string, int32> m = 2; N n = 3; }
message N { }"""
CASES: list[tuple[dict[str, Any], bytes]] = [
    ({"format": "avro", "schema": json.dumps(NESTED), "framed": False}, b"\2\2x\0\2\2k\2\6\0\4\2y"),
    ({"format": "avro", "schema": '"int"', "framed": True}, b"\0\0\0\0\1\2"),
    (plain_format("json").format, b'{"a":1}'),
    (plain_format("text").format, b"x"),
    (plain_format("bytes").format, b"x"),
    (csv_format(2).format, b"a,b"),
    (regex_format("(.)").format, b"x"),
    (protobuf_inline("M", compiled(PROTO, {})).format, b"\x0a\1x\x12\5\x0a\1k\x10\3\x1a\0"),
]


@pytest.mark.parametrize(
    ("format_", "message"), CASES, ids=lambda c: c["format"] if isinstance(c, dict) else ""
)
def test_batches_of_any_form(format_: dict[str, Any], message: bytes) -> None:
    decoder = open_decoder(format_)
    single = decoder.decode(pa.array([message], pa.binary()))
    assert single.errors is None
    row = [column[0].as_py() for column in single.columns]
    assert None not in row
    whole = pa.array([None, message, b"\xff\xff", message, None, message] * 20, pa.binary())
    for batch in (
        pa.array([], pa.binary()),
        pa.nulls(3, pa.binary()),
        whole.slice(3, 1),
        whole.slice(3, 3),
        whole.slice(1, 0),
        whole.slice(5),
        whole,
    ):
        decoded = decoder.decode(batch)
        for column, array in zip(decoder.columns, decoded.columns, strict=True):
            assert array.type == arrow_type(column.type)
            array.validate(full=True)
        for i, given in enumerate(batch.to_pylist()):
            found = [array[i].as_py() for array in decoded.columns]
            error = None if decoded.errors is None else decoded.errors[i].as_py()
            if given == message:
                assert (found, error) == (row, None)
            elif given is None:
                assert (found, error) == ([None] * len(row), None)
            elif format_["format"] != "bytes":
                assert error is not None
