"""pg_type: the supported types, as clients look them up."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tidemill.types import model
from tidemill.types.model import Kind, SqlType, type_name
from tidemill.types.wire import oid, typlen, typmod
from tidemill.types.wire.oids import MZ_TIMESTAMP_ARRAY_OID, MZ_TIMESTAMP_OID

DEFAULT_COLLATION = 100
C_COLLATION = 950
# Functions that read and write a type's values have OIDs that follow from the type's.
_IO = 1 << 29
ARRAY_IN, ARRAY_OUT, ARRAY_RECEIVE, ARRAY_SEND = 750, 751, 2400, 2401


@dataclass(frozen=True, slots=True)
class PgType:
    """A row of pg_type. `sql_name` is the name from format_type."""

    oid: int
    name: str
    sql_name: str
    category: str
    length: int
    array: int = 0
    element: int = 0
    kind: str = "b"
    collation: int = 0
    preferred: bool = False


_CATEGORIES = {
    Kind.BOOL: "B",
    Kind.DATE: "D",
    Kind.TIME: "D",
    Kind.TIMESTAMP: "D",
    Kind.TIMESTAMPTZ: "D",
    Kind.INTERVAL: "T",
    Kind.TEXT: "S",
    Kind.VARCHAR: "S",
    Kind.CHAR: "S",
    Kind.NAME: "S",
    Kind.QCHAR: "Z",
    Kind.BYTEA: "U",
    Kind.UUID: "U",
    Kind.JSONB: "U",
    Kind.LIST: "U",
    Kind.MAP: "U",
}
_PREFERRED = {Kind.BOOL, Kind.FLOAT8, Kind.OID, Kind.TEXT, Kind.TIMESTAMPTZ, Kind.INTERVAL}
_PLAIN = [
    *(model.BOOL, model.BYTEA, model.QCHAR, model.NAME, model.INT8, model.INT2, model.INT4, model.TEXT),
    *(model.OID, model.FLOAT4, model.FLOAT8, SqlType(Kind.CHAR), model.VARCHAR, model.DATE, model.TIME),
    *(model.TIMESTAMP, model.TIMESTAMPTZ, model.INTERVAL, model.NUMERIC, model.UUID, model.JSONB),
    *(model.UINT2, model.UINT4, model.UINT8),
]
# Types that appear in catalogs, casts and signatures, though no stored column has them.
_OTHERS = [
    PgType(22, "int2vector", "int2vector", "A", -1, 1006, 21),
    PgType(24, "regproc", "regproc", "N", 4, 1008),
    PgType(28, "xid", "xid", "U", 4, 1011),
    PgType(29, "cid", "cid", "U", 4, 1012),
    PgType(30, "oidvector", "oidvector", "A", -1, 1013, 26),
    PgType(114, "json", "json", "U", -1, 199),
    PgType(194, "pg_node_tree", "pg_node_tree", "Z", -1),
    PgType(705, "unknown", "unknown", "X", -2, kind="p"),
    PgType(1033, "aclitem", "aclitem", "U", 16, 1034),
    PgType(2205, "regclass", "regclass", "N", 4, 2210),
    PgType(2206, "regtype", "regtype", "N", 4, 2211),
    PgType(2249, "record", "record", "P", -1, 2287, kind="p"),
    PgType(2275, "cstring", "cstring", "P", -2, kind="p"),
    PgType(2276, "any", '"any"', "P", 4, kind="p"),
    PgType(2277, "anyarray", "anyarray", "P", -1, kind="p"),
    PgType(2278, "void", "void", "P", 4, kind="p"),
    PgType(2283, "anyelement", "anyelement", "P", 4, kind="p"),
    PgType(4089, "regnamespace", "regnamespace", "N", 4, 4090),
    PgType(4096, "regrole", "regrole", "N", 4, 4097),
]


def column_oid(t: SqlType) -> int:
    """pg_attribute.atttypid. On the wire an mz_timestamp is a numeric; here it has its own OID."""
    if t.kind is Kind.MZ_TIMESTAMP:
        return MZ_TIMESTAMP_OID
    if t.kind is Kind.ARRAY and t.element is not None and t.element.kind is Kind.MZ_TIMESTAMP:
        return MZ_TIMESTAMP_ARRAY_OID
    return oid(t)


# The modifier of a list or map is a number for the whole type, because all lists have one OID. There are as
# many numbers as columns have such types.
_WHOLE: dict[int, str] = {}


def column_typmod(t: SqlType) -> int:
    """pg_attribute.atttypmod, in the form that `format_type` reads."""
    inner = t.element if t.kind is Kind.ARRAY and t.element is not None else t
    if inner.kind in (Kind.LIST, Kind.MAP):
        number = zlib.crc32(str(inner).encode()) >> 1
        _WHOLE[number] = str(inner)
        return number
    return -1 if inner.kind is Kind.MZ_TIMESTAMP else typmod(t)


def collation_of(t: SqlType) -> int:
    inner = t.element if t.kind is Kind.ARRAY and t.element is not None else t
    if inner.kind is Kind.NAME:
        return C_COLLATION
    return DEFAULT_COLLATION if inner.kind in (Kind.TEXT, Kind.VARCHAR, Kind.CHAR) else 0


def _plain_types() -> Iterator[PgType]:
    for t in _PLAIN:
        yield PgType(
            oid(t),
            t.kind.value,
            "character" if t.kind is Kind.CHAR else type_name(t),
            _CATEGORIES.get(t.kind, "N"),
            typlen(t),
            oid(model.array(t)),
            collation=collation_of(t),
            preferred=t.kind in _PREFERRED,
        )
    yield PgType(MZ_TIMESTAMP_OID, "mz_timestamp", "mz_timestamp", "U", 8, MZ_TIMESTAMP_ARRAY_OID)
    for t in (model.list_(model.TEXT), model.map_(model.TEXT)):
        yield PgType(oid(t), t.kind.value, t.kind.value, "U", -1, oid(model.array(t)))
    yield from _OTHERS


@cache
def types() -> Mapping[int, PgType]:
    found: dict[int, PgType] = {}
    for t in _plain_types():
        found[t.oid] = t
        if t.array:
            kind = "p" if t.kind == "p" else "b"
            found[t.array] = PgType(
                t.array, f"_{t.name}", f"{t.sql_name}[]", "A", -1, 0, t.oid, kind, t.collation
            )
    return found


def io_oids(t: PgType) -> tuple[int, int, int, int]:
    """The OIDs of the type's input, output, receive and send functions."""
    if t.name.startswith("_") and t.element:
        return ARRAY_IN, ARRAY_OUT, ARRAY_RECEIVE, ARRAY_SEND
    first = _IO + 4 * t.oid
    if t.name in _TEXT_ONLY:
        return first, first + 1, 0, 0
    return first, first + 1, first + 2, first + 3


