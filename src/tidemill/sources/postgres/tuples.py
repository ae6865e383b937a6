"""Rows of many messages at once: where each value is, and columns of texts.

Called by `stream_rows`. A row in pgoutput is a count of columns and then, for each column, a letter and for
some letters a length and a text. The values of one column are found for all rows together, then those of the
next one: some numpy operations per column, whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.sources.postgres.pgoutput import ProtocolFault
from tidemill.types.columns import validity_buffer

# In `TupleColumn.lengths`: no value.
NULL = -1
# It did not change and is too large to be sent again (TOAST): it is in the old row.
UNCHANGED = -2

# Bytes behind the last message: words of four bytes are read at any position.
PADDING = 16

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
# A binary view holds values of up to this many bytes. For longer ones it holds their position.
_INLINE = 12


@dataclass(frozen=True, slots=True)
class Payload:
    """Messages one behind the other, and `PADDING`. At most 2 GB."""

    bytes: np.ndarray
    _signed: np.ndarray
    _little: np.ndarray

    @staticmethod
    def of(data: bytes | bytearray) -> Payload:
        """`data` ends with the padding."""
        count = len(data) - 3
        words = [np.ndarray((count,), kind, data, strides=(1,)) for kind in (">i4", "<u4")]
        return Payload(np.frombuffer(data, np.uint8), words[0], words[1])

    def letters(self, at: np.ndarray) -> np.ndarray:
        return self.bytes[at]

    def numbers(self, at: np.ndarray) -> np.ndarray:
        """Signed numbers of four bytes."""
        return self._signed[at].astype(np.int64)

    def counts(self, at: np.ndarray) -> np.ndarray:
        """Numbers of two bytes."""
        return self.bytes[at].astype(np.int64) << 8 | self.bytes[at + 1]

    def words(self, at: np.ndarray) -> np.ndarray:
        """Four bytes as they lie."""
        return self._little[at]


@dataclass(frozen=True, slots=True)
class TupleColumn:
    """The values of one column: the position of each, and its length or what it is instead."""

    starts: np.ndarray
    lengths: np.ndarray

    def take(self, rows: np.ndarray) -> TupleColumn:
        return TupleColumn(self.starts[rows], self.lengths[rows])

    def with_unchanged_of(self, old: TupleColumn) -> TupleColumn:
        """Unchanged values are those of the old row."""
        unchanged = self.lengths == UNCHANGED
        if not bool(unchanged.any()):
            return self
        return TupleColumn(
            np.where(unchanged, old.starts, self.starts), np.where(unchanged, old.lengths, self.lengths)
        )

    @property
    def has_unchanged(self) -> bool:
        return bool((self.lengths == UNCHANGED).any())

    @staticmethod
    def joined(columns: list[TupleColumn]) -> TupleColumn:
        return TupleColumn(
            np.concatenate([c.starts for c in columns]), np.concatenate([c.lengths for c in columns])
        )


def scan_tuples(
    payload: Payload, at: np.ndarray, width: int, ends: np.ndarray
) -> tuple[list[TupleColumn], np.ndarray]:
    """The columns of the rows that begin at `at`, and where each row ends. No row may go beyond the end of
    its message. Raises ProtocolFault."""
    if bool((at + 2 > ends).any()) or bool((payload.counts(at) != width).any()):
        raise ProtocolFault(
            "PostgreSQL sent a row that is not as the table was announced",
            detail=f"The table was announced with {width} columns.",
        )
    at = at + 2
    columns: list[TupleColumn] = []
    for _ in range(width):
        if bool((at >= ends).any()):
            raise _cut_off()
        letters = payload.letters(at)
        texts = letters == _TEXT
        others = letters[~texts]
        if bool(((others != _NULL) & (others != _UNCHANGED)).any()):
            raise ProtocolFault(
                "PostgreSQL sent a value in a form that was not asked for",
                detail="It is binary." if bool((others == _BINARY).any()) else "The form is unknown.",
            )
        lengths = np.where(texts, payload.numbers(at + 1), np.where(letters == _NULL, NULL, UNCHANGED))
        starts = at + 5
        at = np.where(texts, starts + lengths, at + 1)
        if bool((at > ends).any()) or bool((texts & (lengths < 0)).any()):
            raise _cut_off()
        columns.append(TupleColumn(starts, lengths))
    return columns, at


def text_column(payload: Payload, column: TupleColumn) -> pa.Array:
    """The values as a binary column. It is a copy."""
    lengths, present = column.lengths, column.lengths >= 0
    count = len(lengths)
    if not bool(present.any()):
        return pa.nulls(count, pa.binary())
    starts = np.where(present, column.starts, 0)
    views = np.zeros((count, 4), np.uint32)
    views[:, 0] = np.where(present, lengths, 0)
    # Short values are in the view itself, with what follows them; the copy takes their length alone.
    for word in range(3):
        views[:, word + 1] = payload.words(np.minimum(starts + 4 * word, len(payload.bytes) - 4))
    long = lengths > _INLINE
    if bool(long.any()):
        views[long, 2] = 0
        views[long, 3] = starts[long]
    buffers = [validity_buffer(present), pa.py_buffer(views), pa.py_buffer(payload.bytes)]
    column_view = pa.Array.from_buffers(pa.binary_view(), count, buffers)
    return column_view.cast(pa.binary())


def _cut_off() -> ProtocolFault:
    return ProtocolFault("PostgreSQL sent a row that does not end", detail="A value goes beyond its message.")
