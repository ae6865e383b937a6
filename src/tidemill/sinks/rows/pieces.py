"""Columns of bytes: joined row by row, and cut out of the bytes of their elements."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.types.columns import bytes_of_rows, spans
from tidemill.types.kernels import pc


def joined(*parts: pa.Array | bytes) -> pa.Array:
    """The parts of each row, one after another; null where one is null. At least one is a column."""
    return pc.binary_join_element_wise(*parts, b"")


def constant(value: bytes, rows: int) -> pa.Array:
    matrix = np.broadcast_to(np.frombuffer(value, np.uint8), (rows, len(value)))
    return bytes_of_rows(matrix, np.ones(rows, np.bool_))


def runs(elements: pa.Array, offsets: np.ndarray) -> pa.Array:
    """For each row the bytes of all elements between its offsets. No element is null."""
    bounds, data = spans(elements)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds[offsets])), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
