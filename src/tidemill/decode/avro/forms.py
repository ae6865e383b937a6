"""Column forms of Avro primitives, by logical type and by Debezium type name."""

from __future__ import annotations

from tidemill.decode.avro.columns import sql_type
from tidemill.decode.avro.schema import AvroFixed, Primitive
from tidemill.decode.binaries import ByteForm, DecimalBytes, Duration, Raw, Text, UuidText
from tidemill.decode.debezium.avro_types import TEXT_FORMS, infinities
from tidemill.decode.debezium.logical_types import LOGICAL_TYPES
from tidemill.decode.numbers import (
    DAYS,
    DOUBLE,
    INT,
    LONG,
    SINGLE,
    TIME_MICROS,
    TIME_MILLIS,
    Whole,
    timestamp_form,
)
from tidemill.types.model import UUID

# The quantity of a number, and its unit. The writer's unit is converted to the reader's for the same
# quantity.
_TIMES = {
    "date": ("date", "days"),
    "time-millis": ("time", "millis"),
    "time-micros": ("time", "micros"),
    "timestamp-millis": ("timestamp", "millis"),
    "timestamp-micros": ("timestamp", "micros"),
    "local-timestamp-millis": ("timestamp", "millis"),
    "local-timestamp-micros": ("timestamp", "micros"),
    **{name: logical.counts for name, logical in LOGICAL_TYPES.items() if logical.counts is not None},
}


def whole_form(writer: Primitive, reader: Primitive) -> Whole:
    """For an int or long that is read as an int, long, float or double."""
    low, high = (INT.low, INT.high) if writer.kind == "int" else (LONG.low, LONG.high)
    if reader.kind in ("float", "double"):
        real = SINGLE if reader.kind == "float" else DOUBLE
        return Whole(real.type, real.dtype, low, high, name=writer.kind)
    if reader.semantic is None:
        whole = INT if reader.kind == "int" else LONG
        return Whole(whole.type, whole.dtype, low, high, name=writer.kind)
    name = reader.semantic.name
    family, unit = _TIMES[name]
    if writer.semantic is not None and _TIMES.get(writer.semantic.name, ("", ""))[0] == family:
        unit = _TIMES[writer.semantic.name][1]
    if family == "date":
        return DAYS
    if family == "time":
        return TIME_MILLIS if unit == "millis" else TIME_MICROS
    if name in LOGICAL_TYPES:
        return timestamp_form(millis=unit == "millis", zoned=False, special=infinities(unit))
    return timestamp_form(millis=unit == "millis", zoned=not name.startswith("local"))


def bytes_form(reader: Primitive | AvroFixed) -> ByteForm:
    """For a string, bytes or fixed."""
    semantic = reader.semantic
    if semantic is None:
        return Text() if isinstance(reader, Primitive) and reader.kind == "string" else Raw()
    if semantic.name == "decimal":
        return DecimalBytes(sql_type(reader))
    if semantic.name == "duration":
        return Duration()
    if semantic.name == "uuid":
        return Raw(UUID) if isinstance(reader, AvroFixed) else UuidText()
    return TEXT_FORMS[semantic.name]()
