"""Slots of Protobuf fields: the positions of the values of each field in a batch of messages.

There is one slot per field and batch. It receives the positions of the values (`take`), in message order, and
finally builds the column (`column`). A valid but rare case (a repeated singular field, where the last one
counts) is doubted, and left to Protobuf's own parser.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.decode.cursor import Bytes, MessageCursor

# Wire types.
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5

# Longer spans of packed numbers are left to Protobuf's parser: here each of their bytes uses about 30.
MAX_PACKED_BYTES = 1 << 20

# Builds a column from values: numbers (raw 64-bit words), or spans (start, stop); null where not live.
Finish = Callable[[MessageCursor, np.ndarray, np.ndarray | None], pa.Array]
FinishSpans = Callable[[MessageCursor, np.ndarray, np.ndarray, np.ndarray | None], pa.Array]


def read_words(cursor: MessageCursor, wire: int) -> np.ndarray:
    """The values of a wire type other than spans, as 64-bit words."""
    if wire == VARINT:
        return cursor.varints()
    if wire == FIXED64:
        words = cursor.bytes.words[cursor.pos]
        cursor.skip(8)
        return words
    words = cursor.bytes.view("<u4")[cursor.pos].astype(np.uint64)
    cursor.skip(4)
    return words


def read_spans(cursor: MessageCursor) -> tuple[np.ndarray, np.ndarray]:
    """Bytes preceded by their length in its shortest form; other forms are doubted."""
    before = cursor.pos
    length = cursor.small_varints()
    cursor.doubt |= cursor.pos - before != varint_bytes(length)
    return cursor.spans(np.minimum(length, np.uint64(2**62)).astype(np.int64))


def varint_bytes(values: np.ndarray) -> np.ndarray:
    """The size of numbers, up to 5 bytes."""
    size = np.ones(len(values), dtype=np.int64)
    for bits in (7, 14, 21, 28):
        size += values >= np.uint64(1 << bits)
    return size


class FieldSlot(ABC):
    # The wire types of the field.
    wires: tuple[int, ...]
    # The messages that have the field, if it occurs at most once.
    seen: np.ndarray

    @abstractmethod
    def take(self, part: MessageCursor, rows: np.ndarray, wire: int) -> None:
        """The next value of these rows, at the positions of `part`, which advances past it."""

    @abstractmethod
    def column(self, cursor: MessageCursor) -> pa.Array:
        """`cursor` is that of the whole batch, for its bytes and its doubts."""


class OneNumber(FieldSlot):
    """A singular number. Without `presence` an absent one is zero."""

    def __init__(self, count: int, wire: int, finish: Finish, *, presence: bool) -> None:
        self.wires = (wire,)
        self.seen = np.zeros(count, dtype=np.bool_)
        self._values = np.zeros(count, dtype=np.uint64)
        self._finish = finish
        self._presence = presence

    def take(self, part: MessageCursor, rows: np.ndarray, wire: int) -> None:
        part.doubt |= self.seen[rows]
        self.seen[rows] = True
        self._values[rows] = read_words(part, wire)

    def column(self, cursor: MessageCursor) -> pa.Array:
        whole = not self._presence or bool(self.seen.all())
        return self._finish(cursor, self._values, None if whole else self.seen)


class OneSpan(FieldSlot):
    """Like `OneNumber`, for bytes."""

    wires = (DELIMITED,)

    def __init__(self, start: np.ndarray, finish: FinishSpans, *, presence: bool) -> None:
        self.seen = np.zeros(len(start), dtype=np.bool_)
        # An absent one has no bytes, at the beginning of its message, so that all are in the order of the
        # bytes.
        self._start = start.copy()
        self._stop = start.copy()
        self._finish = finish
        self._presence = presence

    def take(self, part: MessageCursor, rows: np.ndarray, wire: int) -> None:
        part.doubt |= self.seen[rows]
        self.seen[rows] = True
        self._start[rows], self._stop[rows] = read_spans(part)

    def column(self, cursor: MessageCursor) -> pa.Array:
        whole = not self._presence or bool(self.seen.all())
        return self._finish(cursor, self._start, self._stop, None if whole else self.seen)


class _Many(FieldSlot):
    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: list[np.ndarray] = []

    def _ordered(self) -> tuple[np.ndarray, np.ndarray]:
        """The offsets of the lists, and the order that groups the items of each row, in order of arrival."""
        rows = np.concatenate([*self._rows, np.zeros(0, dtype=np.int64)])
        counts = np.bincount(rows, minlength=self._count)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return offsets, np.argsort(rows, kind="stable")

    def _spread(self, items: MessageCursor, owners: np.ndarray, cursor: MessageCursor) -> None:
        """Doubts about items are doubts about their messages."""
        cursor.doubt[owners[items.doubt]] = True


class ManyNumbers(_Many):
    """Repeated numbers: one by one, or packed into spans."""

    def __init__(self, count: int, wire: int, finish: Finish, type_: pa.DataType) -> None:
        super().__init__(count)
        self.wires = (wire, DELIMITED)
        self._wire = wire
        self._values: list[np.ndarray] = []
        self._finish = finish
        self._type = type_

    def take(self, part: MessageCursor, rows: np.ndarray, wire: int) -> None:
        if wire != DELIMITED:
            self._rows.append(rows)
            self._values.append(read_words(part, wire))
            return
        start, stop = read_spans(part)
        if self._wire == VARINT:
            self._packed_varints(part.bytes, start, stop, part, rows)
        else:
            self._packed_words(start, stop, part, rows)

    def _packed_words(
        self, start: np.ndarray, stop: np.ndarray, part: MessageCursor, rows: np.ndarray
    ) -> None:
        size = 8 if self._wire == FIXED64 else 4
        counts, rest = np.divmod(stop - start, size)
        part.doubt |= rest != 0
        before = np.cumsum(counts) - counts
        pos = np.repeat(start - before * size, counts) + np.arange(int(counts.sum())) * size
        self._rows.append(np.repeat(rows, counts))
        self._values.append(read_words(MessageCursor(part.bytes, pos, pos + size), self._wire))

    def _packed_varints(
        self, bytes_: Bytes, start: np.ndarray, stop: np.ndarray, part: MessageCursor, rows: np.ndarray
    ) -> None:
        """Numbers end with the bytes below 128, which mark where the next one begins."""
        lengths = stop - start
        long = lengths > MAX_PACKED_BYTES
        part.doubt |= long
        lengths = np.where(long, 0, lengths)
        before = np.cumsum(lengths) - lengths
        places = np.repeat(start - before, lengths) + np.arange(int(lengths.sum()))
        owner = np.repeat(np.arange(len(rows)), lengths)
        last = bytes_.octets[places] < 0x80
        first = np.ones(len(places), dtype=np.bool_)
        first[1:] = last[:-1] | (owner[1:] != owner[:-1])
        owners = owner[first]
        items = MessageCursor(bytes_, places[first], stop[owners])
        self._values.append(items.varints())
        part.doubt[owners[items.doubt]] = True
        self._rows.append(rows[owners])

    def column(self, cursor: MessageCursor) -> pa.Array:
        offsets, order = self._ordered()
        values = np.concatenate([*self._values, np.zeros(0, dtype=np.uint64)])[order]
        owners = np.repeat(np.arange(self._count), np.diff(offsets))
        items = MessageCursor(cursor.bytes, np.zeros(len(values), np.int64), np.zeros(len(values), np.int64))
        column = self._finish(items, values, None)
        self._spread(items, owners, cursor)
        return pa.Array.from_buffers(
            self._type, self._count, [None, pa.py_buffer(offsets)], children=[column]
        )


class ManySpans(_Many):
    """Repeated bytes, texts or messages. `build` creates the column from their offsets and values."""

    wires = (DELIMITED,)

    def __init__(
        self,
        count: int,
        finish: FinishSpans,
        build: Callable[[np.ndarray, pa.Array, MessageCursor], pa.Array],
    ) -> None:
        super().__init__(count)
        self._spans: list[tuple[np.ndarray, np.ndarray]] = []
        self._finish = finish
        self._build = build

    def take(self, part: MessageCursor, rows: np.ndarray, wire: int) -> None:
        self._rows.append(rows)
        self._spans.append(read_spans(part))

    def column(self, cursor: MessageCursor) -> pa.Array:
        offsets, order = self._ordered()
        none = np.zeros(0, dtype=np.int64)
        start = np.concatenate([*(start for start, _ in self._spans), none])[order]
        stop = np.concatenate([*(stop for _, stop in self._spans), none])[order]
        owners = np.repeat(np.arange(self._count), np.diff(offsets))
        items = MessageCursor(cursor.bytes, start, stop)
        column = self._finish(items, start, stop, None)
        self._spread(items, owners, cursor)
        return self._build(offsets, column, cursor)
