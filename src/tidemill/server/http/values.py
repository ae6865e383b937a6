"""SQL values as JSON, by column: the rows of all reads over HTTP.

| SQL | JSON |
| --- | --- |
| NULL | null |
| boolean | true, false |
| integers of any width, oid, mz_timestamp | a number up to 2^53 in magnitude (safe in every JSON reader),
else a string |
| real, double precision | a number; "NaN", "Infinity", "-Infinity" |
| jsonb | the value itself; its numbers are written in full |
| array, list | an array of such values |
| map | an object |
| record | an object by field name |
| everything else (text, numeric, bytea, dates and times, interval, uuid) | a string: PostgreSQL's text form |

Works on whole Arrow columns: each becomes a column of JSON fragments, which are joined to rows. Called in
worker threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.types import wire
from tidemill.types.model import Column, Kind, SqlType

# Every integer up to this one is exact as a double.
MAX_SAFE_INTEGER = 2**53
_SMALL = (Kind.INT2, Kind.INT4, Kind.UINT2, Kind.UINT4)
_LARGE = (Kind.INT8, Kind.OID, Kind.MZ_TIMESTAMP)
_STRINGS = (Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.QCHAR, Kind.UNKNOWN, Kind.VOID)
# The characters that JSON escapes, other than the quote and the backslash.
_CONTROL = r"[\x00-\x1f]"

# pyarrow's stubs cover only some of the compute functions.
_pc = cast(Any, pc)


def rows_json(batch: pa.RecordBatch, columns: Sequence[Column]) -> tuple[str, int]:
    """The rows as `[..],[..]` without the outer brackets, and their number."""
    if batch.num_rows == 0:
        return "", 0
    return joined(rows_of(batch.columns, columns, batch.num_rows)), batch.num_rows


def rows_of(arrays: Sequence[pa.Array], columns: Sequence[Column], rows: int) -> pa.Array:
    """Each row as the text of a JSON array."""
    if not columns:
        return pa.array(["[]"] * rows, pa.string())
    cells = [fragments(array, c.type) for array, c in zip(arrays, columns, strict=True)]
    return _wrap("[", cells[0] if len(cells) == 1 else _pc.binary_join_element_wise(*cells, ","), "]")


def fragments(array: pa.Array, t: SqlType) -> pa.Array:
    """Each value as a fragment of JSON text. The result has no nulls: a null becomes the text `null`."""
    return _pc.fill_null(_fragments(array, t), "null")


def _fragments(array: Any, t: SqlType) -> Any:
    kind = t.kind
    if kind is Kind.BOOL:
        return _pc.if_else(array, "true", "false")
    if kind in _SMALL:
        return array.cast(pa.string())
    if kind in _LARGE:
        return _integers(array, array.cast(pa.string()), lambda n: pa.scalar(n, pa.int64()))
    if kind is Kind.UINT8:
        text = _text(array, t)
        return _integers(array, text, lambda n: pa.scalar(Decimal(n), pa.decimal128(20, 0)))
    if kind in (Kind.FLOAT4, Kind.FLOAT8):
        text = _text(array, t)
        return _pc.if_else(_pc.is_finite(array), text, _wrap('"', text, '"'))
    if kind is Kind.JSONB:
        return array
    if kind in _STRINGS:
        return _quoted(array)
    if kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        return _lists(array, fragments(array.flatten(), t.element), "[", "]")
    if kind is Kind.MAP and t.element is not None:
        return _maps(array, t.element)
    if kind is Kind.RECORD:
        return _records(array, t.fields)
    return _quoted(_text(array, t))


def _text(array: Any, t: SqlType) -> Any:
    """The values in PostgreSQL's text form."""
    return cast(Any, wire.encode_text(array, t)).cast(pa.string())


def _integers(array: Any, text: Any, scalar: Callable[[int], Any]) -> Any:
    low = _pc.less(array, scalar(-MAX_SAFE_INTEGER))
    high = _pc.greater(array, scalar(MAX_SAFE_INTEGER))
    unsafe = _pc.or_(low, high)
    if not _pc.any(unsafe).as_py():
        return text
    return _pc.if_else(unsafe, _wrap('"', text, '"'), text)


def _quoted(array: Any) -> Any:
    """Text as JSON strings. Values with control characters are rare and are encoded one by one, all others in
    a few vectorized passes."""
    if _pc.any(_pc.match_substring_regex(array, _CONTROL)).as_py():
        return pa.array([None if v is None else json.dumps(v) for v in array.to_pylist()], pa.string())
    escaped = _pc.replace_substring(array, "\\", "\\\\")
    return _wrap('"', _pc.replace_substring(escaped, '"', '\\"'), '"')


def _wrap(before: str, array: Any, after: str) -> Any:
    return _pc.binary_join_element_wise(before, array, after, "")


def _lists(array: Any, parts: Any, before: str, after: str) -> Any:
    """The `parts` joined by the list lengths of `array`; a null list stays null."""
    lengths = _pc.fill_null(_pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), _pc.cumulative_sum(lengths).cast(pa.int32())])
    joined = _wrap(before, _pc.binary_join(pa.ListArray.from_arrays(offsets, parts), ","), after)
    return _pc.if_else(_pc.is_valid(array), joined, pa.scalar(None, pa.string()))


def _maps(array: Any, value: SqlType) -> Any:
    # A map array is a list of (key, value) structs. Its flatten() would ignore the slice.
    lists = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    entries = lists.flatten()
    keys, items = entries.flatten()
    pairs = _pc.binary_join_element_wise(_quoted(keys), fragments(items, value), ":")
    return _lists(lists, pairs, "{", "}")


def _records(array: Any, columns: Sequence[Column]) -> Any:
    # StructArray.flatten() propagates the struct's own nulls to the fields; they are corrected at the end.
    pairs = [
        _wrap(f"{json.dumps(column.name)}:", fragments(field, column.type), "")
        for column, field in zip(columns, array.flatten(), strict=True)
    ]
    inner = _pc.binary_join_element_wise(*pairs, ",") if pairs else pa.array([""] * len(array), pa.string())
    return _pc.if_else(_pc.is_valid(array), _wrap("{", inner, "}"), pa.scalar(None, pa.string()))


def joined(rows: Any) -> str:
    """All texts of a string array joined by commas."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return cast(str, _pc.binary_join(whole, ",")[0].as_py())
