"""Storage form of SQL types in Arrow: values in parts, in record batches and between the layers.

All code that holds values (persist, query, engine, server) uses these forms and no other; `wire` converts
them to a client's bytes. Delta, Parquet and Spark keep these forms unchanged. They contain no unsigned
integers, 39-digit decimals, Arrow times or durations, which Delta does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.types.model import Column, Kind, RelationDesc, SqlType
from tidemill.types.names import physical_names_of

# A numeric without precision. 38 digits is the maximum of Delta and Spark. 18 fractional digits is Spark's
# choice for quotients, and leaves 20 before the point.
NUMERIC_PRECISION = 38
NUMERIC_SCALE = 18

# The columns that every shard has after the relation's columns, in this order.
TIME_COLUMN = "mz_timestamp"
DIFF_COLUMN = "mz_diff"
ERROR_COLUMN = "mz_error"

# In the error column: the row is neither a row of the relation nor an error. An envelope uses it to keep data
# in its hidden columns (the order of a deleted key).
HIDDEN_ROW = ""


def error_parts(text: str) -> tuple[str, str | None]:
    """The parts of an error row: its first line, and, as a detail, the text below it, which names the
    record."""
    primary, _, detail = text.partition("\n")
    return primary, detail or None


INTERVAL_FIELDS = [
    pa.field("months", pa.int32()),
    pa.field("days", pa.int32()),
    pa.field("micros", pa.int64()),
]

# A function of the catalogs: its name in text format, its OID in binary format.
REG_FIELDS = [pa.field("oid", pa.int64()), pa.field("name", pa.string())]

_PLAIN: dict[Kind, pa.DataType] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT2: pa.int16(),
    Kind.INT4: pa.int32(),
    Kind.INT8: pa.int64(),
    Kind.UINT2: pa.int32(),
    Kind.UINT4: pa.int64(),
    Kind.UINT8: pa.decimal128(20, 0),
    Kind.FLOAT4: pa.float32(),
    Kind.FLOAT8: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.VARCHAR: pa.string(),
    Kind.CHAR: pa.string(),
    Kind.NAME: pa.string(),
    Kind.QCHAR: pa.string(),
    Kind.UNKNOWN: pa.string(),
    Kind.VOID: pa.string(),
    Kind.JSONB: pa.string(),
    Kind.BYTEA: pa.binary(),
    Kind.UUID: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.int64(),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    Kind.INTERVAL: pa.struct(INTERVAL_FIELDS),
    Kind.MZ_TIMESTAMP: pa.int64(),
    Kind.OID: pa.int64(),
    Kind.REGPROC: pa.struct(REG_FIELDS),
    Kind.REGTYPE: pa.struct(REG_FIELDS),
}


def element_type(t: SqlType) -> SqlType:
    """The element type (array, list) or value type (map). A container without one is a bug."""
    if t.element is None:
        raise Internal(f"type {t.kind.value} has no element type")
    return t.element


def decimal_shape(t: SqlType) -> tuple[int, int]:
    """Precision and scale of a numeric's storage form."""
    if t.precision is None:
        return NUMERIC_PRECISION, NUMERIC_SCALE
    return t.precision, t.scale or 0


def arrow_type(t: SqlType) -> pa.DataType:
    """The storage form of `t`."""
    plain = _PLAIN.get(t.kind)
    if plain is not None:
        return plain
    if t.kind is Kind.NUMERIC:
        return pa.decimal128(*decimal_shape(t))
    if t.kind in (Kind.ARRAY, Kind.LIST):
        return pa.list_(pa.field("element", arrow_type(element_type(t))))
    if t.kind is Kind.MAP:
        return pa.map_(pa.string(), arrow_type(element_type(t)))
    if t.kind is Kind.RECORD:
        names = physical_names_of([c.name for c in t.fields])
        return pa.struct(
            [pa.field(name, arrow_type(c.type)) for name, c in zip(names, t.fields, strict=True)]
        )
    raise Internal(f"type {t.kind.value} has no storage form")


def arrow_schema(desc: RelationDesc, names: Sequence[str] | None = None) -> pa.Schema:
    """The relation's columns under their SQL names (which may repeat in a query's result), or under
    `names`."""
    return pa.schema(_fields(desc.columns, desc.names if names is None else names))


def storage_schema(desc: RelationDesc) -> pa.Schema:
    """The relation's columns under their physical names, as parts store them, without the shard's columns."""
    return arrow_schema(desc, physical_names_of(desc.names))


def shard_schema(desc: RelationDesc) -> pa.Schema:
    """The columns of a part of the relation's shard: the relation's columns, then time, diff and error, then
    the hidden ones. All except time and diff are nullable: an error row has no values, even in columns that
    are NOT NULL."""
    schema = pa.schema([f.with_nullable(True) for f in storage_schema(desc)])
    schema = schema.append(pa.field(TIME_COLUMN, pa.int64(), nullable=False))
    schema = schema.append(pa.field(DIFF_COLUMN, pa.int64(), nullable=False))
    schema = schema.append(pa.field(ERROR_COLUMN, pa.string()))
    return pa.schema([*schema, *hidden_fields(desc)])


def hidden_fields(desc: RelationDesc) -> list[pa.Field]:
    return [pa.field(c.name, arrow_type(c.type)) for c in desc.hidden]


def _fields(columns: Sequence[Column], names: Sequence[str]) -> list[pa.Field]:
    return [
        pa.field(name, arrow_type(c.type), nullable=c.nullable)
        for name, c in zip(names, columns, strict=True)
    ]
