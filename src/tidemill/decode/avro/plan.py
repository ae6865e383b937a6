"""Reading plan: its nodes for values without nested values.

`resolve` creates one plan per pair of writer and reader schema. A plan follows the bytes in the layout of the
writer and produces columns in the layout of the reader. Every node reads in two ways. `read` reads whole
columns from a cursor and marks values that it cannot interpret as doubtful. `one` reads one value from a
reader, raises Unreadable, and is authoritative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.binaries import ByteForm
from tidemill.decode.cursor import MessageCursor, zigzag
from tidemill.decode.numbers import Real, Whole, booleans
from tidemill.decode.reader import MessageReader, Unreadable
from tidemill.types.arrow import arrow_type
from tidemill.types.model import BOOL


class ReadNode(ABC):
    # The storage type of the result.
    type: pa.DataType
    # The minimum size of a value, which limits the number of items of a message.
    least: int
    # The size of a value, if all have the same.
    size: int | None = None
    # Whether a value is a single number with 7 bits per byte.
    is_varint: bool = False

    @abstractmethod
    def read(self, cursor: MessageCursor) -> pa.Array: ...

    @abstractmethod
    def one(self, reader: MessageReader) -> Any: ...

    def skip(self, cursor: MessageCursor) -> None:
        """Skip the values of a field that the reader does not have. Plans for this (`resolve.skipping`) check
        only the structure, in both ways of reading."""
        self.read(cursor)


class Leaf(ReadNode):
    """A node that can skip messages without a value: `live` marks those that have one."""

    @abstractmethod
    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array: ...

    def read(self, cursor: MessageCursor) -> pa.Array:
        return self.read_live(cursor, None)


class Integer(Leaf):
    least = 1
    is_varint = True

    def __init__(self, form: Whole) -> None:
        self.type = arrow_type(form.type)
        self._form = form

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        return self._form.column(cursor, zigzag(cursor.varints(live)), live)

    def one(self, reader: MessageReader) -> Any:
        return self._form.value(reader.zigzag())

    def skip(self, cursor: MessageCursor) -> None:
        cursor.varints()


class Floating(Leaf):
    """`width` bytes, 4 or 8."""

    def __init__(self, width: int, form: Real) -> None:
        self.type = arrow_type(form.type)
        self.least = self.size = width
        self._width = width
        self._form = form

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        numbers = (cursor.bytes.floats if self._width == 4 else cursor.bytes.doubles)[cursor.pos]
        cursor.skip(self._width, live)
        return self._form.column(numbers, live)

    def one(self, reader: MessageReader) -> float:
        raw = reader.take(self._width)
        return self._form.value(float(np.frombuffer(raw, dtype=f"<f{self._width}")[0]))

    def skip(self, cursor: MessageCursor) -> None:
        cursor.skip(self._width)


class Boolean(Leaf):
    type = arrow_type(BOOL)
    least = 1
    size = 1

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        octets = cursor.bytes.octets[cursor.pos]
        cursor.skip(1, live)
        return booleans(cursor, octets, live)

    def one(self, reader: MessageReader) -> bool:
        octet = reader.take(1)[0]
        if octet > 1:
            raise Unreadable(f"a boolean is {octet}")
        return octet == 1


class Delimited(Leaf):
    """Bytes preceded by their length."""

    least = 1

    def __init__(self, form: ByteForm) -> None:
        self.type = arrow_type(form.type)
        self._form = form

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        start, stop = cursor.spans(zigzag(cursor.small_varints(live)), live)
        return self._form.column(cursor, start, stop, live)

    def one(self, reader: MessageReader) -> Any:
        return self._form.value(reader.take(reader.zigzag()))

    def skip(self, cursor: MessageCursor) -> None:
        cursor.spans(zigzag(cursor.small_varints()))


class FixedBytes(Leaf):
    """A fixed number of bytes."""

    def __init__(self, size: int, form: ByteForm) -> None:
        self.type = arrow_type(form.type)
        self.least = self.size = size
        self._size = size
        self._form = form

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        start, stop = cursor.spans(np.full(len(cursor), self._size, dtype=np.int64), live)
        return self._form.column(cursor, start, stop, live)

    def one(self, reader: MessageReader) -> Any:
        return self._form.value(reader.take(self._size))

    def skip(self, cursor: MessageCursor) -> None:
        cursor.spans(np.full(len(cursor), self._size, dtype=np.int64))


class Symbol(Leaf):
    """The number of a symbol. `symbols` are the reader's, in the writer's order; None for one that the reader
    does not have."""

    type = pa.string()
    least = 1

    def __init__(self, name: str, symbols: Sequence[str | None], writers: Sequence[str]) -> None:
        self._name = name
        self._symbols = symbols
        self._writers = writers
        self._texts = pa.array([*symbols, None], pa.string())
        self._unknown = np.array([s is None for s in (*symbols, None)])

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        index = zigzag(cursor.small_varints(live))
        last = len(self._symbols)
        none = (index < 0) | (index >= last)
        index = np.where(none if live is None else none | ~live, last, index)
        wrong = self._unknown[index]
        if wrong.any():
            cursor.suspect(wrong, live)
        return self._texts.take(pa.array(index))

    def one(self, reader: MessageReader) -> str:
        index = reader.zigzag()
        if not 0 <= index < len(self._symbols):
            raise Unreadable(f'enum "{self._name}" has no symbol number {index}')
        symbol = self._symbols[index]
        if symbol is None:
            raise Unreadable(
                f'enum "{self._name}" of the source\'s schema has no symbol "{self._writers[index]}"'
            )
        return symbol


class Nothing(Leaf):
    """NULL, which has no bytes."""

    least = 0
    size = 0

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    def read_live(self, cursor: MessageCursor, live: np.ndarray | None) -> pa.Array:
        return pa.nulls(len(cursor), self.type)

    def one(self, reader: MessageReader) -> None:
        return None


class ConstantNode(ReadNode):
    """A default: the same value for all messages, without bytes."""

    least = 0
    size = 0

    def __init__(self, type_: pa.DataType, value: Any) -> None:
        self.type = type_
        self._value = value
        self._single = pa.array([value], type_)

    def read(self, cursor: MessageCursor) -> pa.Array:
        return self._single.take(pa.array(np.zeros(len(cursor), dtype=np.int32)))

    def one(self, reader: MessageReader) -> Any:
        return self._value


class SchemaRefused(ReadNode):
    """A type that the writer may write and the reader's schema cannot represent: an error for each value."""

    least = 0

    def __init__(self, type_: pa.DataType, why: str) -> None:
        self.type = type_
        self._why = why

    def read(self, cursor: MessageCursor) -> pa.Array:
        cursor.doubt[:] = True
        return pa.nulls(len(cursor), self.type)

    def one(self, reader: MessageReader) -> Any:
        raise Unreadable(self._why)
