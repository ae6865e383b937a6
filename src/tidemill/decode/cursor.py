"""Cursor over many messages: one position in each, advanced together by numpy.

Called by the decoders of binary formats (`avro`, `protobuf`). A cursor never reads outside its messages, and
their contents never raise. A malformed message is marked in `doubt`, and the values read from it are
meaningless. The decoder then passes only the doubtful messages to its record-by-record reader, which is
authoritative. The fast path may therefore doubt rare or costly cases, and must doubt every malformed message.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.types.columns import spans, validity_buffer

# Words are read at any position of a message, including its end, and (for decimals) before its end. This many
# bytes must therefore exist after the messages.
PAD = 16

_CONTINUED = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
# Three steps that remove the gaps between groups of 7 bits: 8 groups to 4 of 14 bits, to 2 of 28, to 56 bits.
_GROUPS = np.uint64(0x7F7F7F7F7F7F7F7F)
_STEPS = tuple(
    (np.uint64(even), np.uint64(odd), np.uint64(shift))
    for even, odd, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


class Bytes:
    """The bytes of a batch of messages. `words`, `floats` and `doubles` are the same bytes, read at every
    position, aligned or not, in the little-endian order of Avro and Protobuf."""

    __slots__ = ("_buffer", "doubles", "floats", "octets", "words")

    def __init__(self, data: np.ndarray) -> None:
        self.octets = np.zeros(len(data) + 2 * PAD, dtype=np.uint8)
        self.octets[PAD : PAD + len(data)] = data
        self._buffer = pa.py_buffer(self.octets)
        self.words = self.view("<u8")
        self.floats = self.view("<f4")
        self.doubles = self.view("<f8")

    def view(self, dtype: str) -> np.ndarray:
        kind = np.dtype(dtype)
        places = len(self.octets) - kind.itemsize + 1
        return np.ndarray((places,), dtype=kind, buffer=self.octets, strides=(1,))

    def column(self, start: np.ndarray, stop: np.ndarray, live: np.ndarray | None = None) -> pa.Array:
        """The bytes of each span as binary, null where not `live`. Spans are in the order of the bytes and do
        not overlap. They are therefore every other value of one binary array over all bytes, which Arrow
        selects without a copy."""
        count = len(start)
        edges = np.empty(2 * count + 1, dtype=np.int32)
        edges[0:-1:2] = start
        edges[1::2] = stop
        edges[-1] = edges[-2] if count else 0
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), self._buffer])
        chosen = both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
        if live is None:
            return chosen
        _, offsets, data = chosen.buffers()
        return pa.Array.from_buffers(pa.binary(), count, [validity_buffer(live), offsets, data])


class MessageCursor:
    """A position `pos` in each message, which ends at `end`; `pos <= end` always holds. `live`, where a
    method takes it, marks the messages that have the value: the others do not advance, and their results are
    meaningless."""

    __slots__ = ("bytes", "doubt", "end", "pos")

    def __init__(self, bytes_: Bytes, pos: np.ndarray, end: np.ndarray) -> None:
        self.bytes = bytes_
        self.pos = pos
        self.end = end
        self.doubt = np.zeros(len(pos), dtype=np.bool_)

    @staticmethod
    def over(messages: pa.Array) -> MessageCursor:
        """A cursor at the first byte of each message; a null message has no bytes."""
        offsets, data = spans(messages)
        first = int(offsets[0])
        edges = offsets.astype(np.int64) + (PAD - first)
        bytes_ = Bytes(data[first : int(offsets[-1])])
        if messages.null_count:
            ends = np.where(messages.is_valid().to_numpy(zero_copy_only=False), edges[1:], edges[:-1])
            return MessageCursor(bytes_, edges[:-1].copy(), ends)
        return MessageCursor(bytes_, edges[:-1].copy(), edges[1:])

    def __len__(self) -> int:
        return len(self.pos)

    def take(self, rows: np.ndarray) -> MessageCursor:
        """A cursor on some of the messages, to be returned with `put`."""
        return MessageCursor(self.bytes, self.pos[rows], self.end[rows])

    def put(self, rows: np.ndarray, part: MessageCursor) -> None:
        self.pos[rows] = part.pos
        self.doubt[rows] |= part.doubt

    def suspect(self, wrong: np.ndarray, live: np.ndarray | None = None) -> None:
        self.doubt |= wrong if live is None else wrong & live

    def skip(self, count: np.ndarray | int, live: np.ndarray | None = None) -> None:
        """Advance by this many bytes, which are few enough not to overflow."""
        moved = self.pos + (count if live is None else live * count)
        over = moved > self.end
        if over.any():
            self.doubt |= over
            np.minimum(moved, self.end, out=moved)
        self.pos = moved

    def varints(self, live: np.ndarray | None = None) -> np.ndarray:
        """Numbers of 7 bits per byte, least significant first; the high bit marks continuation: uint64."""
        word = self.bytes.words[self.pos]
        stop = ~word & _CONTINUED
        last = stop & np.negative(stop)  # the high bit of the first byte that ends a number
        within = last - _ONE
        value = word & within & _GROUPS
        for even, odd, shift in _STEPS:
            value = (value & even) | ((value & odd) >> shift)
        length = (np.bitwise_count(within) + np.uint8(1)) >> np.uint8(3)
        longer = last == 0
        if longer.any():
            self._ninth(np.flatnonzero(longer), value, length, live)
        self.skip(length, live)
        return value

    def _ninth(
        self, rows: np.ndarray, value: np.ndarray, length: np.ndarray, live: np.ndarray | None
    ) -> None:
        """The ninth and tenth byte, of which the last holds only one bit."""
        ninth = self.bytes.octets[self.pos[rows] + 8]
        tenth = self.bytes.octets[self.pos[rows] + 9]
        ten = ninth >= 0x80
        value[rows] |= (ninth & np.uint8(0x7F)).astype(np.uint64) << np.uint64(56)
        value[rows] |= np.where(ten, tenth & np.uint8(1), np.uint8(0)).astype(np.uint64) << np.uint64(63)
        length[rows] = np.where(ten, np.uint8(10), np.uint8(9))
        wrong = rows[ten & (tenth > 1)]
        self.doubt[wrong if live is None else wrong[live[wrong]]] = True

    def small_varints(self, live: np.ndarray | None = None) -> np.ndarray:
        """Like `varints`, faster if all fit into one byte: lengths, counts, tags."""
        first = self.bytes.octets[self.pos]
        if len(first) and int(first.max()) >= 0x80:
            return self.varints(live)
        self.skip(1, live)
        return first.astype(np.uint64)

    def spans(self, lengths: np.ndarray, live: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Advance over this many bytes (int64, any value). Returns start and end, which are equal for
        messages without a value."""
        start = self.pos
        if live is not None:
            lengths = np.where(live, lengths, 0)
        wrong = (lengths < 0) | (lengths > self.end - start)
        if wrong.any():
            self.doubt |= wrong
            lengths = np.where(wrong, 0, lengths)
        self.pos = start + lengths
        return start, self.pos


def zigzag(value: np.ndarray) -> np.ndarray:
    """Signed numbers whose least significant bit is the sign."""
    return (value >> _ONE).view(np.int64) ^ np.negative((value & _ONE).view(np.int64))
