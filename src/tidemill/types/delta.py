"""Delta form of a relation: the `schemaString` of a table's metaData, and back.

Called by `persist` when it creates, evolves and opens a shard. The metadata of each field keeps the SQL name
and type, so the relation can be read back from the table alone: `relation_of(delta_schema(desc)) == desc`.
"""

from __future__ import annotations

import json
from typing import Any, cast

from tidemill.errors import DataCorrupted, Internal, TidemillError
from tidemill.types.arrow import (
    DIFF_COLUMN,
    ERROR_COLUMN,
    TIME_COLUMN,
    decimal_shape,
    element_type,
)
from tidemill.types.model import Column, Kind, RelationDesc, SqlType, type_name
from tidemill.types.names import physical_names, physical_names_of
from tidemill.types.parse_name import parse_type

__all__ = [
    "delta_schema",
    "delta_schema_string",
    "delta_type",
    "physical_names",
    "relation_of",
    "uses_timestamp_ntz",
]

# Keys of a field's metadata. Readers that do not know them ignore them.
NAME_KEY = "tidemill.name"
TYPE_KEY = "tidemill.type"
NOT_NULL_KEY = "tidemill.notNull"
# The name entry of a column that queries do not see.
HIDDEN_KEY = "tidemill.hidden"

_PLAIN: dict[Kind, str] = {
    Kind.BOOL: "boolean",
    Kind.INT2: "short",
    Kind.INT4: "integer",
    Kind.INT8: "long",
    Kind.UINT2: "integer",
    Kind.UINT4: "long",
    Kind.UINT8: "decimal(20,0)",
    Kind.FLOAT4: "float",
    Kind.FLOAT8: "double",
    Kind.TEXT: "string",
    Kind.VARCHAR: "string",
    Kind.CHAR: "string",
    Kind.NAME: "string",
    Kind.UNKNOWN: "string",
    Kind.JSONB: "string",
    Kind.BYTEA: "binary",
    Kind.UUID: "binary",
    Kind.DATE: "date",
    Kind.TIME: "long",
    Kind.TIMESTAMP: "timestamp_ntz",
    Kind.TIMESTAMPTZ: "timestamp",
    Kind.MZ_TIMESTAMP: "long",
    Kind.OID: "long",
}


def delta_type(t: SqlType) -> str | dict[str, Any]:
    """The type in the JSON of a Delta schema."""
    plain = _PLAIN.get(t.kind)
    if plain is not None:
        return plain
    if t.kind is Kind.NUMERIC:
        precision, scale = decimal_shape(t)
        return f"decimal({precision},{scale})"
    if t.kind is Kind.INTERVAL:
        parts = (("months", "integer"), ("days", "integer"), ("micros", "long"))
        return {"type": "struct", "fields": [_field(name, typ) for name, typ in parts]}
    if t.kind in (Kind.ARRAY, Kind.LIST):
        return {"type": "array", "elementType": delta_type(element_type(t)), "containsNull": True}
    if t.kind is Kind.MAP:
        value = delta_type(element_type(t))
        return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}
    if t.kind is Kind.RECORD:
        names = physical_names_of([c.name for c in t.fields])
        fields = [_field(name, delta_type(c.type)) for name, c in zip(names, t.fields, strict=True)]
        return {"type": "struct", "fields": fields}
    raise Internal(f"type {t.kind.value} has no Delta form")


def delta_schema(desc: RelationDesc) -> dict[str, Any]:
    """The schema of the relation's shard: its columns, then time, diff and error, then the hidden ones (under
    exactly their names). All columns are nullable, because an error row has no values."""
    fields: list[dict[str, Any]] = []
    for physical, column in zip(physical_names(desc), desc.columns, strict=True):
        metadata: dict[str, Any] = {NAME_KEY: column.name, TYPE_KEY: type_name(column.type)}
        if not column.nullable:
            metadata[NOT_NULL_KEY] = True
        fields.append(_field(physical, delta_type(column.type), metadata=metadata))
    fields.append(_field(TIME_COLUMN, "long", nullable=False))
    fields.append(_field(DIFF_COLUMN, "long", nullable=False))
    fields.append(_field(ERROR_COLUMN, "string"))
    for column in desc.hidden:
        metadata = {HIDDEN_KEY: True, TYPE_KEY: type_name(column.type)}
        fields.append(_field(column.name, delta_type(column.type), metadata=metadata))
    return {"type": "struct", "fields": fields}


def delta_schema_string(desc: RelationDesc) -> str:
    """`delta_schema` as the text of metaData. The same relation has the same bytes."""
    return json.dumps(delta_schema(desc), ensure_ascii=False, separators=(",", ":"))


def relation_of(schema: str | dict[str, Any]) -> RelationDesc:
    """The relation that a table's schema describes. Raises if the schema is not one of ours."""
    if isinstance(schema, str):
        try:
            parsed = json.loads(schema)
        except ValueError as error:
            raise DataCorrupted("the table's schema is no JSON", detail=str(error)) from error
    else:
        parsed = schema
    columns: list[Column] = []
    hidden: list[Column] = []
    try:
        for entry in cast("list[dict[str, Any]]", parsed["fields"]):
            metadata = cast("dict[str, Any]", entry.get("metadata") or {})
            if HIDDEN_KEY in metadata:
                hidden.append(Column(str(entry["name"]), parse_type(str(metadata[TYPE_KEY]))))
                continue
            if NAME_KEY not in metadata:
                continue  # time, diff and error
            sql_type = parse_type(str(metadata[TYPE_KEY]))
            columns.append(
                Column(str(metadata[NAME_KEY]), sql_type, nullable=not metadata.get(NOT_NULL_KEY, False))
            )
    except (KeyError, TypeError, AttributeError, TidemillError) as error:
        raise DataCorrupted("the table's schema is not that of a shard", detail=str(error)) from error
    return RelationDesc(tuple(columns), tuple(hidden))


def uses_timestamp_ntz(desc: RelationDesc) -> bool:
    """Whether the table's protocol must name the feature `timestampNtz` (reader 3, writer 7)."""

    def uses(t: SqlType) -> bool:
        if t.kind is Kind.TIMESTAMP or (t.element is not None and uses(t.element)):
            return True
        return any(uses(c.type) for c in t.fields)

    return any(uses(t) for t in desc.types)


def _field(
    name: str,
    typ: str | dict[str, Any],
    nullable: bool = True,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"name": name, "type": typ, "nullable": nullable, "metadata": metadata or {}}
