"""PostgreSQL binary format, by columns: storage Arrow arrays to the bytes that a client reads, and back.

Called by `server` for results, parameters and COPY in binary. Layouts are those of PostgreSQL's send and
receive functions; unsigned integers use the layout of signed ones of the same width. Nulls stay nulls.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal, InvalidValue
from tidemill.types import model, wide
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import bytes_of_rows, contiguous, fixed_rows, numbers, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import struct_array
from tidemill.types.wire import binary_nested, binary_numeric, input_strings
from tidemill.types.wire.binary_numeric import bad_binary
from tidemill.types.wire.calendar import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    FIRST_DAY,
    FIRST_TIMESTAMP,
    LAST_DAY,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    POSTGRES_EPOCH_DAYS,
    POSTGRES_EPOCH_MICROS,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)
from tidemill.types.wire.columns import InvalidField, as_text
from tidemill.types.wire.oids import MZ_TIMESTAMP_PRECISION

_STRINGS = {Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.QCHAR, Kind.UNKNOWN, Kind.VOID}
_NESTED = {Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD}
# The types on the wire, in big-endian order.
_FIXED: dict[Kind, str] = {
    Kind.BOOL: ">u1",
    Kind.INT2: ">i2",
    Kind.INT4: ">i4",
    Kind.INT8: ">i8",
    Kind.UINT2: ">u2",
    Kind.UINT4: ">u4",
    Kind.UINT8: ">u8",
    Kind.OID: ">u4",
    Kind.FLOAT4: ">f4",
    Kind.FLOAT8: ">f8",
    Kind.DATE: ">i4",
    Kind.TIME: ">i8",
    Kind.TIMESTAMP: ">i8",
    Kind.TIMESTAMPTZ: ">i8",
}
_INTERVAL = np.dtype([("micros", ">i8"), ("days", ">i4"), ("months", ">i4")])
_JSONB_VERSION = b"\x01"
# binary_slice without an end fails for an empty array.
_END = 2**31 - 1


def encode_binary(array: pa.Array | pa.ChunkedArray, t: SqlType) -> pa.Array:
    """The column in binary format, as clients receive it."""
    column = contiguous(array)
    kind = t.kind
    if kind in _STRINGS or kind in (Kind.BYTEA, Kind.UUID):
        return column.cast(pa.binary())
    if kind in _FIXED:
        return _rows(_to_wire(column, kind).astype(_FIXED[kind]), valid_mask(column))
    if kind in (Kind.REGPROC, Kind.REGTYPE):
        return encode_binary(pc.struct_field(column, "oid"), model.OID)
    if kind is Kind.NUMERIC:
        return binary_numeric.encode(column, least=(t.shown or 0) if t.precision is None else None)
    if kind is Kind.MZ_TIMESTAMP:
        return binary_numeric.encode(column.cast(pa.decimal128(19, 0)), least=None)
    if kind is Kind.JSONB:
        return pc.binary_join_element_wise(_JSONB_VERSION, column.cast(pa.binary()), b"")
    if kind is Kind.INTERVAL:
        raw = np.empty(len(column), dtype=_INTERVAL)
        for i, name in enumerate(("months", "days", "micros")):
            raw[name] = numbers(column.field(i), np.int64)
        return _rows(raw, valid_mask(column))
    if kind in _NESTED:
        return binary_nested.encode(column, t, encode_binary)
    raise Internal(f"type {kind.value} has no binary format")


def _rows(values: np.ndarray, valid: np.ndarray) -> pa.Array:
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    return bytes_of_rows(raw, valid)


def _to_wire(column: pa.Array, kind: Kind) -> np.ndarray:
    if kind is Kind.BOOL:
        return pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    if kind is Kind.UINT8:
        return wide.words(column)[0]
    if kind in (Kind.FLOAT4, Kind.FLOAT8):
        return numbers(column, f"f{column.type.bit_width // 8}")
    values = numbers(column, np.int64)
    if kind is Kind.DATE:
        shifted = values - POSTGRES_EPOCH_DAYS
        return np.where((values == DATE_INFINITY) | (values == DATE_MINUS_INFINITY), values, shifted)
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        shifted = values - POSTGRES_EPOCH_MICROS
        return np.where(
            (values == TIMESTAMP_INFINITY) | (values == TIMESTAMP_MINUS_INFINITY), values, shifted
        )
    return values


def decode_binary(array: pa.Array | pa.ChunkedArray, t: SqlType) -> pa.Array:
    """A column of a client's binary values in storage form. The first bad value raises InvalidField."""
    column = contiguous(array)
    kind = t.kind
    if kind in _STRINGS:
        return input_strings.fit_length(as_text(column), t)
    if kind is Kind.BYTEA:
        return column.cast(pa.binary())
    if kind is Kind.UUID:
        _fixed(column, 16)
        return column.cast(pa.binary())
    if kind in _FIXED:
        width = np.dtype(_FIXED[kind]).itemsize
        raw = np.ascontiguousarray(_fixed(column, width)).view(_FIXED[kind]).reshape(len(column))
        return _from_wire(raw, kind, valid_mask(column))
    if kind is Kind.NUMERIC:
        return binary_numeric.decode(column, t)
    if kind is Kind.MZ_TIMESTAMP:
        return _mz_timestamps(binary_numeric.decode(column, model.numeric(38, 0)))
    if kind is Kind.JSONB:
        return _jsonb(column)
    if kind is Kind.INTERVAL:
        raw = np.ascontiguousarray(_fixed(column, 16)).view(_INTERVAL).reshape(len(column))
        fields = [
            pa.array(raw["months"].astype(np.int32)),
            pa.array(raw["days"].astype(np.int32)),
            pa.array(raw["micros"].astype(np.int64)),
        ]
        return struct_array(fields, valid_mask(column), arrow_type(t))
    if kind in _NESTED:
        return binary_nested.decode(column, t, decode_binary)
    raise Internal(f"type {kind.value} has no binary format")


