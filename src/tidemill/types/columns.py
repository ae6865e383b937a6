"""Conversion of whole columns between Arrow and numpy: buffers to numpy arrays, and arrays to Arrow columns.

Called by the wire coders and by the row hash. This module handles slices and nulls: callers see plain arrays
of the column's length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import LimitExceeded


def contiguous(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    if isinstance(array, pa.ChunkedArray):
        return array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    return array


def valid_mask(array: pa.Array) -> np.ndarray:
    """True for rows with a value."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)


def numbers(array: pa.Array, dtype: Any) -> np.ndarray:
    """The values of a fixed-width column as numpy. The value of a null row is arbitrary but defined."""
    storage = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        array = array.cast(storage[array.type.bit_width // 8])
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype=dtype)
    width = array.type.bit_width // 8
    raw_type = np.dtype(f"{'f' if pa.types.is_floating(array.type) else 'i'}{width}")
    raw = np.frombuffer(buffer, dtype=raw_type, count=len(array), offset=array.offset * width)
    return raw if raw.dtype == np.dtype(dtype) else raw.astype(dtype)


def constant(array: pa.Array) -> pa.Array | None:
    """The first row if all rows are bitwise equal; None if they are not, if there is only one, or if the
    check would take long. (For columns such as times and diffs, an encoder then encodes one value.)"""
    rows, t = len(array), array.type
    if rows < 2:
        return None
    if array.null_count:
        same = array.null_count == rows
    elif pa.types.is_boolean(t):
        same = array.true_count in (0, rows)
    elif pa.types.is_string(t) or pa.types.is_binary(t):
        same = _one_text(*spans(array))
    elif pa.types.is_primitive(t) and t.bit_width in (8, 16, 32, 64):
        width = t.bit_width // 8
        raw = np.frombuffer(array.buffers()[1], f"u{width}", rows, array.offset * width)
        same = raw[0] == raw[-1] and bool((raw == raw[0]).all())
    else:
        same = False
    return array.slice(0, 1) if same else None


def _one_text(offsets: np.ndarray, data: np.ndarray) -> bool:
    start, end, width = int(offsets[0]), int(offsets[-1]), int(offsets[1] - offsets[0])
    if end - start != (len(offsets) - 1) * width or not bool((np.diff(offsets) == width).all()):
        return False
    texts = data[start:end].reshape(-1, width) if width else data[:0]
    return bool((texts[-1:] == texts[:1]).all()) and bool((texts == texts[:1]).all())


def validity_buffer(valid: np.ndarray) -> pa.Buffer | None:
    if bool(valid.all()):
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def bytes_of_rows(matrix: np.ndarray, valid: np.ndarray) -> pa.Array:
    """A binary column from rows of bytes with the same length."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return _binary(offsets, np.ascontiguousarray(matrix), valid)


def bytes_between(cells: np.ndarray, before: np.ndarray, behind: np.ndarray, valid: np.ndarray) -> pa.Array:
    """A binary column from the cells of each row, without the first `before` and the last `behind` cells.
    Cells may have any fixed width."""
    rows, width = cells.shape
    if rows and bool((before == before[0]).all()) and bool((behind == behind[0]).all()):
        kept = np.ascontiguousarray(cells[:, before[0] : width - behind[0]])
        return bytes_of_rows(kept.view(np.uint8).reshape(rows, -1), valid)
    # Kept and skipped cells are one column; every other value of it is used.
    starts = np.arange(rows) * width
    offsets = np.full(2 * rows + 1, rows * width)
    offsets[:-1:2] = starts + before
    offsets[1::2] = starts + (width - behind)
    column = _binary(offsets * cells.dtype.itemsize, cells, np.ones(2 * rows, np.bool_))
    taken = column.take(pa.array(np.arange(0, 2 * rows, 2)))
    return pa.Array.from_buffers(pa.binary(), rows, [validity_buffer(valid), *taken.buffers()[1:]])


def _binary(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray) -> pa.Array:
    if int(offsets[-1]) > np.iinfo(np.int32).max:
        raise LimitExceeded("a batch's column is larger than 2 GB")
    buffers = [validity_buffer(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def leading_numbers(
    octets: np.ndarray, at: np.ndarray, end: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The decimal numbers that begin at these places, of `most` digits at most (18), and the places behind
    them; 0 where there is no digit. They stop before `end`, where `octets` must still have a byte."""
    found, at = np.zeros(len(at), np.int64), np.minimum(at, end)
    among = np.ones(len(at), np.bool_)
    for _ in range(most):
        digit = octets[at] - np.uint8(ord("0"))
        among &= (digit < 10) & (at < end)
        if not among.any():
            break
        found = np.where(among, found * 10 + digit, found)
        at += among
    return found, at


def spans(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (length + 1) and bytes of a binary or string column. A null row may span any bytes."""
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int32), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32, count=len(array) + 1, offset=array.offset * 4)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return offsets, data


def fixed_rows(array: pa.Array, width: int) -> np.ndarray | None:
    """The rows of a binary or string column as a byte matrix, if each value has the length `width`. Null rows
    are zeros."""
    offsets, data = spans(array)
    lengths = np.diff(offsets)
    valid = valid_mask(array)
    if not bool((lengths[valid] == width).all()):
        return None
    if bool(valid.all()) and len(array):
        return data[offsets[0] : offsets[-1]].reshape(len(array), width)
    matrix = np.zeros((len(array), width), dtype=np.uint8)
    starts = offsets[:-1][valid].astype(np.int64)
    matrix[valid] = data[starts[:, None] + np.arange(width)]
    return matrix
