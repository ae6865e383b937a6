"""Rows as WebSocket frames: one text frame per row, encoded by column without Python code per row.

A `RowFrames` encodes blocks of one result in a worker thread; `protocols` writes the bytes unchanged.
Promise: complete server frames by RFC 6455 (final, text, not masked, lengths in the shortest form), one
per row, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.server.bytecolumns import concatenated, content, spans
from tidemill.server.http.values import rows_of
from tidemill.types.model import Column

_BEFORE = pa.scalar(b'{"type":"Row","payload":', pa.binary())
_AFTER = pa.scalar(b"}", pa.binary())

# FIN and the opcode of text.
_TEXT = 0x81
# Lengths up to this fit the second byte; longer ones follow it, in two or eight bytes.
_SHORT, _MEDIUM = 125, 65_535
_IN_TWO, _IN_EIGHT = 126, 127


class RowFrames:
    """Encodes the rows of one result."""

    __slots__ = ("__weakref__", "_columns")

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        if not batch.num_rows:
            return memoryview(b"")
        rows = rows_of(batch.columns, self._columns, batch.num_rows).cast(pa.binary())
        return framed(concatenated([_BEFORE, rows, _AFTER]))


def framed(messages: pa.Array) -> memoryview:
    """Each value as a text frame."""
    lengths = np.diff(spans(messages)).astype(np.int64)
    return content(concatenated([_heads(lengths), messages]))


def _heads(lengths: npt.NDArray[np.int64]) -> pa.Array:
    medium, long = lengths > _SHORT, lengths > _MEDIUM
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(2 + 2 * (medium & ~long) + 8 * long, out=ends[1:])
    at = ends[:-1]
    data = np.zeros(int(ends[-1]), np.uint8)
    data[at] = _TEXT
    data[at + 1] = np.where(long, _IN_EIGHT, np.where(medium, _IN_TWO, lengths)).astype(np.uint8)
    for chosen, size in ((medium & ~long, 2), (long, 8)):
        for byte in range(size):
            shift = 8 * (size - 1 - byte)
            data[at[chosen] + 2 + byte] = (lengths[chosen] >> shift) & 0xFF
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(data)])
