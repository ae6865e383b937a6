"""Merging of column parts that were decoded separately."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def merge(count: int, parts: Sequence[tuple[np.ndarray, pa.Array]], type_: pa.DataType) -> pa.Array:
    """A column of `count` rows from (rows, their values), null in all other rows. If two parts have the same
    row, the later one counts."""
    if not parts:
        return pa.nulls(count, type_)
    index = np.full(count, -1, dtype=np.int64)
    base = 0
    for rows, array in parts:
        index[rows] = np.arange(base, base + len(array))
        base += len(array)
    values = parts[0][1] if len(parts) == 1 else pa.concat_arrays([array for _, array in parts])
    missing = index < 0
    if not missing.any():
        if len(parts) == 1 and base == count and bool((index == np.arange(count)).all()):
            return values
        return values.take(pa.array(index))
    return values.take(pa.array(index, mask=missing))
