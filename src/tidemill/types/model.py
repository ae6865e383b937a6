"""Type model: SQL types and relation descriptions, as plain values that all layers share.

A type is an immutable value; equal types compare equal. This module knows nothing of Arrow, Spark, Delta or
the wire: each of those forms has its own module (`arrow`, `delta`, `spark`, `wire`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from enum import Enum


class Kind(Enum):
    """A type without its modifiers. The value is PostgreSQL's internal name (pg_type.typname) if there is
    one."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    UINT2 = "uint2"
    UINT4 = "uint4"
    UINT8 = "uint8"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    NUMERIC = "numeric"
    TEXT = "text"
    VARCHAR = "varchar"
    CHAR = "bpchar"
    BYTEA = "bytea"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    INTERVAL = "interval"
    UUID = "uuid"
    JSONB = "jsonb"
    MZ_TIMESTAMP = "mz_timestamp"
    OID = "oid"
    NAME = "name"
    QCHAR = "char"  # PostgreSQL's "char", one byte; only in its catalogs, never in a stored column
    REGPROC = "regproc"  # the name of a function in its catalogs; never in a stored column
    REGTYPE = "regtype"  # likewise of a type; only as the element of an array
    VOID = "void"  # the result of a function that is called for its effect; never in a stored column
    UNKNOWN = "unknown"  # an untyped literal or parameter before it takes its context's type
    ARRAY = "array"
    LIST = "list"
    MAP = "map"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class SqlType:
    """One SQL type. `length` is for varchar(n) and char(n); `precision` and `scale` for numeric(p,s), both
    None for numeric; `element` for array, list and map (whose keys are text); `fields` for record. `shown` is
    the minimum number of fractional digits that a numeric without a scale shows, if the query determines it.
    It is neither part of the type nor stored."""

    kind: Kind
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    element: SqlType | None = None
    fields: tuple[Column, ...] = ()
    shown: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return type_name(self)


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column of a relation or field of a record."""

    name: str
    type: SqlType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class RelationDesc:
    """The columns of a relation, in order. Names may repeat in a query's result, but not in a stored
    relation. `hidden`: columns that its shard stores for an envelope (their names start with `mz_`), which
    queries do not see."""

    columns: tuple[Column, ...] = field(default=())
    hidden: tuple[Column, ...] = field(default=())

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]

    @property
    def types(self) -> list[SqlType]:
        return [c.type for c in self.columns]


BOOL = SqlType(Kind.BOOL)
INT2 = SqlType(Kind.INT2)
INT4 = SqlType(Kind.INT4)
INT8 = SqlType(Kind.INT8)
UINT2 = SqlType(Kind.UINT2)
UINT4 = SqlType(Kind.UINT4)
UINT8 = SqlType(Kind.UINT8)
FLOAT4 = SqlType(Kind.FLOAT4)
FLOAT8 = SqlType(Kind.FLOAT8)
NUMERIC = SqlType(Kind.NUMERIC)
TEXT = SqlType(Kind.TEXT)
VARCHAR = SqlType(Kind.VARCHAR)
CHAR = SqlType(Kind.CHAR, length=1)
BYTEA = SqlType(Kind.BYTEA)
DATE = SqlType(Kind.DATE)
TIME = SqlType(Kind.TIME)
TIMESTAMP = SqlType(Kind.TIMESTAMP)
TIMESTAMPTZ = SqlType(Kind.TIMESTAMPTZ)
INTERVAL = SqlType(Kind.INTERVAL)
UUID = SqlType(Kind.UUID)
JSONB = SqlType(Kind.JSONB)
MZ_TIMESTAMP = SqlType(Kind.MZ_TIMESTAMP)
OID = SqlType(Kind.OID)
NAME = SqlType(Kind.NAME)
QCHAR = SqlType(Kind.QCHAR)
REGPROC = SqlType(Kind.REGPROC)
REGTYPE = SqlType(Kind.REGTYPE)
VOID = SqlType(Kind.VOID)
UNKNOWN = SqlType(Kind.UNKNOWN)


def plain(t: SqlType) -> SqlType:
    """The type as it is stored: without the number of digits that a query's numerics show."""
    if t.element is not None:
        return replace(t, element=plain(t.element))
    return t if t.shown is None else replace(t, shown=None)


