"""Whole columns between Arrow and bytes: what the encoders and decoders of this package share.

A decoder takes its column in two steps: a vectorised one for the spelling that nearly every value has, and
PostgreSQL's full input rules, value by value, for the rest. So a column of plain values costs no Python per
row, and an odd one is still read as PostgreSQL reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.kernels import pc

# What PostgreSQL's isspace() takes as blank around a value.
BLANKS = " \t\n\v\f\r"


class InvalidField(InvalidValue):
    """An InvalidValue that knows its row within the decoded column, for COPY's line numbers."""

    def __init__(self, cause: InvalidValue, row: int) -> None:
        super().__init__(cause.primary, detail=cause.detail, hint=cause.hint, sqlstate=cause.sqlstate)
        self.row = row


def contiguous(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, whatever came in."""
    if isinstance(array, pa.ChunkedArray):
        return array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    return array


def valid_mask(array: pa.Array) -> np.ndarray:
    """True where a value is."""
    if array.null_count == 0:
        return np.ones(len(array), dtype=np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)


def numbers(array: pa.Array, dtype: Any) -> np.ndarray:
    """The values of a fixed-width column as numpy; what lies under a null is arbitrary but defined."""
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


def validity_buffer(valid: np.ndarray) -> pa.Buffer | None:
    if bool(valid.all()):
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def bytes_of_rows(matrix: np.ndarray, valid: np.ndarray) -> pa.Array:
    """A binary column from equally long rows of bytes."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return _binary(offsets, np.ascontiguousarray(matrix), valid)


def bytes_of_cells(cells: np.ndarray, keep: np.ndarray, valid: np.ndarray) -> pa.Array:
    """A binary column from the cells of each row that `keep` marks, in order; cells may be of any fixed
    width."""
    lengths = keep.sum(axis=1, dtype=np.int64) * cells.dtype.itemsize
    offsets = np.zeros(len(cells) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return _binary(offsets, cells[keep], valid)


def _binary(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray) -> pa.Array:
    if int(offsets[-1]) > np.iinfo(np.int32).max:
        raise InvalidValue("a batch's column is larger than 2 GB on the wire", sqlstate="54000")
    buffers = [validity_buffer(valid), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def spans(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (length + 1) and bytes of a binary or string column; a null row is whatever its offsets
    span."""
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int32), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32, count=len(array) + 1, offset=array.offset * 4)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return offsets, data


def fixed_rows(array: pa.Array, width: int) -> np.ndarray | None:
    """The rows of a binary or string column as a byte matrix, if each value is `width` long; null rows are
    zeros."""
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


def as_text(array: pa.Array) -> pa.Array:
    """A client's bytes as UTF-8 strings; refuses what is none, and the zero byte, as PostgreSQL does."""
    if not pa.types.is_string(array.type):
        try:
            array = array.cast(pa.string())
        except pa.ArrowInvalid:
            _raise_bad_utf8(array)
    offsets, data = spans(array)
    if not bool(data[offsets[0] : offsets[-1]].all()):
        row = int(pc.index(pc.match_substring(array.cast(pa.binary()), b"\0"), True).as_py())
        if row >= 0:
            bad = InvalidValue('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
            raise InvalidField(bad, row)
    return array


def _raise_bad_utf8(array: pa.Array) -> None:
    for row, value in enumerate(array.to_pylist()):
        if value is None:
            continue
        try:
            value.decode("utf-8")
        except UnicodeDecodeError as error:
            # PostgreSQL shows as many bytes as the first one claims to have.
            claimed = 4 if value[error.start] >= 0xF0 else 3 if value[error.start] >= 0xE0 else 2
            claimed = 1 if value[error.start] < 0xC0 else claimed
            shown = " ".join(f"0x{b:02x}" for b in value[error.start : error.start + claimed])
            bad = InvalidValue(f'invalid byte sequence for encoding "UTF8": {shown}', sqlstate="22021")
            raise InvalidField(bad, row) from None


def decode_rows(
    texts: pa.Array, rows: np.ndarray, parse: Callable[[Any], Any], target: pa.DataType
) -> pa.Array:
    """`parse` each of the given rows; the first that is refused is told with its row."""
    values: list[Any] = []
    for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
        try:
            values.append(parse(text))
        except InvalidField:
            raise
        except InvalidValue as error:
            raise InvalidField(error, row) from None
    return pa.array(values, target)


def decode(
    texts: pa.Array,
    target: pa.DataType,
    *,
    fast: Callable[[pa.Array], pa.Array],
    regular: str,
    parse: Callable[[str], Any],
) -> pa.Array:
    """A column of texts as `target`: all of it by `fast` if that takes it; else what matches the pattern
    `regular` by `fast` and the rest by `parse`. `fast` raises ArrowInvalid for what it does not take."""
    try:
        return fast(texts)
    except pa.ArrowInvalid:
        pass
    trimmed = pc.ascii_trim(texts, BLANKS)
    matches = pc.fill_null(pc.match_substring_regex(trimmed, regular), True)
    try:
        result = fast(pc.if_else(matches, trimmed, pa.scalar(None, texts.type)))
    except pa.ArrowInvalid:
        matches = texts.is_null()
        result = pa.nulls(len(texts), target)
    odd = pc.invert(matches)
    rows = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
    return pc.replace_with_mask(result, odd, decode_rows(texts, rows, parse, target))