def _fixed(column: pa.Array, width: int) -> np.ndarray:
    rows = fixed_rows(column, width)
    if rows is None:
        wrong = pc.fill_null(pc.not_equal(pc.binary_length(column), width), False)
        raise InvalidField(bad_binary(), int(pc.index(wrong, True).as_py()))
    return rows


def _from_wire(raw: np.ndarray, kind: Kind, valid: np.ndarray) -> pa.Array:
    target = arrow_type(SqlType(kind))
    if kind is Kind.BOOL:
        return pa.array(raw != 0, mask=~valid)
    if kind is Kind.UINT8:
        low = raw.astype(np.uint64)
        limbs = [low & np.uint64(0xFFFFFFFF), low >> np.uint64(32)]
        words = wide.from_magnitude(limbs, np.zeros(len(raw), np.bool_))
        return pc.if_else(pa.array(valid), wide.decimals(*words, None, target), pa.scalar(None, target))
    if kind in (Kind.FLOAT4, Kind.FLOAT8):
        return pa.array(raw.astype(raw.dtype.newbyteorder("=")), target, mask=~valid)
    values = raw.astype(np.int64)
    if kind is Kind.DATE:
        infinite = (values == DATE_INFINITY) | (values == DATE_MINUS_INFINITY)
        values = np.where(infinite, values, values + POSTGRES_EPOCH_DAYS)
        _check(valid & ~infinite & ((values < FIRST_DAY) | (values > LAST_DAY)), "date out of range")
        return pa.array(values.astype(np.int32), mask=~valid).cast(target)
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        infinite = (values == TIMESTAMP_INFINITY) | (values == TIMESTAMP_MINUS_INFINITY)
        low, high = FIRST_TIMESTAMP - POSTGRES_EPOCH_MICROS, LAST_TIMESTAMP - POSTGRES_EPOCH_MICROS
        _check(valid & ~infinite & ((values < low) | (values > high)), "timestamp out of range")
        values = np.where(infinite, values, values + POSTGRES_EPOCH_MICROS)
    elif kind is Kind.TIME:
        _check(valid & ((values < 0) | (values > MICROS_PER_DAY)), "time out of range")
    return pa.array(values, mask=~valid).cast(target)


def _check(wrong: np.ndarray, text: str) -> None:
    if bool(wrong.any()):
        raise InvalidField(InvalidValue(text, sqlstate="22008"), int(wrong.argmax()))


def _mz_timestamps(values: pa.Array) -> pa.Array:
    """An mz_timestamp arrives as numeric(39,0); its storage has 63 bits."""
    limit = pa.scalar(2**63 - 1).cast(pa.decimal128(38, 0))
    wrong = pc.fill_null(
        pc.or_(pc.less(values, pa.scalar(0).cast(limit.type)), pc.greater(values, limit)), False
    )
    row = int(pc.index(wrong, True).as_py())
    if row >= 0:
        shown = values[row].as_py()
        text = f'value "{shown}" is out of range for type mz_timestamp'
        detail = f"On the wire it is numeric({MZ_TIMESTAMP_PRECISION},0), but times are below 2^63."
        raise InvalidField(InvalidValue(text, detail=detail, sqlstate="22003"), row)
    return values.cast(pa.int64())


def _jsonb(column: pa.Array) -> pa.Array:
    """A version byte, then text."""
    versions = pc.binary_slice(column, 0, 1)
    wrong = pc.fill_null(pc.not_equal(versions, _JSONB_VERSION), False)
    row = int(pc.index(wrong, True).as_py())
    if row >= 0:
        found = versions[row].as_py()
        bad = InvalidValue(f"unsupported jsonb version number {found[0] if found else 0}", sqlstate="XX000")
        raise InvalidField(bad, row)
    return input_strings.decode(as_text(pc.binary_slice(column, 1, _END)), SqlType(Kind.JSONB))
