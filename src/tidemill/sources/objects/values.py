"""Values of Parquet and Avro files: the SQL type of an Arrow type, and the storage form of its values.

Called by `tables`. Lists, maps and records are the types that they are in messages of Avro (`decode.avro`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.maps import repeated_keys
from tidemill.errors import Unsupported
from tidemill.types.arrow import INTERVAL_FIELDS, NUMERIC_PRECISION, arrow_type, element_type
from tidemill.types.columns import valid_mask
from tidemill.types.identity import canonical
from tidemill.types.model import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UINT2,
    UINT4,
    UINT8,
    Column,
    Kind,
    SqlType,
    list_,
    map_,
    numeric,
    record,
)
from tidemill.types.nested import list_array, list_parts, map_array, struct_array, struct_parts
from tidemill.types.parse_name import MAX_NESTING

_PLAIN: dict[pa.DataType, SqlType] = {
    # What a writer makes of a column without any value.
    pa.null(): TEXT,
    pa.bool_(): BOOL,
    pa.int8(): INT2,
    pa.int16(): INT2,
    pa.int32(): INT4,
    pa.int64(): INT8,
    pa.uint8(): UINT2,
    pa.uint16(): UINT2,
    pa.uint32(): UINT4,
    pa.uint64(): UINT8,
    pa.float16(): FLOAT4,
    pa.float32(): FLOAT4,
    pa.float64(): FLOAT8,
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): BYTEA,
    pa.large_binary(): BYTEA,
    pa.date32(): DATE,
    pa.month_day_nano_interval(): INTERVAL,
}
# The memory of an Arrow interval.
_INTERVAL = np.dtype([("months", np.int32), ("days", np.int32), ("nanos", np.int64)])


def sql_type(path: Sequence[str], t: Any, depth: int = 0) -> SqlType:
    """`path` names the column, and fields within it, for errors. Raises Unsupported."""
    if depth < MAX_NESTING:
        if t in _PLAIN:
            return _PLAIN[t]
        if pa.types.is_dictionary(t):
            return sql_type(path, t.value_type, depth)
        if pa.types.is_fixed_size_binary(t):
            return BYTEA
        if pa.types.is_time(t):
            return TIME
        if pa.types.is_timestamp(t):
            return TIMESTAMP if t.tz is None else TIMESTAMPTZ
        if pa.types.is_decimal(t) and 0 <= t.scale <= t.precision <= NUMERIC_PRECISION:
            return numeric(t.precision, t.scale)
        if _is_list(t):
            return list_(sql_type(path, t.value_type, depth + 1))
        if pa.types.is_map(t) and (_is_text(t.key_type) or pa.types.is_integer(t.key_type)):
            return map_(sql_type(path, t.item_type, depth + 1))
        if pa.types.is_struct(t) or _is_union(t):
            fields = [t.field(n) for n in range(t.num_fields)]
            fields = [f for f in fields if not (_is_union(t) and f.type == pa.null())]
            if fields:
                return record(*(Column(f.name, sql_type((*path, f.name), f.type, depth + 1)) for f in fields))
    shown = str(t)
    raise Unsupported(
        f'column "{".".join(path)}" is of a type that is not supported: {shown[:200]}',
        hint="Columns that the first file does not have are left out. Values of any kind can be written as "
        "text.",
    )


def _is_list(t: pa.DataType) -> bool:
    return pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t)


def _is_union(t: Any) -> bool:
    """As the reader of Avro makes them."""
    return pa.types.is_union(t) and t.mode == "dense"


def _is_text(t: pa.DataType) -> bool:
    return pa.types.is_string(t) or pa.types.is_large_string(t)


def stored(values: pa.Array, t: SqlType) -> pa.Array:
    """The storage form of the type. Values of another type are converted where none changes, fields of
    records are taken by their names. Raises pa.ArrowException."""
    return canonical(_stored(values, t), t)


def _stored(values: pa.Array, t: SqlType) -> pa.Array:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _stored(values.dictionary_decode(), t)
    if kind == pa.null():
        return pa.nulls(len(values), arrow_type(t))
    if t.kind in (Kind.LIST, Kind.ARRAY) and _is_list(kind):
        offsets, elements = list_parts(values.cast(pa.list_(kind.value_field)))
        return list_array(_stored(elements, element_type(t)), offsets, valid_mask(values), arrow_type(t))
    if t.kind is Kind.MAP and pa.types.is_map(kind):
        return _map(values, t)
    if t.kind is Kind.RECORD and _is_union(kind):
        return _record(_branches(values), t)
    if t.kind is Kind.RECORD and pa.types.is_struct(kind):
        return _record(values, t)
    if t.kind is Kind.INTERVAL:
        return _intervals(values)
    if t.kind in (Kind.LIST, Kind.ARRAY, Kind.MAP, Kind.RECORD) or pa.types.is_nested(kind):
        raise pa.ArrowInvalid("it has another shape")
    return _cast(values, arrow_type(t))


def _map(values: pa.Array, t: SqlType) -> pa.Array:
    kind: Any = values.type
    entry = pa.struct([kind.key_field, kind.item_field])
    offsets, entries = list_parts(values.cast(pa.list_(pa.field("entries", entry, nullable=False))))
    keys, items = entries.field(0).cast(pa.string()), entries.field(1)
    counts = np.diff(offsets)
    if len(repeated_keys(keys, counts)):
        # Of equal keys the last one counts.
        rows = np.repeat(np.arange(len(counts)), counts).tolist()
        last = {entry: at for at, entry in enumerate(zip(rows, keys.to_pylist(), strict=True))}
        kept = np.array(sorted(last.values()))
        offsets = np.searchsorted(kept, offsets)
        keys, items = keys.take(pa.array(kept)), items.take(pa.array(kept))
    return map_array(keys, _stored(items, element_type(t)), offsets, valid_mask(values), arrow_type(t))


def _record(values: pa.Array, t: SqlType) -> pa.Array:
    parts = struct_parts(values)
    found: list[pa.Array] = []
    for field in t.fields:
        places: list[int] = values.type.get_all_field_indices(field.name)
        if len(places) > 1:
            raise pa.ArrowInvalid(f'it has {len(places)} fields "{field.name}"')
        if places:
            found.append(_stored(parts[places[0]], field.type))
        else:
            found.append(pa.nulls(len(values), arrow_type(field.type)))
    return struct_array(found, valid_mask(values), arrow_type(t))


def _branches(values: Any) -> pa.Array:
    """A union as a record with a field for each of its types, of which one has a value."""
    # Of a slice, `type_codes` and `offsets` would be those of the beginning.
    part = slice(values.offset, values.offset + len(values))
    codes, places = (
        np.frombuffer(buffer, kind)[part]
        for buffer, kind in zip(values.buffers()[1:3], (np.int8, np.int32), strict=True)
    )
    fields: list[pa.Array] = []
    names: list[str] = []
    null = np.ones(len(values), np.bool_)
    for at, code in enumerate(values.type.type_codes):
        field = values.type.field(at)
        if field.type == pa.null():
            continue
        child, own = values.field(at), codes == code
        fields.append(child.take(pa.array(np.where(own, places, 0), mask=~own)))
        names.append(field.name)
        null &= ~own | ~valid_mask(fields[-1])
    return pa.StructArray.from_arrays(fields, names=names, mask=pa.array(null))


def _intervals(values: pa.Array) -> pa.Array:
    if values.type != pa.month_day_nano_interval():
        raise pa.ArrowInvalid("it has another shape")
    raw = np.frombuffer(values.buffers()[1], _INTERVAL)[values.offset : values.offset + len(values)]
    parts = [pa.array(np.ascontiguousarray(raw[name])) for name in ("months", "days")]
    parts.append(pa.array(raw["nanos"] // 1000))
    return struct_array(parts, valid_mask(values), pa.struct(INTERVAL_FIELDS))


def _cast(values: pa.Array, t: pa.DataType) -> pa.Array:
    # Nanoseconds are cut off.
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(t, safe=False)
    if pa.types.is_time(values.type):
        return values.cast(pa.time64("us"), safe=False).cast(t)
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    if pa.types.is_unsigned_integer(values.type) and pa.types.is_decimal(t):
        values = values.cast(pa.decimal128(20, 0))
    return values.cast(t)
