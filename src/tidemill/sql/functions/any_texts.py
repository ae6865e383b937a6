"""Values of any type as texts and as jsonb, inside Spark's Python tasks.

`python` registers these Arrow functions; `json`, `arrays` and the casts put calls of them into trees. The
caller passes the type's name as a constant: the storage form alone does not distinguish a uuid from a bytea.
None of them raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemill.sql.functions.jsonb_values import written
from tidemill.sql.functions.markers import zone
from tidemill.sql.functions.tree import Tree, call, cast_to, string
from tidemill.types.arrow import NUMERIC_PRECISION
from tidemill.types.json import canonical_number
from tidemill.types.model import Kind, SqlType, numeric
from tidemill.types.parse_name import parse_type
from tidemill.types.wire.text import encode_text

_NUMBERS = frozenset(
    {
        *(Kind.INT2, Kind.INT4, Kind.INT8, Kind.UINT2, Kind.UINT4, Kind.UINT8),
        *(Kind.NUMERIC, Kind.FLOAT4, Kind.FLOAT8),
    }
)


def text_tree(value: Tree, t: SqlType) -> Tree:
    """The value as clients see it."""
    value, t = _as_shown(value, t)
    return call("tm_text", value, string(str(t)), zone())


def texts_tree(value: Tree, t: SqlType) -> Tree:
    """The elements of an array or list of type `t`, as texts."""
    value, t = _as_shown(value, t)
    return call("tm_texts", value, string(str(t)), zone())


def _as_shown(value: Tree, t: SqlType) -> tuple[Tree, SqlType]:
    """An array of numerics with known digits, as an array with that scale: the type's name passes it to the
    task."""
    element = t.element
    if element is None or element.kind is not Kind.NUMERIC or element.shown is None:
        return value, t
    shown = replace(t, element=numeric(NUMERIC_PRECISION, element.shown))
    return cast_to(value, shown), shown


def document_tree(value: Tree, t: SqlType) -> Tree:
    """The value as jsonb."""
    return call("tm_to_jsonb", value, string(str(t)), zone())


# --- inside the tasks


def text(column: pa.Array, types: pa.Array, zones: pa.Array) -> pa.Array:
    if len(column) == 0:
        return pa.array([], pa.string())
    return pa.array(_texts(column, parse_type(types[0].as_py()), zones[0].as_py()), pa.string())


def texts(column: pa.Array, types: pa.Array, zones: pa.Array) -> pa.Array:
    if len(column) == 0:
        return pa.array([], pa.list_(pa.string()))
    t = parse_type(types[0].as_py())
    assert t.element is not None
    inner = _texts(column.flatten(), t.element, zones[0].as_py())
    return pa.array(_regrouped(column, inner), pa.list_(pa.string()))


def to_jsonb(column: pa.Array, types: pa.Array, zones: pa.Array) -> pa.Array:
    if len(column) == 0:
        return pa.array([], pa.string())
    return pa.array(_documents(column, parse_type(types[0].as_py()), zones[0].as_py()), pa.string())


def _texts(column: pa.Array, t: SqlType, zone_name: str) -> list[str | None]:
    encoded = encode_text(column, t, timezone=zone_name).cast(pa.binary())
    return [None if b is None else b.decode() for b in encoded.to_pylist()]


def _regrouped(column: pa.Array, flat: Sequence[str | None]) -> list[list[str | None] | None]:
    """The flattened values, grouped into their original rows."""
    found: list[list[str | None] | None] = []
    at = 0
    for size in column.value_lengths().to_pylist():
        if size is None:
            found.append(None)
            continue
        found.append(list(flat[at : at + size]))
        at += size
    return found


def _documents(column: pa.Array, t: SqlType, zone_name: str) -> list[str | None]:
    if t.kind in (Kind.ARRAY, Kind.LIST) and t.element is not None:
        rows = _regrouped(column, _documents(column.flatten(), t.element, zone_name))
        return [
            None if row is None else "[" + ", ".join("null" if d is None else d for d in row) + "]"
            for row in rows
        ]
    if t.kind is Kind.JSONB:
        return column.to_pylist()
    return [None if s is None else _document(s, t.kind) for s in _texts(column, t, zone_name)]


def _document(shown: str, kind: Kind) -> str:
    if kind is Kind.BOOL:
        return "true" if shown == "t" else "false"
    if kind in _NUMBERS and shown not in ("NaN", "Infinity", "-Infinity"):
        return canonical_number(shown.replace("e+", "e"))
    return written(_iso(shown) if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ) else shown)


def _iso(shown: str) -> str:
    """ISO 8601: a T before the time of day, and minutes in the zone's offset."""
    day, space, rest = shown.partition(" ")
    if not space:
        return shown
    clock, space, era = rest.partition(" ")
    offset = clock.replace("-", "+").partition("+")[2]
    minutes = ":00" if offset and ":" not in offset else ""
    return f"{day}T{clock}{minutes}{space}{era}"
