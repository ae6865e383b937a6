"""SQL columns of a Protobuf message. See docs/formats.md for the table of types."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F

from tidemill.decode.avro.schema import SchemaError, place
from tidemill.types.model import (
    BOOL,
    BYTEA,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    TEXT,
    TIMESTAMPTZ,
    UINT4,
    UINT8,
    Column,
    SqlType,
    list_,
    map_,
    record,
)

# Nested messages. Protobuf itself reads at most 100 levels.
MAX_DEPTH = 64
# The total number of columns and fields, because it can be exponential in the schema's length.
MAX_FIELDS = 20_000

SCALARS: dict[int, SqlType] = {
    F.TYPE_DOUBLE: FLOAT8,
    F.TYPE_FLOAT: FLOAT4,
    F.TYPE_INT32: INT4,
    F.TYPE_SINT32: INT4,
    F.TYPE_SFIXED32: INT4,
    F.TYPE_INT64: INT8,
    F.TYPE_SINT64: INT8,
    F.TYPE_SFIXED64: INT8,
    F.TYPE_UINT32: UINT4,
    F.TYPE_FIXED32: UINT4,
    F.TYPE_UINT64: UINT8,
    F.TYPE_FIXED64: UINT8,
    F.TYPE_BOOL: BOOL,
    F.TYPE_STRING: TEXT,
    F.TYPE_ENUM: TEXT,
    F.TYPE_BYTES: BYTEA,
}
TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"
DURATION_MESSAGE = "google.protobuf.Duration"
# Messages that represent a nullable value.
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
# Messages that represent JSON.
JSON_MESSAGES = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")}


def columns_of(message: Any) -> tuple[Column, ...]:
    """The columns of a message type. Raises SchemaError for types without a column form."""
    return _Columns().fields(message, (), ())


class _Columns:
    def __init__(self) -> None:
        self._count = 0

    def fields(self, message: Any, path: tuple[str, ...], within: tuple[str, ...]) -> tuple[Column, ...]:
        """`within`: the message types that contain this one."""
        name = message.full_name
        if name in within:
            raise SchemaError(
                f'Protobuf message "{name}" contains itself at {place(path)}',
                detail="A recursive type has no fixed set of columns.",
                hint="FORMAT BYTES reads such messages as they are.",
            )
        if len(within) >= MAX_DEPTH:
            raise SchemaError(f"Protobuf schema is deeper than {MAX_DEPTH} messages at {place(path)}")
        columns: list[Column] = []
        for field in message.fields:
            self._count += 1
            if self._count > MAX_FIELDS:
                raise SchemaError(f"Protobuf schema has more than {MAX_FIELDS} fields")
            here = (*path, field.name)
            columns.append(Column(field.name, self._type(field, here, (*within, name)), is_nullable(field)))
        return tuple(columns)

    def _type(self, field: Any, path: tuple[str, ...], within: tuple[str, ...]) -> SqlType:
        if is_map(field):
            return map_(self._single(field.message_type.fields_by_name["value"], path, within))
        single = self._single(field, path, within)
        return list_(single) if field.is_repeated else single

    def _single(self, field: Any, path: tuple[str, ...], within: tuple[str, ...]) -> SqlType:
        if field.message_type is None:
            return SCALARS[field.type]
        name = field.message_type.full_name
        if name == TIMESTAMP_MESSAGE:
            return TIMESTAMPTZ
        if name == DURATION_MESSAGE:
            return INTERVAL
        if name in JSON_MESSAGES:
            return JSONB
        if name in WRAPPERS:
            return SCALARS[field.message_type.fields_by_name["value"].type]
        return record(*self.fields(field.message_type, path, within))


def is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def is_nullable(field: Any) -> bool:
    """Whether absence can be detected. Without presence, an absent field has the zero value of its type."""
    return bool(field.has_presence and not field.is_required)
