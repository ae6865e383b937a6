"""The conversion of columns between the server's description, the internal form and the application's
form.

Internally, columns have the storage form of `tidemill.types`, in which rows have an identity and a
hash. The application gets Arrow types that polars and pandas support (`shown`). Types whose structure
the wire protocol does not describe (lists, maps, records) are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg.pq import abc

from tidemill.types import model
from tidemill.types.arrow import arrow_type, element_type
from tidemill.types.columns import contiguous, valid_mask
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import list_array, list_parts
from tidemill.types.wire import decode_text, encode_text, type_of_oid
from tidemill.types.wire.oids import MZ_TIMESTAMP_PRECISION

_TEXTS = {Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.QCHAR, Kind.UNKNOWN}
# Types whose storage form is not suitable for an application.
_SHOWN: dict[Kind, pa.DataType] = {
    Kind.UINT2: pa.uint16(),
    Kind.UINT4: pa.uint32(),
    Kind.UINT8: pa.uint64(),
    Kind.OID: pa.uint32(),
    Kind.TIME: pa.time64("us"),
    Kind.UUID: pa.string(),
}


@dataclass(frozen=True, slots=True)
class ClientField:
    """One column of a result. `type` is its internal type. `opaque`: the server's type is not known here, so
    only its text format can be read."""

    name: str
    type: SqlType
    opaque: bool = False


def described(result: abc.PGresult) -> tuple[ClientField, ...]:
    """The columns from the description of a statement."""
    return tuple(
        _field((result.fname(i) or b"").decode(), result.ftype(i), result.fmod(i))
        for i in range(result.nfields)
    )


def _field(name: str, oid: int, modifier: int) -> ClientField:
    known = type_of_oid(oid)
    if known is None:
        return ClientField(name, model.TEXT, opaque=True)
    if known.kind is Kind.ARRAY:
        return ClientField(name, model.array(_with_modifier(element_type(known), modifier)))
    return ClientField(name, _with_modifier(known, modifier))


def _with_modifier(t: SqlType, modifier: int) -> SqlType:
    if t.kind in _TEXTS:
        return model.TEXT  # the maximum length of a value does not matter here
    if t.kind is Kind.NUMERIC and modifier >= 4:
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if precision == MZ_TIMESTAMP_PRECISION and scale == 0:
            return model.MZ_TIMESTAMP
        return model.numeric(precision, scale)
    return t


def unique(names: Sequence[str]) -> list[str]:
    """The names with `_2`, `_3` ... added to duplicates, because data frames need unique names."""
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        candidate, n = name, 2
        while candidate in taken or (candidate != name and candidate in names):
            candidate, n = f"{name}_{n}", n + 1
        taken.add(candidate)
        result.append(candidate)
    return result


def held(columns: Sequence[pa.Array], fields: Sequence[ClientField]) -> pa.Table:
    """A table in storage form. Columns are matched by position, since names may repeat in a result."""
    return pa.table(list(columns), schema=held_schema(fields))


def held_schema(fields: Sequence[ClientField]) -> pa.Schema:
    return pa.schema([pa.field(f"c{i}", arrow_type(f.type)) for i, f in enumerate(fields)])


def shown(table: pa.Table, fields: Sequence[ClientField]) -> pa.Table:
    """A table in storage form, converted for the application."""
    columns = [_shown(contiguous(c), f.type) for c, f in zip(table.columns, fields, strict=True)]
    return pa.table(columns, names=unique([f.name for f in fields]))


def python_rows(table: pa.Table, fields: Sequence[ClientField]) -> list[dict[str, Any]]:
    """A table from `shown` as dictionaries."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for name, field in zip(table.column_names, fields, strict=True):
        if any_scale(field.type):
            for row in rows:
                row[name] = own_scale(row[name])
    return rows


def any_scale(t: SqlType) -> bool:
    """Whether the values, or those of arrays, are numerics whose scale is not fixed by the type."""
    element = element_type(t) if t.kind is Kind.ARRAY else t
    return element.kind is Kind.NUMERIC and element.precision is None


def own_scale(value: Any) -> Any:
    """A decimal with only the digits that it needs; Arrow uses one scale for a whole column. Other values are
    not changed."""
    if isinstance(value, list | np.ndarray):
        return [own_scale(v) for v in value]
    if not isinstance(value, Decimal):
        return value
    short = value.normalize(_WIDE)
    return short.quantize(_ONE, context=_WIDE) if value == value.to_integral_value() else short


# More digits than any numeric has here.
_WIDE = Context(prec=60)
_ONE = Decimal(1)


def _shown(column: pa.Array, t: SqlType) -> pa.Array:
    if t.kind is Kind.ARRAY:
        element = element_type(t)
        if element.kind not in _SHOWN:
            return column
        offsets, elements = list_parts(column)
        inner = _shown(elements, element)
        kind = pa.list_(pa.field("element", inner.type))
        return list_array(inner, np.asarray(offsets), valid_mask(column), kind)
    target = _SHOWN.get(t.kind)
    if target is None:
        return column
    return encode_text(column, t).cast(target) if t.kind is Kind.UUID else column.cast(target)


def key_array(value: object, t: SqlType) -> pa.Array:
    """One value of a key in the application's form, converted to storage form."""
    as_shown = _SHOWN.get(t.kind)
    if t.kind is Kind.UUID:
        return decode_text(pa.array([None if value is None else str(value)], pa.string()), t)
    return pa.array([value], as_shown or arrow_type(t)).cast(arrow_type(t))
