"""A filter for the rows of a scan that may equal one of some given rows: cheap per row, no false negatives.

`retraction_matches` applies it to every row of the parts that retractions may hit. It accepts every row that
equals a given one, and a few others, which cost only time. It has two steps, because a row hash of every row
would cost more than reading it. The first is a key of the columns that are numbers or bytes (of long bytes
only both ends and the length), multiplied together in a few operations per column. The second, for the rows
that pass, is the hash of row identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.types import wide
from tidemill.types.columns import contiguous, numbers, spans, valid_mask
from tidemill.types.hash import float_bits, fold, hash_column

Keys = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, np.dtype[np.int64]]

# A slot of a table is taken with probability 1/64: a stranger passes one step with that, both with 1/4096.
_SLOTS_PER_ROW = 64
# The smallest keeps that for a handful of rows; the largest (64 MB) stays useful for millions.
_MIN_BITS, _MAX_BITS = 16, 26

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_NULL = np.uint64(0xD6E8FEB86659FD93)
# Which bytes of a word are of a value that is so long.
_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)


class Probe:
    """Of the rows of a table with (at least) `columns`, compared by them."""

    def __init__(self, rows: pa.Table, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        bits = int(np.ceil(np.log2(max(1, rows.num_rows * _SLOTS_PER_ROW))))
        bits = max(_MIN_BITS, min(_MAX_BITS, bits))
        # A hash's highest bits are the slot.
        self._shift = np.uint64(64 - bits)
        self._keys = self._taken(row_keys(rows, self._columns))
        self._hashes = self._taken(_hashes(rows, self._columns))

    def places(self, table: pa.Table) -> Places:
        """Where in the table the answer is yes, in order."""
        passed = np.flatnonzero(self._keys[row_keys(table, self._columns) >> self._shift])
        if not passed.size:
            return passed
        rows = table.select(self._columns).take(pa.array(passed))
        return passed[self._hashes[_hashes(rows, self._columns) >> self._shift]]

    def _taken(self, keys: Keys) -> np.ndarray[Any, np.dtype[np.bool_]]:
        slots = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        slots[keys >> self._shift] = True
        return slots


def _hashes(table: pa.Table, columns: Sequence[str]) -> Keys:
    return np.broadcast_to(fold([hash_column(table.column(name)) for name in columns]), table.num_rows)


def row_keys(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> Keys:
    """One number per row, the same for equal rows."""
    keys = np.zeros(table.num_rows, np.uint64)
    with np.errstate(over="ignore"):
        for name in columns:
            column = contiguous(table.column(name))
            key = _column_keys(column)
            if key is None:
                continue
            if column.null_count:
                key = np.where(valid_mask(column), key, _NULL)
            keys += key
            keys ^= keys >> _HALF
            keys *= _MULTIPLIER
    return keys


def _column_keys(column: pa.Array) -> Keys | None:
    """None for types whose key would cost as much as their hash; the key of a null is arbitrary."""
    t = column.type
    if pa.types.is_float64(t):
        return float_bits(numbers(column, np.float64), np.int64).view(np.uint64)
    if pa.types.is_float32(t):
        return float_bits(numbers(column, np.float32), np.int32).astype(np.uint64)
    if pa.types.is_decimal128(t):
        return wide.words(column)[0]
    if pa.types.is_string(t) or pa.types.is_binary(t):
        return _byte_keys(column)
    if pa.types.is_boolean(t) or pa.types.is_nested(t) or pa.types.is_null(t):
        return None
    return numbers(column, np.int64).view(np.uint64)


def _byte_keys(column: pa.Array) -> Keys:
    """Of the first and the last eight bytes and the length."""
    offsets, data = spans(column)
    lengths = np.diff(offsets).astype(np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    # Room behind the last value for a whole word.
    padded = np.concatenate([data[first:end], np.zeros(8, np.uint8)])
    words = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
    starts = offsets[:-1].astype(np.int64) - first
    mask = _BYTES[np.minimum(lengths, 8)]
    keys = words[starts] & mask
    keys *= _MULTIPLIER
    keys ^= keys >> _HALF
    keys += words[starts + np.maximum(lengths - 8, 0)] & mask
    keys *= _MULTIPLIER
    keys += lengths.view(np.uint64)
    return keys
