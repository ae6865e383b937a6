"""UPSERT (ORDER BY ...): a record replaces the row of its key only if its order columns are greater.

Called by `upsert` instead of "the last record wins". The rules, record by record: an error always replaces,
and any record replaces an error. Otherwise the greater order wins, and an equal order changes nothing. A
deletion has an order like any record, and must win against an older record that arrives later. Its key
therefore keeps an invisible row (`HIDDEN_ROW`), unless the key is an error slot, which has no order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import KeyShape, first_of_each_key
from tidemill.sources.contract import KEY_SLOT_COLUMN
from tidemill.types.arrow import HIDDEN_ROW
from tidemill.types.columns import numbers, valid_mask
from tidemill.types.identity import leaders
from tidemill.types.kernels import pc


@dataclass(frozen=True, slots=True)
class Winners:
    """For the records of one time, per key, in the order of the hashes: the position of the winner, and
    whether it replaces any existing row (because an error came before it at the same time)."""

    at: np.ndarray
    forced: np.ndarray


def remembered(
    rows: pa.RecordBatch, deleted: np.ndarray, shape: KeyShape
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Deletions of keys as invisible rows, and which deletions remain."""
    if shape.error is None or not deleted.any():
        return rows, deleted
    slots = rows.column(shape.names.index(KEY_SLOT_COLUMN))
    hidden = deleted & ~valid_mask(slots)
    errors = pc.if_else(pa.array(hidden), HIDDEN_ROW, rows.column(shape.error))
    columns = rows.columns
    columns[shape.error] = errors
    return pa.RecordBatch.from_arrays(columns, schema=shape.schema), deleted & ~hidden


def winners(rows: pa.RecordBatch, hashes: np.ndarray, shape: KeyShape) -> Winners:
    """Of each key the record that the fold ends with, if nothing was there before."""
    keys = [rows.column(i) for i in shape.key]
    count = len(hashes)
    arrival = np.arange(count)
    left, forced = arrival, np.zeros(count, dtype=np.bool_)
    failed = failures(rows, shape)
    if failed.any():
        # What came before the last error of a key does not count; the error itself only if it is the end.
        group = leaders(keys, count)
        error = np.full(count, -1)
        np.maximum.at(error, group[failed], arrival[failed])
        last = np.zeros(count, dtype=np.int64)
        np.maximum.at(last, group, arrival)
        left = (arrival > error[group]) | (failed & (arrival == last[group]))
        left, forced = left.nonzero()[0], error[group] >= 0
    orders = [_ranks(rows.column(i))[left] for i in reversed(shape.order)]
    descending = np.lexsort((arrival[left], *(-order for order in orders), hashes[left]))
    chosen = first_of_each_key(hashes[left], [k.take(pa.array(left)) for k in keys], descending)
    at = left[chosen]
    return Winners(at, forced[at])


def lost(new: pa.RecordBatch, old: pa.RecordBatch, shape: KeyShape, forced: np.ndarray) -> np.ndarray:
    """Per pair of a new row and the one that its key has, whether the old one stays."""
    decided = forced | failures(new, shape) | failures(old, shape)
    greater = np.zeros(new.num_rows, dtype=np.bool_)
    equal = np.ones(new.num_rows, dtype=np.bool_)
    for i in shape.order:
        both = _ranks(pa.concat_arrays([new.column(i), old.column(i)]))
        ours, theirs = both[: new.num_rows], both[new.num_rows :]
        greater |= equal & (ours > theirs)
        equal &= ours == theirs
    return ~decided & ~greater


def _ranks(column: pa.Array) -> np.ndarray:
    """Integers in the order of the values: integers themselves, and of text the ranks."""
    if not pa.types.is_string(column.type):
        return numbers(column, np.int64)
    # By bytes, which is the order of code points.
    return pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)


def failures(rows: pa.RecordBatch, shape: KeyShape) -> np.ndarray:
    """Which rows are errors."""
    if shape.error is None:
        return np.zeros(rows.num_rows, dtype=np.bool_)
    errors = rows.column(shape.error)
    if errors.null_count == len(errors):
        return np.zeros(rows.num_rows, dtype=np.bool_)
    return pc.fill_null(pc.not_equal(errors, HIDDEN_ROW), False).to_numpy(zero_copy_only=False)
