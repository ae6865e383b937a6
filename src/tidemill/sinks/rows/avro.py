"""Rows in Avro: the schema of a relation's columns, and their bytes.

Types are those that readers of Avro know: decimals, dates, times and timestamps as logical types, uuid and
jsonb as text that is marked as such. An interval is text, because Avro's duration has neither microseconds
nor signs. Fields that may be null have null as their default, so that a later schema with more of them is
compatible.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue, Unsupported
from tidemill.sinks.rows.pieces import constant, joined, runs
from tidemill.types.arrow import decimal_shape, element_type
from tidemill.types.columns import bytes_between, bytes_of_rows, contiguous, numbers, spans, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Column, Kind, SqlType
from tidemill.types.nested import list_parts, sorted_map_parts, struct_parts
from tidemill.types.wide import words
from tidemill.types.wire.text import encode_text

NAMESPACE = "tidemill"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_INTS = {Kind.INT2, Kind.INT4, Kind.UINT2}
_LONGS = {Kind.INT8, Kind.UINT4, Kind.OID, Kind.MZ_TIMESTAMP}
_TEXTS = {Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.JSONB}
# Their text is PostgreSQL's.
_AS_TEXT = {Kind.UUID, Kind.INTERVAL}
_NUMBERED = {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}

_PLAIN: dict[Kind, Any] = {
    Kind.BOOL: "boolean",
    **dict.fromkeys(_INTS, "int"),
    **dict.fromkeys(_LONGS, "long"),
    Kind.FLOAT4: "float",
    Kind.FLOAT8: "double",
    **dict.fromkeys(_TEXTS, "string"),
    Kind.BYTEA: "bytes",
    Kind.INTERVAL: "string",
    Kind.DATE: {"type": "int", "logicalType": "date"},
    Kind.TIME: {"type": "long", "logicalType": "time-micros"},
    Kind.TIMESTAMP: {"type": "long", "logicalType": "local-timestamp-micros"},
    Kind.TIMESTAMPTZ: {"type": "long", "logicalType": "timestamp-micros"},
    Kind.UUID: {"type": "string", "logicalType": "uuid"},
    # As Debezium marks it.
    Kind.JSONB: {"type": "string", "connect.name": "io.debezium.data.Json"},
}


# -- schemas


def record_schema(name: str, columns: Sequence[Column]) -> dict[str, Any]:
    """The record of the columns, as a JSON value. Raises if a column has no form in Avro, and names it."""
    return {**_record(name, columns, None), "namespace": NAMESPACE}


def _record(name: str, columns: Sequence[Column], of: str | None) -> dict[str, Any]:
    # Avro requires unique names of records: the name of a nested record is its path.
    fields: list[dict[str, Any]] = []
    for i, column in enumerate(columns):
        shown = of or column.name
        if not _NAME.fullmatch(column.name):
            where = "" if of is None else f' in column "{of}"'
            raise InvalidValue(
                f'"{column.name}"{where} is no name of a field in Avro',
                detail="Such names have letters, digits and underscores, and begin with no digit.",
                hint="Use FORMAT JSON, or make the sink from a materialized view with other names.",
                sqlstate="42602",
            )
        t = _type(column.type, f"{name}_{i}", shown)
        nullable = column.nullable or of is not None
        fields.append(
            {"name": column.name, "type": ["null", t], "default": None}
            if nullable
            else {"name": column.name, "type": t}
        )
    return {"type": "record", "name": name, "fields": fields}


def _type(t: SqlType, name: str, of: str) -> Any:
    if t.kind in _PLAIN:
        return _PLAIN[t.kind]
    if t.kind in (Kind.NUMERIC, Kind.UINT8):
        precision, scale = (20, 0) if t.kind is Kind.UINT8 else decimal_shape(t)
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if t.kind in (Kind.ARRAY, Kind.LIST):
        return {"type": "array", "items": ["null", _type(element_type(t), f"{name}_item", of)]}
    if t.kind is Kind.MAP:
        return {"type": "map", "values": ["null", _type(element_type(t), f"{name}_value", of)]}
    if t.kind is Kind.RECORD and t.fields:
        return _record(name, t.fields, of)
    raise Unsupported(
        f'column "{of}" has no form in Avro',
        detail=f"It has the type {t}.",
        hint="Make the sink from a materialized view without it, or with another type.",
    )


# -- bytes


def record_bytes(columns: Sequence[pa.Array | pa.ChunkedArray], of: Sequence[Column]) -> pa.Array:
    """The record of each row."""
    return joined(b"", *(_field(contiguous(a), c.type, c.nullable) for a, c in zip(columns, of, strict=True)))


def optional(values: pa.Array) -> pa.Array:
    """A union of null and the type of the values, which are null where the union is."""
    branch = joined(b"\x02", values)
    return branch if not values.null_count else pc.fill_null(branch, pa.scalar(b"\x00", pa.binary()))


def longs(values: np.ndarray) -> pa.Array:
    """Numbers as Avro has them: the sign last, seven bits in a byte, the lowest first."""
    folded = ((values << 1) ^ (values >> 63)).view(np.uint64)
    rows = len(folded)
    bits = int(folded.max(initial=0)).bit_length()
    width = max(1, -(-bits // 7))
    if width == 1:
        return bytes_of_rows(folded.astype(np.uint8).reshape(rows, 1), np.ones(rows, np.bool_))
    sizes = np.ones(rows, np.int64)
    matrix = np.empty((rows, width), np.uint8)
    rest = folded
    for at in range(width):
        byte = (rest & np.uint64(127)).astype(np.uint8)
        rest = rest >> np.uint64(7)
        more = rest != 0
        matrix[:, at] = byte | (more.astype(np.uint8) << 7)
        sizes += more
    return bytes_between(matrix, np.zeros(rows, np.int64), width - sizes, np.ones(rows, np.bool_))


def texts(values: pa.Array) -> pa.Array:
    """Texts or bytes, each behind its length; null where null."""
    values = values.cast(pa.binary())
    offsets, _ = spans(values)
    return joined(longs(np.diff(offsets).astype(np.int64)), values)


def _field(array: pa.Array, t: SqlType, nullable: bool) -> pa.Array:
    values = _values(array, t)
    if not nullable:
        return values
    if array.null_count:
        values = pc.if_else(array.is_valid(), values, pa.scalar(None, pa.binary()))
    return optional(values)


def _values(array: pa.Array, t: SqlType) -> pa.Array:
    """The bytes of the values; anything where the column is null."""
    kind = t.kind
    if kind in _INTS or kind in _LONGS or kind in _NUMBERED:
        return longs(numbers(array, np.int64))
    if kind in _TEXTS or kind is Kind.BYTEA:
        return texts(array)
    if kind in _AS_TEXT:
        return texts(encode_text(array, t))
    if kind is Kind.BOOL:
        return pc.if_else(array, pa.scalar(b"\x01"), pa.scalar(b"\x00"))
    if kind in (Kind.FLOAT4, Kind.FLOAT8):
        width = 4 if kind is Kind.FLOAT4 else 8
        raw = np.ascontiguousarray(numbers(array, f"<f{width}")).view(np.uint8).reshape(len(array), width)
        return bytes_of_rows(raw, np.ones(len(array), np.bool_))
    if kind in (Kind.NUMERIC, Kind.UINT8):
        return texts(_decimals(array))
    if kind in (Kind.ARRAY, Kind.LIST):
        offsets, elements = list_parts(array)
        return _blocks(_field(elements, element_type(t), True), offsets)
    if kind is Kind.MAP:
        offsets, keys, values = sorted_map_parts(array)
        return _blocks(joined(texts(keys), _field(values, element_type(t), True)), offsets)
    fields = [_field(f, c.type, True) for f, c in zip(struct_parts(array), t.fields, strict=True)]
    return joined(b"", *fields)


def _decimals(array: pa.Array) -> pa.Array:
    """Unscaled values as two's complement, the highest byte first, as short as they can be."""
    low, high = words(array)
    raw = np.empty((len(low), 2), dtype=">u8")
    raw[:, 0] = high.view(np.uint64)
    raw[:, 1] = low
    cells = raw.view(np.uint8).reshape(len(low), 16)
    sign = np.where(high < 0, 255, 0).astype(np.uint8)
    # A leading byte is dropped if it contains only the sign, and the next byte has the same sign.
    spare = (cells[:, :15] == sign[:, None]) & ((cells[:, 1:] >= 128) == (high < 0)[:, None])
    before = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    return bytes_between(cells, before, np.zeros(len(low), np.int64), valid_mask(array))


def _blocks(items: pa.Array, offsets: np.ndarray) -> pa.Array:
    """An array or a map: one block with all items, and the empty block that ends it."""
    rows = len(offsets) - 1
    if not len(items):
        return constant(b"\x00", rows)
    sizes = np.diff(offsets)
    full = joined(longs(sizes), runs(items, offsets), b"\x00")
    if bool(sizes.all()):
        return full
    return pc.if_else(pa.array(sizes > 0), full, pa.scalar(b"\x00", pa.binary()))
