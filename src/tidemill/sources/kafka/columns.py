"""Columns from memory owned by C: numpy gathers and Arrow binaries, without a Python object per value.

Called by `native`. The addresses point into messages that librdkafka returned and that stay allocated until
these functions return. All results are copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.sources.kafka.layout import HEADERS
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import validity_buffer

# A binary view contains values of up to this many bytes. For longer ones it holds their position.
_INLINE = 12
# Views count from the start of a window in 31 bits; windows of this size leave room for the longest value.
_WINDOW_BITS = 30


class _Interface:
    """numpy's protocol for memory with another owner."""

    def __init__(self, address: int, count: int, kind: str) -> None:
        self.__array_interface__ = {"shape": (count,), "typestr": kind, "data": (address, True), "version": 3}


@dataclass(frozen=True, slots=True)
class Memory:
    """The process's memory from `base` on, as words of eight bytes. Only indexed words are accessed."""

    base: int
    _words: np.ndarray

    @staticmethod
    def over(pointers: np.ndarray, size: int) -> Memory:
        """The memory that contains structures of `size` bytes, which are aligned to words."""
        base = int(pointers.min())
        count = (int(pointers.max()) + size - base) // 8
        return Memory(base, np.asarray(_Interface(base, count, "<u8")))

    def words(self, pointers: np.ndarray, number: int) -> np.ndarray:
        """The `number`th word of each structure, as uint64."""
        at = ((pointers - np.uint64(self.base)) >> np.uint64(3)).astype(np.int64) + number
        return self._words[at]

    @staticmethod
    def binary(pointers: np.ndarray, lengths: np.ndarray) -> pa.Array:
        """The bytes at each address as a binary column; null for a null address."""
        present = pointers != 0
        count = len(pointers)
        if not bool(present.any()):
            return pa.nulls(count, pa.binary())
        lengths = np.where(present, lengths, 0)
        base = int(pointers[present].min())
        relative = np.where(present, pointers - np.uint64(base), 0).astype(np.int64)
        views = np.zeros((count, 4), np.int32)
        views[:, 0] = lengths
        windows: list[pa.Buffer] = []
        long = lengths > _INLINE
        if bool(long.any()):
            windows = _windows(base, relative, lengths, long, views)
        _inline(base, relative, lengths, np.flatnonzero(~long & (lengths > 0)), views)
        buffers: list[Any] = [validity_buffer(present), pa.py_buffer(views), *windows]
        column = pa.Array.from_buffers(pa.binary_view(), count, buffers)
        # The cast copies. It does not read the prefixes that a view should hold, so they are left out.
        return column.cast(pa.binary())


def _windows(
    base: int, relative: np.ndarray, lengths: np.ndarray, long: np.ndarray, views: np.ndarray
) -> list[pa.Buffer]:
    """Set the position of the long values: the number of a window over memory, and the offset in it. Returns
    the windows."""
    numbers = relative[long] >> _WINDOW_BITS
    used = [int(numbers[0])]
    if int(numbers.min()) != int(numbers.max()):
        found, views[long, 2] = np.unique(numbers, return_inverse=True)
        used = found.tolist()
    views[long, 3] = relative[long] & ((1 << _WINDOW_BITS) - 1)
    size = (1 << _WINDOW_BITS) + int(lengths.max())
    return [pa.foreign_buffer(base + (number << _WINDOW_BITS), size) for number in used]


def _inline(
    base: int, relative: np.ndarray, lengths: np.ndarray, rows: np.ndarray, views: np.ndarray
) -> None:
    """Copy the bytes of the short values into their views."""
    if not len(rows):
        return
    sizes = lengths[rows]
    ends = np.cumsum(sizes)
    # For each byte: its row, and its index in the value.
    row = np.repeat(rows, sizes)
    place = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
    source = relative[row] + place
    memory = np.asarray(_Interface(base, int(source.max()) + 1, "|u1"))
    views.view(np.uint8)[row, place + 4] = memory[source]


def headers_column(headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> pa.Array:
    """Headers of each record in their storage type."""
    rows = [[{"key": key, "value": value} for key, value in of_one] for of_one in headers]
    return pa.array(rows, arrow_type(HEADERS))
