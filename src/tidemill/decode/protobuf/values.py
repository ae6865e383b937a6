"""Values of one parsed Protobuf message, in the forms that Arrow accepts for the column types."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor as F

from tidemill.decode.json import canonical_value
from tidemill.decode.protobuf.columns import (
    DURATION_MESSAGE,
    JSON_MESSAGES,
    TIMESTAMP_MESSAGE,
    WRAPPERS,
    is_map,
)
from tidemill.decode.reader import Unreadable
from tidemill.decode.utf8 import why_no_text
from tidemill.errors import TidemillError
from tidemill.types.names import physical_names_of
from tidemill.types.wire.calendar import FIRST_TIMESTAMP, LAST_TIMESTAMP, MICROS_PER_SECOND

Getter = Callable[[Any], Any]
_NANOS_PER_MICRO = 1000
_NANOS = 10**9


def getters(message: Any) -> list[Getter]:
    """For each field of the message type, the function that gets its value from a message."""
    return [_named(field.name, _getter(field)) for field in message.fields]


def _named(name: str, get: Getter) -> Getter:
    def named(message: Any) -> Any:
        try:
            return get(message)
        except Unreadable as error:
            raise error.within(name) from None

    return named


def _getter(field: Any) -> Getter:
    name = field.name
    if is_map(field):
        return _map_getter(field)
    convert = _converter(field)
    if field.is_repeated:
        if convert is None:
            return lambda message: list(getattr(message, name))
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        if convert is None:
            return lambda message: getattr(message, name) if message.HasField(name) else None
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    if convert is None:
        return lambda message: getattr(message, name)
    return lambda message: convert(getattr(message, name))


def _map_getter(field: Any) -> Getter:
    name = field.name
    key = field.message_type.fields_by_name["key"]
    of_key: Getter = _text if key.type == F.TYPE_STRING else _key_text
    of_value = _converter(field.message_type.fields_by_name["value"]) or (lambda value: value)

    def entries(message: Any) -> list[tuple[str, Any]]:
        found = getattr(message, name)
        return [(of_key(k), of_value(found[k])) for k in found]

    return entries


def _key_text(key: Any) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


def _converter(field: Any) -> Getter | None:
    """The function that converts Protobuf's value to the column's; None if they are equal."""
    if field.type == F.TYPE_STRING:
        return _text
    if field.type == F.TYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # Numbers that the schema does not know are values, too.
        return lambda number: names.get(number) or str(number)
    if field.message_type is None:
        return None
    kind = field.message_type.full_name
    if kind == TIMESTAMP_MESSAGE:
        return _timestamp
    if kind == DURATION_MESSAGE:
        return _interval
    if kind in JSON_MESSAGES:
        return _json
    if kind in WRAPPERS:
        inner = _converter(field.message_type.fields_by_name["value"])
        return (lambda value: inner(value.value)) if inner else (lambda value: value.value)
    return _record(field.message_type)


def _record(message: Any) -> Getter:
    names: Sequence[str] = physical_names_of([field.name for field in message.fields])
    pairs = list(zip(names, getters(message), strict=True))
    return lambda value: {name: get(value) for name, get in pairs}


def _text(value: str | bytes) -> str:
    """For a string in an older-syntax schema that is not valid text, Protobuf returns bytes."""
    if isinstance(value, str) and "\0" not in value:
        return value
    raise Unreadable(str(why_no_text(value if isinstance(value, bytes) else value.encode())))


def _timestamp(value: Any) -> int:
    """Microseconds; the rest is truncated."""
    if not 0 <= value.nanos < _NANOS:
        raise Unreadable(f"a timestamp has {value.nanos} nanoseconds")
    micros = value.seconds * MICROS_PER_SECOND + value.nanos // _NANOS_PER_MICRO
    if not FIRST_TIMESTAMP <= micros <= LAST_TIMESTAMP:
        raise Unreadable(f"timestamp out of range: {value.seconds} seconds")
    return micros


def _interval(value: Any) -> dict[str, int]:
    opposed = (value.seconds > 0 and value.nanos < 0) or (value.seconds < 0 and value.nanos > 0)
    if abs(value.nanos) >= _NANOS or opposed:
        raise Unreadable(f"a duration has {value.seconds} seconds and {value.nanos} nanoseconds")
    fraction = abs(value.nanos) // _NANOS_PER_MICRO
    micros = value.seconds * MICROS_PER_SECOND + (fraction if value.nanos >= 0 else -fraction)
    if abs(micros) >= 2**63:
        raise Unreadable("interval out of range")
    return {"months": 0, "days": 0, "micros": micros}


def _json(value: Any) -> str:
    try:
        text = json.dumps(json_format.MessageToDict(value), allow_nan=False)
    except (ValueError, json_format.SerializeToJsonError) as error:
        raise Unreadable(f"no JSON: {error}") from None
    found = canonical_value(text)
    if isinstance(found, TidemillError):
        raise Unreadable(found.primary)
    return found
