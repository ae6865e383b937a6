"""Type OIDs: the OID, length and modifier that clients receive for a type, and the type of an OID.

Called by `server` (RowDescription, ParameterDescription) and `engine` (parameter types). PostgreSQL's types
have PostgreSQL's OIDs. All others have OIDs above 16383, PostgreSQL's range for user-defined types, so
clients treat them as such. OIDs never change, because clients cache them.
"""

from __future__ import annotations

from tidemill.types import model
from tidemill.types.arrow import element_type
from tidemill.types.model import Kind, SqlType

# An mz_timestamp is sent as numeric(39,0). 20 digits would suffice today; the width allows for wider times.
MZ_TIMESTAMP_PRECISION = 39

# kind -> (OID, OID of its array, length; -1 variable)
_KINDS: dict[Kind, tuple[int, int, int]] = {
    Kind.BOOL: (16, 1000, 1),
    Kind.BYTEA: (17, 1001, -1),
    Kind.QCHAR: (18, 1002, 1),
    Kind.NAME: (19, 1003, 64),
    Kind.INT8: (20, 1016, 8),
    Kind.INT2: (21, 1005, 2),
    Kind.INT4: (23, 1007, 4),
    Kind.REGPROC: (24, 1008, 4),
    Kind.TEXT: (25, 1009, -1),
    Kind.OID: (26, 1028, 4),
    Kind.REGTYPE: (2206, 2211, 4),
    Kind.FLOAT4: (700, 1021, 4),
    Kind.FLOAT8: (701, 1022, 8),
    Kind.UNKNOWN: (705, 1009, -2),
    Kind.CHAR: (1042, 1014, -1),
    Kind.VARCHAR: (1043, 1015, -1),
    Kind.DATE: (1082, 1182, 4),
    Kind.TIME: (1083, 1183, 8),
    Kind.TIMESTAMP: (1114, 1115, 8),
    Kind.TIMESTAMPTZ: (1184, 1185, 8),
    Kind.INTERVAL: (1186, 1187, 16),
    Kind.NUMERIC: (1700, 1231, -1),
    Kind.RECORD: (2249, 2287, -1),
    Kind.VOID: (2278, 0, 4),
    Kind.UUID: (2950, 2951, 16),
    Kind.JSONB: (3802, 3807, -1),
    Kind.LIST: (16384, 16386, -1),
    Kind.MAP: (16385, 16387, -1),
    Kind.UINT2: (16460, 16461, 2),
    Kind.UINT4: (16462, 16463, 4),
    Kind.UINT8: (16464, 16465, 8),
    # On the wire it is a numeric. The type's own OIDs (below) are for the catalog and for parameters.
    Kind.MZ_TIMESTAMP: (1700, 1231, -1),
}
MZ_TIMESTAMP_OID = 16552
MZ_TIMESTAMP_ARRAY_OID = 16553
JSON_OID = 114
JSON_ARRAY_OID = 199

_SIMPLE = [
    model.BOOL,
    model.BYTEA,
    model.QCHAR,
    model.NAME,
    model.INT8,
    model.INT2,
    model.INT4,
    model.TEXT,
    model.OID,
    model.FLOAT4,
    model.FLOAT8,
    SqlType(Kind.CHAR),
    model.VARCHAR,
    model.DATE,
    model.TIME,
    model.TIMESTAMP,
    model.TIMESTAMPTZ,
    model.INTERVAL,
    model.NUMERIC,
    model.UUID,
    model.JSONB,
    model.UINT2,
    model.UINT4,
    model.UINT8,
]
_BY_OID: dict[int, SqlType] = {
    **{_KINDS[t.kind][0]: t for t in _SIMPLE},
    **{_KINDS[t.kind][1]: model.array(t) for t in _SIMPLE},
    _KINDS[Kind.UNKNOWN][0]: model.UNKNOWN,
    MZ_TIMESTAMP_OID: model.MZ_TIMESTAMP,
    MZ_TIMESTAMP_ARRAY_OID: model.array(model.MZ_TIMESTAMP),
    JSON_OID: model.JSONB,
    JSON_ARRAY_OID: model.array(model.JSONB),
}


def oid(t: SqlType) -> int:
    """The OID that clients see for `t`."""
    if t.kind is Kind.ARRAY:
        return _KINDS[element_type(t).kind][1]
    return _KINDS[t.kind][0]


def typlen(t: SqlType) -> int:
    """pg_type.typlen: bytes, or -1 for a variable length."""
    if t.kind is Kind.ARRAY:
        return -1
    return _KINDS[t.kind][2]


def typmod(t: SqlType) -> int:
    """pg_attribute.atttypmod: the declared length, or precision and scale; -1 for none."""
    if t.kind is Kind.ARRAY:
        return typmod(element_type(t))
    if t.kind is Kind.NUMERIC and t.precision is not None:
        return ((t.precision << 16) | (t.scale or 0)) + 4
    if t.kind is Kind.MZ_TIMESTAMP:
        return (MZ_TIMESTAMP_PRECISION << 16) + 4
    if t.length is not None:
        return t.length + 4
    return -1


def type_of_oid(number: int) -> SqlType | None:
    """The type for a client's OID; None for 0 (unspecified) and for unknown OIDs."""
    return _BY_OID.get(number)
