"""PostgreSQL text format, by columns: storage Arrow arrays to the bytes that a client reads, and back.

Called by `server` for results, parameters and COPY, and by `sql` for literals. Output equals PostgreSQL's
byte for byte, for PostgreSQL's types. Input accepts what PostgreSQL accepts, and raises its text and SQLSTATE
otherwise. Nulls stay nulls.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import bytes_of_rows, contiguous, fixed_rows, spans, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire import input_nested, input_numbers, input_strings, input_times
from tidemill.types.wire.columns import as_text
from tidemill.types.wire.output_nested import array_text, map_text, record_text
from tidemill.types.wire.output_numbers import decimal_text, float_text
from tidemill.types.wire.output_times import date_text, interval_text, time_text, timestamp_text

# Text is bytes on the wire, for all types.
_STRINGS = {Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.QCHAR, Kind.UNKNOWN, Kind.VOID, Kind.JSONB}
_INTEGERS = {Kind.INT2, Kind.INT4, Kind.INT8, Kind.UINT2, Kind.UINT4, Kind.MZ_TIMESTAMP, Kind.OID}

# Two digits for each byte, as one 16-bit unit, so that one lookup returns both.
_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), dtype=np.uint16)


def encode_text(array: pa.Array | pa.ChunkedArray, t: SqlType, *, timezone: str = "UTC") -> pa.Array:
    """The column in text format, as clients receive it; `timezone` is the session's, for timestamptz."""
    texts = _encode(contiguous(array), t, timezone)
    return texts if pa.types.is_binary(texts.type) else texts.cast(pa.binary())


def _encode(array: pa.Array, t: SqlType, timezone: str) -> pa.Array:
    kind = t.kind
    if kind in _STRINGS:
        return array.cast(pa.string())
    if kind in _INTEGERS:
        return array.cast(pa.string())
    if kind in (Kind.FLOAT4, Kind.FLOAT8):
        return float_text(array)
    if kind in (Kind.NUMERIC, Kind.UINT8):
        return decimal_text(array, least=(t.shown or 0) if t.precision is None else None)
    if kind is Kind.BOOL:
        return pc.if_else(array, pa.scalar(b"t"), pa.scalar(b"f"))
    if kind is Kind.TIMESTAMP:
        return timestamp_text(array, None)
    if kind is Kind.TIMESTAMPTZ:
        return timestamp_text(array, timezone)
    if kind is Kind.DATE:
        return date_text(array)
    if kind is Kind.TIME:
        return time_text(array)
    if kind is Kind.INTERVAL:
        return interval_text(array)
    if kind is Kind.UUID:
        return _uuid_text(array)
    if kind in (Kind.REGPROC, Kind.REGTYPE):
        return pc.struct_field(array, "name")
    if kind is Kind.BYTEA:
        return _bytea_text(array)

    def encode(child: pa.Array, child_type: SqlType) -> pa.Array:
        return encode_text(child, child_type, timezone=timezone)

    if kind in (Kind.ARRAY, Kind.LIST):
        return array_text(array, t, encode)
    if kind is Kind.MAP:
        return map_text(array, t, encode)
    if kind is Kind.RECORD:
        return record_text(array, t, encode)
    raise Internal(f"type {kind.value} has no text format")


def _uuid_text(array: pa.Array) -> pa.Array:
    rows = fixed_rows(array, 16)
    if rows is None:
        raise Internal("a stored uuid is not 16 bytes long")
    digits = _HEX[rows].view(np.uint8)
    texts = np.full((len(array), 36), ord("-"), dtype=np.uint8)
    for source, target in ((0, 0), (8, 9), (12, 14), (16, 19), (20, 24)):
        width = 12 if source == 20 else 8 if source == 0 else 4
        texts[:, target : target + width] = digits[:, source : source + width]
    return bytes_of_rows(texts, valid_mask(array))


def _bytea_text(array: pa.Array) -> pa.Array:
    offsets, data = spans(array)
    first = int(offsets[0])
    digits = _HEX[data[first : offsets[-1]]].view(np.uint8)
    twice = ((offsets.astype(np.int64) - first) * 2).astype(np.int32)
    buffers = [None, pa.py_buffer(twice), pa.py_buffer(digits)]
    hexed = pa.Array.from_buffers(pa.binary(), len(array), buffers)
    texts = pc.binary_join_element_wise(b"\\x", hexed, b"")
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.binary())) if array.null_count else texts


def decode_text(array: pa.Array | pa.ChunkedArray, t: SqlType, *, timezone: str = "UTC") -> pa.Array:
    """A column of a client's texts (binary or string) in storage form. The first bad value raises
    InvalidField, which knows its row."""
    texts = as_text(contiguous(array))
    kind = t.kind
    if kind in (Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD):

        def decode(child: pa.Array, child_type: SqlType) -> pa.Array:
            return decode_text(child, child_type, timezone=timezone)

        return input_nested.decode(texts, t, decode)
    if kind in input_strings.KINDS:
        result = input_strings.decode(texts, t)
    elif kind in input_times.KINDS:
        result = input_times.decode(texts, t, timezone)
    elif kind in input_numbers.KINDS:
        result = input_numbers.decode(texts, t)
    else:
        raise Internal(f"type {kind.value} has no text format")
    if result.type != arrow_type(t):
        raise Internal(f"type {t} decoded as {result.type}")
    return result
