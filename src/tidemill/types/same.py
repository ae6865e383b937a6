"""Pairwise comparison of rows of a column, for many pairs at once.

Called by `identity` to verify equal hashes. Columns are canonical (one NaN, one zero, maps in the order of
their keys); NULL equals NULL.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.nested import list_parts, map_parts


def same_rows(array: pa.Array, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """For each i whether row left[i] equals row right[i]."""
    valid = valid_mask(array)
    both = valid[left] & valid[right]
    result = valid[left] == valid[right]
    if bool(both.any()):
        pairs = np.flatnonzero(both)
        result[pairs] = _same_values(array, left[pairs], right[pairs])
    return result


def _same_values(array: pa.Array, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Like `same_rows`, for rows without nulls."""
    t = array.type
    if pa.types.is_struct(t):
        result = np.ones(len(left), dtype=np.bool_)
        for i in range(t.num_fields):
            result &= same_rows(array.field(i), left, right)
        return result
    if pa.types.is_map(t):
        offsets, keys, values = map_parts(array)
        return _same_items(offsets, [keys, values], left, right)
    if pa.types.is_list(t):
        offsets, elements = list_parts(array)
        return _same_items(offsets, [elements], left, right)
    first, second = array.take(pa.array(left)), array.take(pa.array(right))
    result = pc.equal(first, second)
    if pa.types.is_floating(t):
        result = pc.or_(result, pc.and_(pc.is_nan(first), pc.is_nan(second)))
    return result.to_numpy(zero_copy_only=False)


def _same_items(
    offsets: np.ndarray, children: list[pa.Array], left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    sizes = np.diff(offsets)
    result = sizes[left] == sizes[right]
    pairs = np.flatnonzero(result)
    counts = sizes[left[pairs]]
    owner = np.repeat(np.arange(len(pairs)), counts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    same = np.ones(len(owner), dtype=np.bool_)
    for child in children:
        same &= same_rows(child, offsets[left[pairs]][owner] + nth, offsets[right[pairs]][owner] + nth)
    result[pairs[owner[~same]]] = False
    return result