def unmodified(t: SqlType) -> SqlType:
    """The type without a length or digits: `varchar(3)` is `varchar`."""
    if t.element is not None:
        return replace(t, element=unmodified(t.element))
    if t.kind not in (Kind.VARCHAR, Kind.CHAR, Kind.NUMERIC):
        return t
    return replace(t, length=None, precision=None, scale=None, shown=None)


def for_spark(desc: RelationDesc) -> RelationDesc:
    """A catalog's columns in Spark's form. Spark has no names of functions and types: there they are OIDs."""
    types = [_plain_oids(c.type) for c in desc.columns]
    if types == desc.types:
        return desc
    return replace(desc, columns=tuple(map(_typed, desc.columns, types)))


def _typed(column: Column, t: SqlType) -> Column:
    return replace(column, type=t)


def _plain_oids(t: SqlType) -> SqlType:
    if t.element is not None:
        return t if (inner := _plain_oids(t.element)) is t.element else replace(t, element=inner)
    return OID if t.kind in (Kind.REGPROC, Kind.REGTYPE) else t


def face(t: SqlType) -> Hashable:
    """The form of a type's values for clients: the type and the digits that its numerics show. Comparisons of
    types ignore the digits."""
    inner = t
    while inner.element is not None:
        inner = inner.element
    return t, inner.shown


def numeric(precision: int, scale: int = 0) -> SqlType:
    return SqlType(Kind.NUMERIC, precision=precision, scale=scale)


def varchar(length: int) -> SqlType:
    return SqlType(Kind.VARCHAR, length=length)


def char(length: int) -> SqlType:
    return SqlType(Kind.CHAR, length=length)


def array(element: SqlType) -> SqlType:
    return SqlType(Kind.ARRAY, element=element)


def list_(element: SqlType) -> SqlType:
    return SqlType(Kind.LIST, element=element)


def map_(value: SqlType) -> SqlType:
    return SqlType(Kind.MAP, element=value)


def record(*fields: Column) -> SqlType:
    return SqlType(Kind.RECORD, fields=fields)


_SQL_NAMES = {
    Kind.BOOL: "boolean",
    Kind.INT2: "smallint",
    Kind.INT4: "integer",
    Kind.INT8: "bigint",
    Kind.FLOAT4: "real",
    Kind.FLOAT8: "double precision",
    Kind.VARCHAR: "character varying",
    Kind.CHAR: "character",
    Kind.TIME: "time without time zone",
    Kind.TIMESTAMP: "timestamp without time zone",
    Kind.TIMESTAMPTZ: "timestamp with time zone",
}


def type_name(t: SqlType) -> str:
    """The type as formatted by PostgreSQL's format_type. It parses to the same type."""
    if t.kind is Kind.ARRAY and t.element is not None:
        return f"{type_name(t.element)}[]"
    if t.kind is Kind.LIST and t.element is not None:
        return f"{type_name(t.element)} list"
    if t.kind is Kind.MAP and t.element is not None:
        return f"map[text=>{type_name(t.element)}]"
    if t.kind is Kind.RECORD:
        inner = ", ".join(f"{_quoted(c.name)} {type_name(c.type)}" for c in t.fields)
        return f"record({inner})"
    if t.kind is Kind.CHAR and t.length is None:
        return "bpchar"  # `character` alone would be character(1)
    if t.kind is Kind.QCHAR:
        return '"char"'
    base = _SQL_NAMES.get(t.kind, t.kind.value)
    if t.kind is Kind.NUMERIC and t.precision is not None:
        return f"numeric({t.precision},{t.scale})"
    if t.length is not None:
        return f"{base}({t.length})"
    return base


def _quoted(name: str) -> str:
    """A field's name, quoted if necessary."""
    if name.isascii() and name.isidentifier() and name == name.lower():
        return name
    return '"' + name.replace('"', '""') + '"'
