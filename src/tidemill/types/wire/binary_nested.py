"""PostgreSQL binary format of arrays, lists, maps and records.

The children are encoded as one column, then framed and joined. Arrays and records use PostgreSQL's layouts,
and a list uses the layout of an array. PostgreSQL has no maps; a map uses the layout of hstore: the number of
entries, then each key and value, preceded by its length (-1 for NULL).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue, Unsupported
from tidemill.types import model
from tidemill.types.arrow import arrow_type, element_type
from tidemill.types.columns import bytes_of_rows, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import (
    list_array,
    list_parts,
    map_array,
    sorted_map_parts,
    struct_array,
    struct_parts,
)
from tidemill.types.wire.binary_numeric import bad_binary
from tidemill.types.wire.columns import InvalidField
from tidemill.types.wire.oids import oid

Code = Callable[[pa.Array, SqlType], pa.Array]

_NULL = pa.scalar(None, pa.binary())
_NULL_LENGTH = b"\xff\xff\xff\xff"


def encode(array: pa.Array, t: SqlType, encode_child: Code) -> pa.Array:
    if t.kind is Kind.RECORD:
        framed = _record(array, t, encode_child)
    elif t.kind is Kind.MAP:
        offsets, keys, values = sorted_map_parts(array)
        pairs = pc.binary_join_element_wise(
            _framed(keys.cast(pa.binary())), _framed(encode_child(values, element_type(t))), b""
        )
        framed = pc.binary_join_element_wise(_int4(np.diff(offsets)), _joined(pairs, offsets), b"")
    else:
        offsets, children = list_parts(array)
        framed = _list(offsets, children, element_type(t), encode_child)
    return pc.if_else(pa.array(valid_mask(array)), framed, _NULL) if array.null_count else framed


def _list(offsets: np.ndarray, children: pa.Array, element: SqlType, encode_child: Code) -> pa.Array:
    """Dimensions (0 or 1), whether there is a null, the element's OID, length and lower bound, elements."""
    counts = np.diff(offsets)
    nulls = np.concatenate([[0], np.cumsum(~valid_mask(children))])
    has_null = (nulls[offsets[1:]] - nulls[offsets[:-1]]) > 0
    head = np.empty((len(counts), 5), dtype=">i4")
    head[:, 0] = counts > 0
    head[:, 1] = has_null
    head[:, 2] = oid(element)
    head[:, 3] = counts
    head[:, 4] = 1
    full = bytes_of_rows(head.view(np.uint8).reshape(len(counts), 20), np.ones(len(counts), np.bool_))
    # An empty array has no dimensions, and therefore neither length nor lower bound.
    short = pc.binary_slice(full, 0, 12)
    heads = pc.if_else(pa.array(counts > 0), full, short)
    return pc.binary_join_element_wise(heads, _joined(_framed(encode_child(children, element)), offsets), b"")


def _record(array: pa.Array, t: SqlType, encode_child: Code) -> pa.Array:
    pieces: list[pa.Array] = [pa.array([struct.pack("!i", len(t.fields))] * len(array), pa.binary())]
    for values, column in zip(struct_parts(array), t.fields, strict=True):
        pieces.append(pa.array([struct.pack("!I", oid(column.type))] * len(array), pa.binary()))
        pieces.append(_framed(encode_child(values, column.type)))
    return pc.binary_join_element_wise(*pieces, b"")


def _framed(values: pa.Array) -> pa.Array:
    """Each value preceded by its length; a null has the length -1."""
    lengths = _int4(pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False))
    return pc.fill_null(pc.binary_join_element_wise(lengths, values, b""), _NULL_LENGTH)


def _int4(numbers: np.ndarray) -> pa.Array:
    raw = numbers.astype(">i4").view(np.uint8).reshape(len(numbers), 4)
    return bytes_of_rows(raw, np.ones(len(numbers), np.bool_))


