"""Types of catalog queries: the SQL types, and PostgreSQL's aliases of OIDs (regclass and others).

The aliases exist only inside such a query; its result has them as text.
"""

from __future__ import annotations

from enum import Enum

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.typename import sql_type, written_name
from tidemill.types import model
from tidemill.types.arrow import element_type
from tidemill.types.model import Kind, SqlType


class Reg(Enum):
    """An OID that is read and written as the name of its object."""

    CLASS = "regclass"
    TYPE = "regtype"
    PROC = "regproc"
    PROCEDURE = "regprocedure"
    NAMESPACE = "regnamespace"
    ROLE = "regrole"
    OPER = "regoper"
    OPERATOR = "regoperator"
    COLLATION = "regcollation"
    CONFIG = "regconfig"
    DICTIONARY = "regdictionary"


Type = SqlType | Reg

# Arrays written with blanks between their elements ("1 2"), such as pg_index.indkey: clients parse them
# themselves. Stored arrays never have a length, so the length distinguishes these from plain arrays.
INT2VECTOR = SqlType(Kind.ARRAY, element=model.INT2, length=0)
OIDVECTOR = SqlType(Kind.ARRAY, element=model.OID, length=0)
# Arrays of OIDs in local queries. One regtype is a `Reg`.
REGTYPES = model.array(model.REGTYPE)


def is_vector(t: Type) -> bool:
    return t in (INT2VECTOR, OIDVECTOR)


_REGS = {r.value: r for r in Reg}
# Types of PostgreSQL's catalogs that Tidemill shows as another type.
_SHOWN: dict[str, SqlType] = {
    "char": model.QCHAR,
    "int2vector": INT2VECTOR,
    "oidvector": OIDVECTOR,
    "json": model.JSONB,
    "xid": model.OID,
    "cid": model.OID,
    "aclitem": model.TEXT,
    "pg_node_tree": model.TEXT,
    "cardinal_number": model.INT4,
    "character_data": model.VARCHAR,
    "sql_identifier": model.NAME,
    "yes_or_no": model.VARCHAR,
}

STRINGS = frozenset({Kind.TEXT, Kind.VARCHAR, Kind.NAME, Kind.QCHAR})
INTEGERS = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID, Kind.UINT2, Kind.UINT4, Kind.UINT8})
NUMBERS = INTEGERS | {Kind.NUMERIC}
FLOATS = frozenset({Kind.FLOAT4, Kind.FLOAT8})
# Compared as Python compares their values.
PLAIN = frozenset(
    {Kind.BOOL, Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE, Kind.MZ_TIMESTAMP, Kind.UUID, Kind.BYTEA}
)


class Category(Enum):
    NUMBER = 1
    FLOAT = 2
    STRING = 3
    ARRAY = 4
    UNKNOWN = 5
    OTHER = 6


def category(t: Type) -> Category:
    if isinstance(t, Reg) or t.kind in NUMBERS:
        return Category.NUMBER
    if t.kind in FLOATS:
        return Category.FLOAT
    if t.kind in STRINGS:
        return Category.STRING
    if t.kind is Kind.ARRAY:
        return Category.ARRAY
    return Category.UNKNOWN if t.kind is Kind.UNKNOWN else Category.OTHER


def kind(t: Type) -> Kind:
    return Kind.OID if isinstance(t, Reg) else t.kind


def local_type(node: exp.Expr) -> Type | None:
    """The type that a cast names; None if this package has no such type."""
    if isinstance(node, exp.DataType) and node.this is exp.DType.ARRAY:
        inner = local_type(node.expressions[0])
        if inner is Reg.TYPE:
            return REGTYPES
        if not isinstance(inner, SqlType):
            return None
        return inner if inner.kind is Kind.ARRAY else model.array(inner)
    name = written_name(node)
    if name in _REGS:
        return _REGS[name]
    if name in _SHOWN:
        return _SHOWN[name]
    if isinstance(node, exp.DataType) and node.this is exp.DType.JSON:
        return model.JSONB
    try:
        return sql_type(node)
    except TidemillError:
        return None


def array_element(t: SqlType) -> Type:
    """The type of an array's elements in local queries."""
    inner = element_type(t)
    return Reg.TYPE if inner == model.REGTYPE else inner


def shown(t: Type) -> SqlType:
    """The type of a column that the client sees."""
    if t is Reg.PROC:
        return model.REGPROC
    if isinstance(t, Reg) or is_vector(t):
        return model.TEXT
    return model.TEXT if t.kind is Kind.UNKNOWN else t
