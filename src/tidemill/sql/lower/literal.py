"""Values in storage form as Spark literals.

Called when a bound tree is lowered and when markers are replaced by values. A value is a pyarrow scalar, None
for NULL, or (of type unknown) a text. Every literal has an explicit type; Spark's type inference for bare
literals is never used.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import Internal
from tidemill.sql.functions.tree import Tree, bigint, boolean, call, cast, cast_to, integer, null, string
from tidemill.types.arrow import arrow_type, element_type
from tidemill.types.model import Kind, SqlType
from tidemill.types.spark import spark_type

_WHOLE = frozenset(
    {Kind.INT2, Kind.INT4, Kind.INT8, Kind.UINT2, Kind.UINT4, Kind.OID, Kind.MZ_TIMESTAMP, Kind.TIME}
)
_TEXT = frozenset({Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.QCHAR, Kind.JSONB, Kind.UNKNOWN})


def as_scalar(value: Any, t: SqlType) -> pa.Scalar:
    """A storage value (a pyarrow scalar or what pyarrow makes one of) as a scalar of exactly the storage
    type."""
    want = arrow_type(t)
    if isinstance(value, pa.Scalar):
        return value if value.type == want else value.cast(want)
    return pa.scalar(value, want)


def literal_tree(value: Any, t: SqlType) -> Tree:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return cast_to(null(), t)
    if isinstance(value, str):
        return string(value)
    kind = t.kind
    if kind in _TEXT:
        return string(value.as_py())
    if kind is Kind.BOOL:
        return boolean(value.as_py())
    if kind in _WHOLE:
        return cast(_number(value.as_py()), spark_type(t))
    if kind in (Kind.NUMERIC, Kind.UINT8):
        return cast(string(format(value.as_py(), "f")), spark_type(t))
    if kind is Kind.FLOAT8:
        return cast(string(_float_text(value.as_py())), "DOUBLE")
    if kind is Kind.FLOAT4:
        # The text of the widened 32-bit value is exact, and narrowing it returns the same value.
        return cast(cast(string(_float_text(value.as_py())), "DOUBLE"), "FLOAT")
    if kind in (Kind.BYTEA, Kind.UUID):
        return call("unhex", string(value.as_py().hex()))
    if kind is Kind.DATE:
        return call("date_from_unix_date", integer(value.cast(pa.int32()).as_py()))
    if kind is Kind.TIMESTAMPTZ:
        return call("timestamp_micros", bigint(value.cast(pa.int64()).as_py()))
    if kind is Kind.TIMESTAMP:
        return cast(call("timestamp_micros", bigint(value.cast(pa.int64()).as_py())), "TIMESTAMP_NTZ")
    if kind is Kind.INTERVAL:
        parts = value.as_py()
        return call(
            "named_struct",
            *(string("months"), integer(parts["months"])),
            *(string("days"), integer(parts["days"])),
            *(string("micros"), bigint(parts["micros"])),
        )
    if kind in (Kind.ARRAY, Kind.LIST):
        inner = element_type(t)
        values: Any = value.values
        return cast_to(call("array", *(literal_tree(v, inner) for v in values)), t)
    if kind is Kind.MAP:
        pairs: Any = value.as_py()
        keys = call("array", *(string(k) for k, _ in pairs))
        members = call("array", *(literal_tree(v, element_type(t)) for v in _items(value)))
        return cast_to(call("map_from_arrays", keys, members) if pairs else call("map"), t)
    raise Internal(f"no literal of type {t}")


def _items(value: Any) -> Any:
    """The entries of a map, as scalars."""
    return value.values.field(1)


def _number(value: int) -> Tree:
    number = exp.Literal.number(abs(value))
    return exp.Neg(this=number) if value < 0 else number


def _float_text(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)