def _joined(values: pa.Array, offsets: np.ndarray) -> pa.Array:
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values), b"")


def decode(array: pa.Array, t: SqlType, decode_child: Code) -> pa.Array:
    valid = valid_mask(array)
    rows = [None if raw is None else _Cursor(raw) for raw in array.to_pylist()]
    if t.kind is Kind.RECORD:
        return _decode_records(rows, t, decode_child, valid)
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    for row, cursor in enumerate(rows):
        if cursor is not None:
            try:
                if t.kind is Kind.MAP:
                    _read_map(cursor, keys, values)
                else:
                    _read_list(cursor, element_type(t), values)
                cursor.end()
            except InvalidValue as error:
                raise InvalidField(error, row) from None
        offsets[row + 1] = len(values)
    try:
        items = decode_child(pa.array(values, pa.binary()), element_type(t))
    except InvalidField as error:
        raise InvalidField(error, int(np.searchsorted(offsets, error.row, side="right")) - 1) from None
    if t.kind is Kind.MAP:
        return map_array(
            decode_child(pa.array(keys, pa.binary()), model.TEXT), items, offsets, valid, arrow_type(t)
        )
    return list_array(items, offsets, valid, arrow_type(t))


def _read_list(cursor: _Cursor, element: SqlType, values: list[bytes | None]) -> None:
    dimensions, _flags, found = cursor.int4(), cursor.int4(), cursor.int4()
    if found != oid(element):
        raise InvalidValue(
            f"binary data has array element type {found} instead of expected {oid(element)}", sqlstate="42804"
        )
    if dimensions == 0:
        return
    if dimensions != 1:
        raise Unsupported("arrays of several dimensions are not supported", hint="Use a list of lists.")
    count = cursor.int4()
    if cursor.int4() != 1:
        raise Unsupported("arrays with a lower bound other than 1 are not supported")
    if not 0 <= count <= cursor.left() // 4:
        raise bad_binary()
    values.extend(cursor.value() for _ in range(count))


def _read_map(cursor: _Cursor, keys: list[bytes | None], values: list[bytes | None]) -> None:
    count = cursor.int4()
    if not 0 <= count <= cursor.left() // 8:
        raise bad_binary()
    entries: dict[bytes, bytes | None] = {}
    for _ in range(count):
        key = cursor.value()
        if key is None:
            raise bad_binary()
        entries[key] = cursor.value()
    keys.extend(entries)
    values.extend(entries.values())


def _decode_records(
    rows: list[_Cursor | None], t: SqlType, decode_child: Code, valid: np.ndarray
) -> pa.Array:
    fields: list[list[bytes | None]] = [[] for _ in t.fields]
    for row, cursor in enumerate(rows):
        try:
            if cursor is not None and cursor.int4() != len(fields):
                raise bad_binary()
            for column, values in zip(t.fields, fields, strict=True):
                if cursor is not None and cursor.int4() != oid(column.type):
                    raise bad_binary()
                values.append(None if cursor is None else cursor.value())
            if cursor is not None:
                cursor.end()
        except InvalidValue as error:
            raise InvalidField(error, row) from None
    columns = zip(t.fields, fields, strict=True)
    children = [decode_child(pa.array(values, pa.binary()), column.type) for column, values in columns]
    return struct_array(children, valid, arrow_type(t))


class _Cursor:
    """Reads the bytes of one value from the front. Missing or extra bytes are `incorrect binary data
    format`."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def left(self) -> int:
        return len(self.raw) - self.at

    def int4(self) -> int:
        if self.left() < 4:
            raise bad_binary()
        self.at += 4
        return int(struct.unpack_from("!i", self.raw, self.at - 4)[0])

    def value(self) -> bytes | None:
        length = self.int4()
        if length == -1:
            return None
        if not 0 <= length <= self.left():
            raise bad_binary()
        self.at += length
        return self.raw[self.at - length : self.at]

    def end(self) -> None:
        if self.left():
            raise bad_binary()
