"""The relations between SQL types: categories, preferred types, casts and their contexts.

These are PostgreSQL's pg_type and pg_cast as tables, for the types that Tidemill has, plus the unsigned
integers and mz_timestamp. Called by `resolve` (overloads) and by the binder (CASE, UNION, INSERT).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from tidemill.types.model import Kind, SqlType, plain


class ArgumentContext(IntEnum):
    """The context of a cast: implicit, assignment, or explicit."""

    IMPLICIT = 0
    ASSIGNMENT = 1
    EXPLICIT = 2


STRINGS = frozenset({Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.QCHAR})
SIGNED = frozenset({Kind.INT2, Kind.INT4, Kind.INT8})
UNSIGNED = frozenset({Kind.UINT2, Kind.UINT4, Kind.UINT8})
FLOATS = frozenset({Kind.FLOAT4, Kind.FLOAT8})
INTEGERS = SIGNED | UNSIGNED
NUMBERS = INTEGERS | FLOATS | {Kind.NUMERIC}

_CATEGORY: dict[Kind, str] = {
    Kind.BOOL: "B",
    **dict.fromkeys(NUMBERS, "N"),
    Kind.OID: "N",
    **dict.fromkeys(STRINGS, "S"),
    Kind.DATE: "D",
    Kind.TIME: "D",
    Kind.TIMESTAMP: "D",
    Kind.TIMESTAMPTZ: "D",
    Kind.INTERVAL: "T",
    Kind.ARRAY: "A",
    Kind.LIST: "L",
    Kind.MAP: "M",
    Kind.RECORD: "P",
    Kind.UNKNOWN: "X",
}

_PREFERRED = frozenset({Kind.BOOL, Kind.FLOAT8, Kind.OID, Kind.TEXT, Kind.TIMESTAMPTZ, Kind.INTERVAL})


_I, _A, _E = ArgumentContext.IMPLICIT, ArgumentContext.ASSIGNMENT, ArgumentContext.EXPLICIT

# from -> {to: context}. Casts to and from strings (PostgreSQL's I/O conversion casts) are added below.
_CASTS: dict[Kind, dict[Kind, ArgumentContext]] = {
    Kind.BOOL: {Kind.INT4: _E},
    Kind.INT2: {
        Kind.INT4: _I,
        Kind.INT8: _I,
        Kind.NUMERIC: _I,
        Kind.FLOAT4: _I,
        Kind.FLOAT8: _I,
        Kind.OID: _I,
    }
    | dict.fromkeys(UNSIGNED, _A),
    Kind.INT4: {
        Kind.INT2: _A,
        Kind.INT8: _I,
        Kind.NUMERIC: _I,
        Kind.FLOAT4: _I,
        Kind.FLOAT8: _I,
        Kind.OID: _I,
    }
    | {Kind.BOOL: _E, Kind.MZ_TIMESTAMP: _I}
    | dict.fromkeys(UNSIGNED, _A),
    Kind.INT8: {
        Kind.INT2: _A,
        Kind.INT4: _A,
        Kind.NUMERIC: _I,
        Kind.FLOAT4: _I,
        Kind.FLOAT8: _I,
        Kind.OID: _I,
    }
    | {Kind.MZ_TIMESTAMP: _I}
    | dict.fromkeys(UNSIGNED, _A),
    Kind.UINT2: {Kind.UINT4: _I, Kind.UINT8: _I, Kind.INT4: _I, Kind.INT8: _I, Kind.NUMERIC: _I}
    | {Kind.FLOAT4: _I, Kind.FLOAT8: _I, Kind.INT2: _A},
    Kind.UINT4: {Kind.UINT8: _I, Kind.INT8: _I, Kind.NUMERIC: _I, Kind.FLOAT4: _I, Kind.FLOAT8: _I}
    | {Kind.UINT2: _A, Kind.INT2: _A, Kind.INT4: _A, Kind.MZ_TIMESTAMP: _I},
    Kind.UINT8: {Kind.NUMERIC: _I, Kind.FLOAT4: _I, Kind.FLOAT8: _I}
    | {Kind.UINT2: _A, Kind.UINT4: _A, Kind.INT2: _A, Kind.INT4: _A, Kind.INT8: _A, Kind.MZ_TIMESTAMP: _I},
    Kind.NUMERIC: {Kind.INT2: _A, Kind.INT4: _A, Kind.INT8: _A, Kind.FLOAT4: _I, Kind.FLOAT8: _I}
    | {Kind.MZ_TIMESTAMP: _I}
    | dict.fromkeys(UNSIGNED, _A),
    Kind.FLOAT4: {Kind.INT2: _A, Kind.INT4: _A, Kind.INT8: _A, Kind.NUMERIC: _A, Kind.FLOAT8: _I},
    Kind.FLOAT8: {Kind.INT2: _A, Kind.INT4: _A, Kind.INT8: _A, Kind.NUMERIC: _A, Kind.FLOAT4: _A},
    Kind.OID: {Kind.INT4: _A, Kind.INT8: _A},
    Kind.DATE: {Kind.TIMESTAMP: _I, Kind.TIMESTAMPTZ: _I},
    Kind.TIME: {Kind.INTERVAL: _I},
    Kind.TIMESTAMP: {Kind.DATE: _A, Kind.TIME: _A, Kind.TIMESTAMPTZ: _I},
    Kind.TIMESTAMPTZ: {Kind.DATE: _A, Kind.TIME: _A, Kind.TIMESTAMP: _A},
    Kind.INTERVAL: {Kind.TIME: _A},
    Kind.MZ_TIMESTAMP: {Kind.INT8: _A, Kind.NUMERIC: _A, Kind.TIMESTAMP: _E, Kind.TIMESTAMPTZ: _E},
    Kind.TEXT: {Kind.VARCHAR: _I, Kind.CHAR: _I, Kind.NAME: _A},
    Kind.VARCHAR: {Kind.TEXT: _I, Kind.CHAR: _I, Kind.NAME: _I},
    Kind.CHAR: {Kind.TEXT: _I, Kind.VARCHAR: _I, Kind.NAME: _I},
    Kind.QCHAR: {Kind.TEXT: _I},
    Kind.NAME: {Kind.TEXT: _I, Kind.VARCHAR: _A, Kind.CHAR: _A},
    Kind.BYTEA: {Kind.INT2: _E, Kind.INT4: _E, Kind.INT8: _E},
    Kind.JSONB: {Kind.BOOL: _E, Kind.INT2: _E, Kind.INT4: _E, Kind.INT8: _E, Kind.FLOAT4: _E, Kind.FLOAT8: _E}
    | {Kind.NUMERIC: _E},
}

for _kind in SIGNED:
    _CASTS[_kind][Kind.BYTEA] = _E


def category(t: SqlType) -> str:
    return _CATEGORY.get(t.kind, "U")


def is_preferred(t: SqlType) -> bool:
    return t.kind in _PREFERRED


def cast_context(source: SqlType, target: SqlType) -> ArgumentContext | None:
    """The weakest context in which `source` casts to `target`; None if no cast exists."""
    if source.kind is target.kind:
        if source.kind in (Kind.ARRAY, Kind.LIST, Kind.MAP):
            if source.element is None or target.element is None:
                return None
            return cast_context(source.element, target.element)
        if source.kind is Kind.RECORD:
            return ArgumentContext.IMPLICIT if source == target else None
        return ArgumentContext.IMPLICIT
    if source.kind is Kind.UNKNOWN:
        return ArgumentContext.IMPLICIT
    direct = _CASTS.get(source.kind, {}).get(target.kind)
    if direct is not None:
        return direct
    if target.kind in STRINGS:
        return ArgumentContext.ASSIGNMENT
    if source.kind in STRINGS:
        return ArgumentContext.EXPLICIT
    return None


def can_coerce(source: SqlType, target: SqlType, context: ArgumentContext = ArgumentContext.IMPLICIT) -> bool:
    found = cast_context(source, target)
    return found is not None and found <= context


def base(t: SqlType) -> SqlType:
    """The type without its modifiers (numeric(5,2) -> numeric, varchar(3) -> varchar)."""
    if t.kind is Kind.NUMERIC and t.precision is not None:
        return SqlType(Kind.NUMERIC, shown=t.scale)
    if t.kind in STRINGS and t.length is not None:
        return SqlType(t.kind)
    return t


def common_type(types: Sequence[SqlType]) -> tuple[SqlType, None] | tuple[None, tuple[SqlType, SqlType]]:
    """The common type of UNION, CASE, VALUES, ARRAY, GREATEST and COALESCE (PostgreSQL's select_common_type),
    or the pair that does not match.
    """
    known = [t for t in types if t.kind is not Kind.UNKNOWN]
    if not known:
        return SqlType(Kind.TEXT), None
    if all(t == known[0] for t in known):
        return plain(known[0]), None
    chosen = plain(base(known[0]))
    for t in map(base, known[1:]):
        if t == chosen:
            continue
        if category(t) != category(chosen):
            return None, (chosen, t)
        if not is_preferred(chosen) and can_coerce(chosen, t) and not can_coerce(t, chosen):
            chosen = plain(t)
    for t in known:
        if not can_coerce(t, chosen):
            return None, (chosen, t)
    return chosen, None
