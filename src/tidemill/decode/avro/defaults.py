"""Default values of reader fields: converts JSON in the schema to values of the column types."""

from __future__ import annotations

from typing import Any, cast

from tidemill.decode.avro.columns import branch_fields, is_nullable, record_columns, values_of
from tidemill.decode.avro.forms import bytes_form, whole_form
from tidemill.decode.avro.schema import (
    MISSING,
    Array,
    AvroFixed,
    Enumeration,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
)
from tidemill.decode.reader import Unreadable
from tidemill.types.names import physical_names_of


def default_value(schema: Schema, default: Any) -> Any:
    """The value of `default` in the form that Arrow accepts. Raises Unreadable if it does not match the
    type."""
    match schema:
        case Primitive():
            return _primitive(schema, default)
        case AvroFixed() if isinstance(default, str):
            return bytes_form(schema).value(_sized(_bytes(default), schema.size))
        case Enumeration() if default in schema.symbols:
            return default
        case Array(items) if isinstance(default, list):
            return [default_value(items, item) for item in cast("list[Any]", default)]
        case Map(values) if isinstance(default, dict):
            entries = cast("dict[str, Any]", default)
            return [(key, default_value(values, value)) for key, value in entries.items()]
        case Record() if isinstance(default, dict) and schema.semantic is None:
            return _record(schema, cast("dict[str, Any]", default))
        case Union():
            return _union(schema, default)
        case _:
            raise Unreadable(f"{default!r} is no default for this type")


def _primitive(schema: Primitive, default: Any) -> Any:
    match schema.kind, default:
        case "null", None:
            return None
        case "boolean", bool():
            return default
        case (("int" | "long"), int()) if not isinstance(default, bool):
            return whole_form(schema, schema).value(default)
        case (("float" | "double"), int() | float()) if not isinstance(default, bool):
            return float(default)
        case (("float" | "double"), "NaN" | "Infinity" | "-Infinity"):
            return float(default)
        case "string", str():
            return bytes_form(schema).value(default.encode("utf-8", "surrogatepass"))
        case "bytes", str():
            return bytes_form(schema).value(_bytes(default))
        case _:
            raise Unreadable(f"{default!r} is no default for {schema.kind}")


def _bytes(default: str) -> bytes:
    """Each character is the byte with its code."""
    try:
        return default.encode("latin-1")
    except UnicodeEncodeError:
        raise Unreadable(f"{default!r} is no default for bytes") from None


def _sized(raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise Unreadable(f"a default of {len(raw)} bytes is none for {size} bytes")
    return raw


def _record(schema: Record, default: dict[str, Any]) -> dict[str, Any]:
    names = physical_names_of([column.name for column in record_columns(schema)])
    values: dict[str, Any] = {}
    for name, field in zip(names, schema.fields, strict=True):
        given = default.get(field.name, field.default)
        if given is MISSING:
            raise Unreadable(f'a default has no field "{field.name}"')
        values[name] = default_value(field.type, given)
    return values


def _union(schema: Union, default: Any) -> Any:
    """Avro requires a default of the first branch; this accepts the first branch that it matches."""
    values = values_of(schema)
    for branch in schema.branches:
        try:
            value = default_value(branch, default)
        except Unreadable:
            continue
        if is_nullable(branch) or len(values) == 1:
            return value
        names = physical_names_of(branch_fields(values))
        return {names[values.index(branch)]: value}
    raise Unreadable(f"{default!r} is no default for any branch of its union")
