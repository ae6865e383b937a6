"""Conversion between the values of Avro readers and the storage forms of columns.

Called by `AvroCodec`: for the columns of the fast reader, and for the Python values of the slow one.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.wording import sentence


def to_storage(column: pa.Array, field: pa.Field) -> pa.Array | None:
    """The column in the field's storage form; None if its type does not match the field. Raises if its values
    are invalid (decimals of too many digits, bytes that are not text)."""
    if column.null_count and not field.nullable:
        return None
    stored = column if column.type == field.type else column.cast(field.type)
    stored.validate(full=True)
    return stored


def columns_of_rows(rows: list[Any], schema: pa.Schema, origin: str) -> pa.RecordBatch:
    """Python values, row by row, as columns."""
    try:
        columns = [pa.array([plain(r[f.name], f.type) for r in rows], f.type) for f in schema]
    except (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError) as e:
        raise InvalidMessage("data that is not of the stream's columns", origin, detail=sentence(e)) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain(value: Any, t: Any) -> Any:
    """A value in the form that `pyarrow.array` accepts: maps as lists of pairs, at any depth."""
    if value is None:
        return None
    if pa.types.is_map(t):
        pairs = cast("dict[str, Any]", value).items()
        return [(k, plain(v, t.item_type)) for k, v in pairs]
    if pa.types.is_list(t):
        return [plain(v, t.value_type) for v in cast("list[Any]", value)]
    if pa.types.is_struct(t):
        record = cast("dict[str, Any]", value)
        return {f.name: plain(record[f.name], f.type) for f in (t.field(i) for i in range(t.num_fields))}
    return value
