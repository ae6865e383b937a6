"""Spark form of SQL types: DDL text for CAST and schemas, and StructType for readers.

Called by `sql` (casts in generated expressions) and `query` (schemas of snapshots). pyspark is imported only
when a StructType is requested: the text forms also serve code that runs before, or without, Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.errors import Internal
from tidemill.types.arrow import arrow_type, decimal_shape, element_type
from tidemill.types.model import Kind, RelationDesc, SqlType
from tidemill.types.names import physical_names_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PLAIN: dict[Kind, str] = {
    Kind.BOOL: "BOOLEAN",
    Kind.INT2: "SMALLINT",
    Kind.INT4: "INT",
    Kind.INT8: "BIGINT",
    Kind.UINT2: "INT",
    Kind.UINT4: "BIGINT",
    Kind.UINT8: "DECIMAL(20,0)",
    Kind.FLOAT4: "FLOAT",
    Kind.FLOAT8: "DOUBLE",
    Kind.TEXT: "STRING",
    Kind.VARCHAR: "STRING",
    Kind.CHAR: "STRING",
    Kind.NAME: "STRING",
    Kind.QCHAR: "STRING",
    Kind.UNKNOWN: "STRING",
    Kind.JSONB: "STRING",
    Kind.BYTEA: "BINARY",
    Kind.UUID: "BINARY",
    Kind.DATE: "DATE",
    Kind.TIME: "BIGINT",
    Kind.TIMESTAMP: "TIMESTAMP_NTZ",
    Kind.TIMESTAMPTZ: "TIMESTAMP_LTZ",
    Kind.INTERVAL: "STRUCT<months: INT, days: INT, micros: BIGINT>",
    Kind.MZ_TIMESTAMP: "BIGINT",
    Kind.OID: "BIGINT",
}


def quote_identifier(name: str) -> str:
    """The name in Spark SQL; it may contain any characters."""
    return "`" + name.replace("`", "``") + "`"


def spark_type(t: SqlType) -> str:
    """The storage form of `t` in Spark's syntax."""
    plain = _PLAIN.get(t.kind)
    if plain is not None:
        return plain
    if t.kind is Kind.NUMERIC:
        precision, scale = decimal_shape(t)
        return f"DECIMAL({precision},{scale})"
    if t.kind in (Kind.ARRAY, Kind.LIST):
        return f"ARRAY<{spark_type(element_type(t))}>"
    if t.kind is Kind.MAP:
        return f"MAP<STRING, {spark_type(element_type(t))}>"
    if t.kind is Kind.RECORD:
        names = physical_names_of([c.name for c in t.fields])
        fields = [
            f"{quote_identifier(n)}: {spark_type(c.type)}" for n, c in zip(names, t.fields, strict=True)
        ]
        return f"STRUCT<{', '.join(fields)}>"
    raise Internal(f"type {t.kind.value} has no Spark form")


def spark_schema(desc: RelationDesc, names: Sequence[str] | None = None) -> StructType:
    """The relation as a StructType. Every field is nullable, because an error row has no values."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    named = zip(desc.names if names is None else names, desc.types, strict=True)
    return StructType(
        [StructField(n, from_arrow_type(arrow_type(t), prefer_timestamp_ntz=True)) for n, t in named]
    )
