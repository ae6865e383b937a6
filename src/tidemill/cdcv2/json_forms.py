"""JSON forms of data columns: numbers, text, booleans, lists and objects only.

Called by `JsonCodec`. Dates and timestamps use Avro's numbers (days, microseconds), decimals are their digits
as text, and bytes are hexadecimal text. Maps are objects, which have no column form here: streams with maps
are encoded and decoded row by row.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from tidemill.cdcv2.wording import Malformed
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.nested import list_array, list_parts, struct_array, struct_parts


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for words that are not JSON and for objects with duplicate
    names."""
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("a name stands twice in an object")
    return found


def _refuse(word: str) -> Any:
    raise Malformed(f"{word} is no JSON")


def has_map(t: Any) -> bool:
    if pa.types.is_map(t):
        return True
    if pa.types.is_list(t):
        return has_map(t.value_type)
    return pa.types.is_struct(t) and any(has_map(t.field(i).type) for i in range(t.num_fields))


def json_type(t: Any) -> Any:
    """The column type that holds the JSON values."""
    if pa.types.is_decimal(t) or pa.types.is_binary(t):
        return pa.string()
    if pa.types.is_date32(t):
        return pa.int32()
    if pa.types.is_timestamp(t):
        return pa.int64()
    if pa.types.is_list(t):
        return pa.list_(pa.field("element", json_type(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct(
            [pa.field(f.name, json_type(f.type)) for f in (t.field(i) for i in range(t.num_fields))]
        )
    return t


def to_json_form(array: pa.Array) -> pa.Array | None:
    """The column as JSON values; None if JSON has no form for a number (NaN, infinities)."""
    t: Any = array.type
    if pa.types.is_floating(t):
        return array if pc.all(pc.is_finite(array)).as_py() is not False else None
    if pa.types.is_decimal(t):
        return array.cast(pa.string())
    if pa.types.is_binary(t):
        hexadecimal = cast("pl.Series", pl.from_arrow(array)).bin.encode("hex")
        return hexadecimal.to_arrow().cast(pa.string())
    if pa.types.is_list(t):
        offsets, elements = list_parts(array)
        inner = to_json_form(elements)
        return None if inner is None else list_array(inner, offsets, valid_mask(array), json_type(t))
    if pa.types.is_struct(t):
        fields = [to_json_form(field) for field in struct_parts(array)]
        if any(f is None for f in fields):
            return None
        return struct_array(cast("list[pa.Array]", fields), valid_mask(array), json_type(t))
    return array if json_type(t) == t else array.cast(json_type(t))


def from_json_form(array: pa.Array, t: Any) -> pa.Array:
    """The inverse; raises ValueError (Arrow's errors are subclasses) if it is not a value of the type."""
    if pa.types.is_binary(t):
        series = cast("pl.Series", pl.from_arrow(array))
        try:
            return series.str.decode("hex").to_arrow().cast(pa.binary())
        except pl.exceptions.ComputeError as e:
            raise ValueError(str(e)) from None
    if pa.types.is_list(t):
        offsets, elements = list_parts(array)
        return list_array(from_json_form(elements, t.value_type), offsets, valid_mask(array), t)
    if pa.types.is_struct(t):
        fields = [from_json_form(f, t.field(i).type) for i, f in enumerate(struct_parts(array))]
        return struct_array(fields, valid_mask(array), t)
    return array if array.type == t else array.cast(t)


def json_value(value: Any, t: Any) -> Any:
    """One Python value, as `to_pylist` returns it for a column in storage form, for `json.dumps`."""
    if value is None:
        return None
    if pa.types.is_map(t):
        return {k: json_value(v, t.item_type) for k, v in cast("list[tuple[str, Any]]", value)}
    if pa.types.is_list(t):
        return [json_value(v, t.value_type) for v in cast("list[Any]", value)]
    if pa.types.is_struct(t):
        record = cast("dict[str, Any]", value)
        return {f.name: json_value(record[f.name], f.type) for f in (t.field(i) for i in range(t.num_fields))}
    if pa.types.is_floating(t):
        number = cast("float", value)
        if number != number:
            return "NaN"
        return number if abs(number) != np.inf else ("Infinity" if number > 0 else "-Infinity")
    if pa.types.is_decimal(t):
        return format(cast("Decimal", value), "f")
    if pa.types.is_binary(t):
        return cast("bytes", value).hex()
    return value


_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def python_value(value: Any, t: Any) -> Any:
    """One value of parsed JSON in the form that `pyarrow.array` accepts for the storage type."""
    if value is None:
        return None
    if pa.types.is_map(t):
        return [(k, python_value(v, t.item_type)) for k, v in cast("dict[str, Any]", value).items()]
    if pa.types.is_list(t):
        return [python_value(v, t.value_type) for v in _of(list, value)]
    if pa.types.is_struct(t):
        record = _of(dict, value)
        return {
            f.name: python_value(record[f.name], f.type) for f in (t.field(i) for i in range(t.num_fields))
        }
    if pa.types.is_floating(t):
        return _NUMBERS[value] if isinstance(value, str) else float(_of((int, float), value))
    if pa.types.is_decimal(t):
        return Decimal(_of(str, value))
    if pa.types.is_binary(t):
        return bytes.fromhex(_of(str, value))
    if pa.types.is_boolean(t):
        return _of(bool, value)
    if pa.types.is_string(t):
        return _of(str, value)
    return _of(int, value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"not a value of the column: {value!r}")
    return value
