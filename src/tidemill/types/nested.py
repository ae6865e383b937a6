"""Nested Arrow columns, split and joined: offsets from zero, and the children that they span.

Called by the wire coders and by the row hash. A null row spans nothing, whatever its buffers contain, and a
sliced column yields only its own children.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.types.columns import validity_buffer
from tidemill.types.kernels import pc


def list_parts(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Offsets (length + 1) and elements of a list column."""
    if array.null_count:
        # A null row may span elements; take() copies only those of other rows.
        array = array.take(pa.array(np.arange(len(array))))
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    if len(offsets) == 0:
        offsets = np.zeros(1, dtype=np.int64)
    first = int(offsets[0])
    return offsets - first, array.values.slice(first, int(offsets[-1]) - first)


def map_parts(array: pa.Array) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Offsets, keys and values of a map column, in the order stored."""
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", array.type.item_type)])
    offsets, entries = list_parts(array.cast(pa.list_(pa.field("entries", entry, nullable=False))))
    return offsets, entries.field(0), entries.field(1)


def sorted_map_parts(array: pa.Array) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Like `map_parts`, with each row's entries in the order of their keys (as bytes)."""
    offsets, keys, values = map_parts(array)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    table = pa.table({"row": rows, "key": keys})
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("key", "ascending")])
    return offsets, keys.take(order), values.take(order)


def struct_parts(array: pa.Array) -> list[pa.Array]:
    """The fields of a struct column, null where the struct is null: the values of a null struct are
    arbitrary."""
    return array.flatten()


def list_array(elements: pa.Array, offsets: np.ndarray, valid: np.ndarray, target: pa.DataType) -> pa.Array:
    """A list column of the storage type from its flat elements."""
    buffers = [validity_buffer(valid), pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int32))]
    return pa.Array.from_buffers(target, len(offsets) - 1, buffers, children=[elements])


def map_array(
    keys: pa.Array, values: pa.Array, offsets: np.ndarray, valid: np.ndarray, target: Any
) -> pa.Array:
    """A map column of the storage type from its flat keys and values."""
    entry = pa.struct([pa.field("key", pa.string(), nullable=False), target.item_field])
    entries = pa.Array.from_buffers(entry, len(keys), [None], children=[keys, values])
    buffers = [validity_buffer(valid), pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int32))]
    return pa.Array.from_buffers(target, len(offsets) - 1, buffers, children=[entries])


def struct_array(fields: list[pa.Array], valid: np.ndarray, target: pa.DataType) -> pa.Array:
    """A struct column of the storage type from its fields."""
    return pa.Array.from_buffers(target, len(valid), [validity_buffer(valid)], children=fields)
