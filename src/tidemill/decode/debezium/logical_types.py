"""Logical types that Debezium's converters add to Avro, identified by `connect.name`.

Read by `decode.avro`: `schema` finds them in a schema, `columns` uses their SQL types, and `forms` selects
how to read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.types.model import DATE, JSONB, TIME, TIMESTAMP, TIMESTAMPTZ, UUID, SqlType


@dataclass(frozen=True, slots=True)
class LogicalType:
    """`base` is the underlying Avro type; on other types the name has no meaning. `counts`: the unit of a
    number."""

    base: str
    type: SqlType
    counts: tuple[str, str] | None = None


LOGICAL_TYPES = {
    "io.debezium.time.Date": LogicalType("int", DATE, ("date", "days")),
    "io.debezium.time.Time": LogicalType("int", TIME, ("time", "millis")),
    "io.debezium.time.MicroTime": LogicalType("long", TIME, ("time", "micros")),
    "io.debezium.time.Timestamp": LogicalType("long", TIMESTAMP, ("timestamp", "millis")),
    "io.debezium.time.MicroTimestamp": LogicalType("long", TIMESTAMP, ("timestamp", "micros")),
    "io.debezium.time.ZonedTimestamp": LogicalType("string", TIMESTAMPTZ),
    "io.debezium.data.Uuid": LogicalType("string", UUID),
    "io.debezium.data.Json": LogicalType("string", JSONB),
}
# A record of scale and digits: numeric without precision.
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
