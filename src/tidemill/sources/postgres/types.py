"""PostgreSQL's types as types of columns here.

A column of another type can be kept as text (TEXT COLUMNS), as PostgreSQL writes it. A domain is its base
type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.types import model
from tidemill.types.model import Kind, SqlType

# By the OID in pg_type, which is the same on every server.
_PLAIN: dict[int, SqlType] = {
    16: model.BOOL,
    17: model.BYTEA,
    18: model.TEXT,  # "char"
    19: model.TEXT,  # name
    20: model.INT8,
    21: model.INT2,
    23: model.INT4,
    25: model.TEXT,
    26: model.OID,
    114: model.JSONB,  # json
    700: model.FLOAT4,
    701: model.FLOAT8,
    1082: model.DATE,
    1083: model.TIME,
    1114: model.TIMESTAMP,
    1184: model.TIMESTAMPTZ,
    1186: model.INTERVAL,
    2950: model.UUID,
    3802: model.JSONB,
}
_BPCHAR, _VARCHAR, _NUMERIC = 1042, 1043, 1700
# A type modifier begins behind the length of a header.
_HEADER = 4
MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class UpstreamType:
    """A row of pg_type. `base` and `typmod` are those of a domain, `element` that of an array; else 0 and
    -1."""

    oid: int
    shown: str  # as format_type has it
    base: int = 0
    typmod: int = -1
    element: int = 0


class NotMapped(Exception):
    """A type that only text can represent. `why` is what to say of it behind "type x", if anything."""

    def __init__(self, shown: str, why: str | None = None) -> None:
        super().__init__(shown)
        self.shown = shown
        self.why = why


def column_type(oid: int, typmod: int, types: Mapping[int, UpstreamType]) -> SqlType:
    """Raises NotMapped. `types` has the type, and those that it is made of."""
    if oid in _PLAIN:
        return _PLAIN[oid]
    if oid == _VARCHAR:
        return SqlType(Kind.VARCHAR, length=_length(typmod))
    if oid == _BPCHAR:
        return SqlType(Kind.CHAR, length=_length(typmod))
    if oid == _NUMERIC:
        return _numeric(typmod)
    found = types[oid]
    if found.base:
        return column_type(found.base, found.typmod if found.typmod >= 0 else typmod, types)
    if found.element:
        try:
            element = column_type(found.element, typmod, types)
        except NotMapped as e:
            raise NotMapped(found.shown, e.why) from None
        if element.kind is not Kind.ARRAY:
            return model.array(element)
    raise NotMapped(found.shown)


# Types whose values are shown by the present names of other objects: reg*, aclitem.
_NAMED = frozenset((24, 1033, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191))


def named_elsewhere(oid: int, types: Mapping[int, UpstreamType]) -> str | None:
    """How the type is shown, if its texts are names of other objects: they change without the row."""
    found = types[oid]
    part = found.base or found.element
    if oid in _NAMED or (part and named_elsewhere(part, types) is not None):
        return found.shown
    return None


def _length(typmod: int) -> int | None:
    return None if typmod < _HEADER else typmod - _HEADER


def _numeric(typmod: int) -> SqlType:
    """The scale may be negative or greater than the precision since PostgreSQL 15."""
    if typmod < _HEADER:
        return model.NUMERIC
    packed = typmod - _HEADER
    precision, scale = (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024
    shown = f"numeric({precision},{scale})"
    digits = max(precision, scale) if scale >= 0 else precision - scale
    if digits > MAX_DIGITS:
        raise NotMapped(shown, f"more than {MAX_DIGITS} digits")
    return model.numeric(digits, max(scale, 0))
