"""SQL columns of an Avro schema: the type of each value, and the columns of a message.

Called at CREATE, to determine the columns and to refuse schemas without a column form. Also called by
`resolve`, which produces values of these types. See docs/formats.md for the table of types.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.decode.avro.schema import (
    Array,
    AvroFixed,
    Enumeration,
    Map,
    Primitive,
    Record,
    Recursive,
    Schema,
    SchemaError,
    Semantic,
    Union,
    branch_name,
    place,
)
from tidemill.decode.debezium.logical_types import LOGICAL_TYPES, VARIABLE_DECIMAL
from tidemill.types.arrow import NUMERIC_PRECISION
from tidemill.types.model import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Column,
    SqlType,
    list_,
    map_,
    numeric,
    record,
)

# The column of a schema that is not a record.
VALUE_COLUMN = "data"

_PRIMITIVES = {
    "null": TEXT,  # a column that has no other value than NULL
    "boolean": BOOL,
    "int": INT4,
    "long": INT8,
    "float": FLOAT4,
    "double": FLOAT8,
    "bytes": BYTEA,
    "string": TEXT,
}
_SEMANTICS = {
    "date": DATE,
    "time-millis": TIME,
    "time-micros": TIME,
    "timestamp-millis": TIMESTAMPTZ,
    "timestamp-micros": TIMESTAMPTZ,
    "local-timestamp-millis": TIMESTAMP,
    "local-timestamp-micros": TIMESTAMP,
    "uuid": UUID,
    "duration": INTERVAL,
    **{name: logical.type for name, logical in LOGICAL_TYPES.items()},
    VARIABLE_DECIMAL: NUMERIC,
}


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """The columns of a message. Raises SchemaError for types without a column form."""
    if isinstance(schema, Record) and schema.semantic is None:
        return record_columns(schema)
    return (Column(VALUE_COLUMN, sql_type(schema), is_nullable(schema)),)


def record_columns(schema: Record, path: Sequence[str] = ()) -> tuple[Column, ...]:
    return tuple(
        Column(f.name, sql_type(f.type, (*path, f.name)), is_nullable(f.type)) for f in schema.fields
    )


def is_nullable(schema: Schema) -> bool:
    if isinstance(schema, Union):
        return any(is_nullable(branch) for branch in schema.branches)
    return schema == Primitive("null")


def values_of(schema: Union) -> list[Schema]:
    """The branches that have values."""
    return [branch for branch in schema.branches if not is_nullable(branch)]


def sql_type(schema: Schema, path: Sequence[str] = ()) -> SqlType:
    match schema:
        case Primitive() | AvroFixed():
            return _scalar(schema, path)
        case Enumeration():
            return TEXT
        case Array(items):
            return list_(sql_type(items, path))
        case Map(values):
            return map_(sql_type(values, path))
        case Record():
            if schema.semantic is not None:
                return _SEMANTICS[schema.semantic.name]
            return record(*record_columns(schema, path))
        case Union():
            return _union(schema, path)
        case Recursive(name):
            raise SchemaError(
                f'Avro type "{name}" contains itself at {place(path)}',
                detail="A recursive type has no fixed set of columns.",
                hint="FORMAT BYTES reads such messages as they are.",
            )


def _scalar(schema: Primitive | AvroFixed, path: Sequence[str]) -> SqlType:
    if schema.semantic is None:
        return BYTEA if isinstance(schema, AvroFixed) else _PRIMITIVES[schema.kind]
    if schema.semantic.name == "decimal":
        return _decimal(schema.semantic, path)
    return _SEMANTICS[schema.semantic.name]


def _decimal(semantic: Semantic, path: Sequence[str]) -> SqlType:
    if semantic.precision > NUMERIC_PRECISION:
        raise SchemaError(
            f"decimal of {semantic.precision} digits is too long at {place(path)}",
            detail=f"numeric has at most {NUMERIC_PRECISION} digits.",
            hint="With a registry, STRATEGY INLINE takes a reader schema that has this field without its "
            "logical type, or not at all.",
        )
    return numeric(semantic.precision, semantic.scale)


def _union(schema: Union, path: Sequence[str]) -> SqlType:
    """One branch with values: its type. Several: a record with a field for each, exactly one of which is not
    null."""
    branches = values_of(schema)
    if not branches:
        return _PRIMITIVES["null"]
    if len(branches) == 1:
        return sql_type(branches[0], path)
    names = branch_fields(branches)
    return record(
        *(Column(name, sql_type(branch, (*path, name))) for name, branch in zip(names, branches, strict=True))
    )


def branch_fields(branches: Sequence[Schema]) -> list[str]:
    """The name of each branch: without its namespace, unless two names would be equal."""
    full = [branch_name(branch) for branch in branches]
    short = [name.rpartition(".")[2] for name in full]
    return [s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True)]
