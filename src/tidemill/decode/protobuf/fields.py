"""Column forms of the kinds of Protobuf fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor as F

from tidemill.decode.binaries import Raw, Text
from tidemill.decode.cursor import MessageCursor, zigzag
from tidemill.decode.maps import repeated_keys
from tidemill.decode.merge import merge
from tidemill.decode.numbers import DOUBLE, SINGLE, plain_column
from tidemill.decode.protobuf.columns import (
    DURATION_MESSAGE,
    JSON_MESSAGES,
    SCALARS,
    TIMESTAMP_MESSAGE,
    WRAPPERS,
    columns_of,
    is_map,
)
from tidemill.decode.protobuf.slots import (
    FIXED32,
    FIXED64,
    VARINT,
    FieldSlot,
    Finish,
    FinishSpans,
    ManyNumbers,
    ManySpans,
    OneNumber,
    OneSpan,
)
from tidemill.types.arrow import arrow_type, element_type
from tidemill.types.columns import numbers, validity_buffer
from tidemill.types.kernels import pc
from tidemill.types.model import INT8, INTERVAL, TIMESTAMPTZ, Column, SqlType
from tidemill.types.nested import map_array
from tidemill.types.wide import decimals
from tidemill.types.wire.calendar import FIRST_TIMESTAMP, LAST_TIMESTAMP, MICROS_PER_SECOND


class MessageField(Protocol):
    """The reader of nested messages."""

    type: pa.DataType

    def read(self, cursor: MessageCursor) -> list[pa.Array]: ...


MakeMessages = Callable[[Any, Sequence[Column]], MessageField]


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """Creates the slot of a field for a batch."""

    slot: Callable[[MessageCursor], FieldSlot]


def field_plan(field: Any, column: Column, messages: MakeMessages) -> FieldPlan:
    if is_map(field):
        return _map_plan(field, column, messages)
    single = element_type(column.type) if field.is_repeated else column.type
    target = arrow_type(column.type)
    presence = bool(field.has_presence)
    if field.type in WIRES:
        wire, number = WIRES[field.type], _number(field, single)
        if field.is_repeated:
            return FieldPlan(lambda cursor: ManyNumbers(len(cursor), wire, number, target))
        return FieldPlan(lambda cursor: OneNumber(len(cursor), wire, number, presence=presence))
    span = _span(field, single, messages)
    if field.is_repeated:
        return FieldPlan(lambda cursor: ManySpans(len(cursor), span, _list_builder(target)))
    return FieldPlan(lambda cursor: OneSpan(cursor.pos, span, presence=presence))


WIRES = {
    F.TYPE_DOUBLE: FIXED64,
    F.TYPE_FLOAT: FIXED32,
    F.TYPE_INT32: VARINT,
    F.TYPE_SINT32: VARINT,
    F.TYPE_UINT32: VARINT,
    F.TYPE_INT64: VARINT,
    F.TYPE_SINT64: VARINT,
    F.TYPE_UINT64: VARINT,
    F.TYPE_BOOL: VARINT,
    F.TYPE_ENUM: VARINT,
    F.TYPE_FIXED32: FIXED32,
    F.TYPE_SFIXED32: FIXED32,
    F.TYPE_FIXED64: FIXED64,
    F.TYPE_SFIXED64: FIXED64,
}
_LOW = np.uint64(0xFFFFFFFF)


def _signed32(words: np.ndarray) -> np.ndarray:
    """Protobuf takes the low 32 bits of numbers that should not have more."""
    return words.astype(np.uint32).view(np.int32)


_NUMBERS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    F.TYPE_INT32: _signed32,
    F.TYPE_SFIXED32: _signed32,
    F.TYPE_SINT32: lambda words: zigzag(words & _LOW).astype(np.int32),
    F.TYPE_INT64: lambda words: words.view(np.int64),
    F.TYPE_SFIXED64: lambda words: words.view(np.int64),
    F.TYPE_SINT64: zigzag,
    F.TYPE_UINT32: lambda words: (words & _LOW).view(np.int64),
    F.TYPE_FIXED32: lambda words: (words & _LOW).view(np.int64),
}


def _number(field: Any, type_: SqlType) -> Finish:
    target = arrow_type(type_)
    match field.type:
        case F.TYPE_BOOL:
            return lambda _, words, live: plain_column(words != 0, target, live, bits=True)
        case F.TYPE_FLOAT:
            return lambda _, words, live: SINGLE.column(words.astype(np.uint32).view(np.float32), live)
        case F.TYPE_DOUBLE:
            return lambda _, words, live: DOUBLE.column(words.view(np.float64), live)
        case F.TYPE_UINT64 | F.TYPE_FIXED64:
            return lambda _, words, live: decimals(
                words, np.zeros(len(words), np.int64), None if live is None else validity_buffer(live), target
            )
        case F.TYPE_ENUM:
            return _enumeration(field.enum_type)
        case _:
            convert = _NUMBERS[field.type]
            return lambda _, words, live: plain_column(convert(words), target, live)


def _enumeration(enum: Any) -> Finish:
    """The names of enum numbers, and numbers without a name. In a closed enum the latter are not values, and
    are doubted."""
    known = sorted(enum.values_by_number)
    names = pa.array([enum.values_by_number[number].name for number in known], pa.string())
    sorted_numbers = np.array(known, dtype=np.int32)

    def finish(cursor: MessageCursor, words: np.ndarray, live: np.ndarray | None) -> pa.Array:
        wanted = _signed32(words)
        place = np.minimum(np.searchsorted(sorted_numbers, wanted), len(known) - 1)
        column = names.take(pa.array(place, mask=None if live is None else ~live))
        unknown = sorted_numbers[place] != wanted
        if not unknown.any():
            return column
        if enum.is_closed:
            cursor.suspect(unknown, live)
            return column
        shown = unknown if live is None else unknown & live
        return pc.if_else(pa.array(shown), pa.array(wanted).cast(pa.string()), column)

    return finish


def _span(field: Any, type_: SqlType, messages: MakeMessages) -> FinishSpans:
    if field.type == F.TYPE_STRING:
        return Text().column
    if field.type == F.TYPE_BYTES:
        return Raw().column
    if field.message_type is None or field.type == F.TYPE_GROUP:
        return _doubted(arrow_type(type_))
    kind = field.message_type.full_name
    if kind in JSON_MESSAGES:
        return _doubted(arrow_type(type_))
    if kind in WRAPPERS:
        inner = messages(field.message_type, (Column("value", type_),))
        return _within(inner, arrow_type(type_), lambda _, columns: columns[0])
    if kind in (TIMESTAMP_MESSAGE, DURATION_MESSAGE):
        inner = messages(field.message_type, columns_of(field.message_type))
        return _within(inner, arrow_type(type_), _timestamps if kind == TIMESTAMP_MESSAGE else _intervals)
    return _record(messages(field.message_type, type_.fields))


def _record(inner: MessageField) -> FinishSpans:
    def struct(cursor: MessageCursor, columns: list[pa.Array]) -> pa.Array:
        return pa.Array.from_buffers(inner.type, len(cursor), [None], children=columns)

    return _within(inner, inner.type, struct)


def _doubted(target: pa.DataType) -> FinishSpans:
    """Fields that are not decoded by columns."""

    def finish(
        cursor: MessageCursor, start: np.ndarray, _stop: np.ndarray, live: np.ndarray | None
    ) -> pa.Array:
        cursor.suspect(np.ones(len(start), dtype=np.bool_), live)
        return pa.nulls(len(start), target)

    return finish


def _within(
    inner: MessageField, target: pa.DataType, make: Callable[[MessageCursor, list[pa.Array]], pa.Array]
) -> FinishSpans:
    """Nested messages: the fields of the existing ones, as one column."""

    def finish(
        cursor: MessageCursor, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None
    ) -> pa.Array:
        rows = np.arange(len(start)) if live is None else np.flatnonzero(live)
        part = MessageCursor(cursor.bytes, start[rows], stop[rows])
        column = make(part, inner.read(part))
        cursor.doubt[rows[part.doubt]] = True
        return column if live is None else merge(len(start), [(rows, column)], target)

    return finish


_NANOS = 10**9
# The number of seconds that fit into 64 bits as microseconds.
_MOST_SECONDS = 9 * 10**12


def _seconds(cursor: MessageCursor, columns: list[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    seconds, nanos = numbers(columns[0], np.int64), numbers(columns[1], np.int64)
    cursor.doubt |= np.abs(seconds) > _MOST_SECONDS
    return np.clip(seconds, -_MOST_SECONDS, _MOST_SECONDS), nanos


def _timestamps(cursor: MessageCursor, columns: list[pa.Array]) -> pa.Array:
    seconds, nanos = _seconds(cursor, columns)
    micros = seconds * MICROS_PER_SECOND + nanos // 1000
    cursor.doubt |= (nanos < 0) | (nanos >= _NANOS) | (micros < FIRST_TIMESTAMP) | (micros > LAST_TIMESTAMP)
    return plain_column(micros, arrow_type(TIMESTAMPTZ), None)


def _intervals(cursor: MessageCursor, columns: list[pa.Array]) -> pa.Array:
    """Whole microseconds, truncated towards zero."""
    seconds, nanos = _seconds(cursor, columns)
    cursor.doubt |= (np.abs(nanos) >= _NANOS) | (np.sign(seconds) * np.sign(nanos) < 0)
    micros = seconds * MICROS_PER_SECOND + np.sign(nanos) * (np.abs(nanos) // 1000)
    none = pa.array(np.zeros(len(micros), dtype=np.int32))
    children = [none, none, plain_column(micros, arrow_type(INT8), None)]
    return pa.Array.from_buffers(arrow_type(INTERVAL), len(micros), [None], children=children)


def _list_builder(target: pa.DataType) -> Callable[[np.ndarray, pa.Array, MessageCursor], pa.Array]:
    def build(offsets: np.ndarray, items: pa.Array, _cursor: MessageCursor) -> pa.Array:
        return pa.Array.from_buffers(
            target, len(offsets) - 1, [None, pa.py_buffer(offsets)], children=[items]
        )

    return build


def _map_plan(field: Any, column: Column, messages: MakeMessages) -> FieldPlan:
    entry = field.message_type
    key = entry.fields_by_name["key"]
    fields = (Column("key", SCALARS[key.type]), Column("value", element_type(column.type)))
    span = _record(messages(entry, fields))
    target = arrow_type(column.type)
    # An absent value of a message type is an empty message.
    doubt_absent = entry.fields_by_name["value"].message_type is not None

    def build(offsets: np.ndarray, entries: pa.Array, cursor: MessageCursor) -> pa.Array:
        keys, values = entries.field(0).cast(pa.string()), entries.field(1)
        counts = np.diff(offsets)
        cursor.doubt[repeated_keys(keys, counts)] = True
        absent = values.is_null().to_numpy(zero_copy_only=False) if doubt_absent else None
        if keys.null_count or (absent is not None and bool(absent.any())):
            odd = keys.is_null().to_numpy(zero_copy_only=False)
            odd = odd if absent is None else odd | absent
            cursor.doubt[np.repeat(np.arange(len(counts)), counts)[odd]] = True
            keys = keys.fill_null("")
        return map_array(keys, values, offsets, np.ones(len(counts), dtype=np.bool_), target)

    return FieldPlan(lambda cursor: ManySpans(len(cursor), span, build))