_IO_NAMES = ("in", "out", "recv", "send")
# Types whose functions have an underscore in PostgreSQL: date_recv, but int8recv.
_UNDERSCORED = {
    *("date", "time", "timestamp", "timestamptz", "interval", "numeric", "uuid", "jsonb", "json", "record"),
    *("cstring", "any", "anyarray", "anyelement", "void", "pg_node_tree", "mz_timestamp"),
}
# PostgreSQL has no binary form of them.
_TEXT_ONLY = {"aclitem", "any", "anyelement"}
SUBSCRIPT_HANDLER = 6179


@cache
def io_names() -> Mapping[int, str]:
    """The names of these functions: textin, textout, textrecv, textsend."""
    found: dict[int, str] = {
        ARRAY_IN: "array_in",
        ARRAY_OUT: "array_out",
        ARRAY_RECEIVE: "array_recv",
        ARRAY_SEND: "array_send",
        SUBSCRIPT_HANDLER: "array_subscript_handler",
    }
    for t in types().values():
        if not t.name.startswith("_"):
            stem = f"{t.name}_" if t.name in _UNDERSCORED else t.name
            found.update((o, f"{stem}{n}") for o, n in zip(io_oids(t), _IO_NAMES, strict=True) if o)
    return found


def format_type(number: int | None, modifier: int | None) -> str | None:
    """As PostgreSQL's format_type: with the length or precision, if the type has one."""
    if number is None:
        return None
    t = types().get(number)
    if t is None:
        return "-" if number == 0 else "???"
    if t.element and t.name.startswith("_"):
        return f"{format_type(t.element, modifier)}[]"
    if modifier is None:
        return t.sql_name
    if t.name in ("list", "map") and modifier in _WHOLE:
        return _WHOLE[modifier]
    if modifier < 0:
        return "bpchar" if t.name == "bpchar" else t.sql_name
    if t.name == "numeric" and modifier >= 4:
        return f"numeric({(modifier - 4) >> 16},{(modifier - 4) & 0x7FF})"
    if t.name in ("varchar", "bpchar") and modifier >= 4:
        return f"{t.sql_name}({modifier - 4})"
    return t.sql_name
