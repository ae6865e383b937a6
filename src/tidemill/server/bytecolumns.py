"""Columns of byte strings: the helpers of row encoders, without Python code per row.

Used by `pgwire.rows` and by the COPY formats. A column is an Arrow binary array.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.types.kernels import pc

NOTHING = pa.scalar(b"", pa.binary())


def fixed_width(values: npt.NDArray[np.generic], width: int) -> pa.Array:
    """Equally long records as a column, without copying them."""
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def prefixes(column: pa.Array) -> pa.Array:
    """For each value its length (-1 for null), as four big-endian bytes."""
    lengths = pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False)
    return fixed_width(lengths.astype(">i4"), 4)


def concatenated(parts: Sequence[pa.Array | pa.Scalar], null: bytes = b"") -> pa.Array:
    """The values of all parts, row by row; `null` replaces nulls."""
    return pc.binary_join_element_wise(*parts, NOTHING, null_handling="replace", null_replacement=null)


def spans(column: pa.Array) -> npt.NDArray[np.int32]:
    """The offsets of a column's values within its data buffer, one more than there are values."""
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32, count=len(column) + 1, offset=column.offset * 4)


def content(column: pa.Array) -> memoryview:
    """All values of a column without nulls, one after another."""
    ends, data = spans(column), column.buffers()[2]
    if data is None or not len(column):
        return memoryview(b"")
    return memoryview(data)[int(ends[0]) : int(ends[-1])]
