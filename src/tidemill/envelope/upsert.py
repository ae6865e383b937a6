"""UPSERT: the last record of a key is its row; a record without a value deletes it.

Called by `ingest.state`, one key bucket at a time. `upsert` is a pure function of the records of one time and
of the previous rows of the collection. It returns the updates and the new state.

The steps:
1. Of several records of a key only one counts. Records are ordered by (partition, offset) and the last one
   wins, unless ORDER BY is given (`order`).
2. `KeyState.lookup` finds the current rows of the keys. A record may have lost against the row of its key
   (`order`), and omitted values are taken from that row (`unavailable`).
3. Equal rows cancel. The others are retractions of old rows and insertions of new ones.

Errors are ordinary rows, with `mz_error` among the columns. An error of an unreadable key has its own slot,
through `mz_key`, which is part of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.envelope import order
from tidemill.envelope.keys import HASH_COLUMN, KeyShape, key_hash, last_of_each_key, one_batch, rows_equal
from tidemill.envelope.unavailable import Lacking, fill_from_state, fill_here
from tidemill.sources.contract import TOMBSTONE_COLUMN, UNAVAILABLE_COLUMN
from tidemill.types.columns import contiguous


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of the state, and `where`: the positions of their keys among the requested ones."""

    rows: pa.RecordBatch
    where: np.ndarray


class KeyState(Protocol):
    """What the collection holds, by key."""

    def lookup(self, rows: pa.RecordBatch, hashes: np.ndarray) -> FoundRows:
        """The rows that the keys of `rows` have now, in any order; keys without a row are left out. The keys
        are distinct and in the order of their hashes."""
        ...


@dataclass(frozen=True, slots=True)
class Changed:
    """`updates`: the shard's columns with time and diff. The rest is for the state: per key that changed, in
    the order of the hashes, its new row, or anything where it is `deleted`."""

    updates: pa.Table
    rows: pa.RecordBatch
    hashes: np.ndarray
    deleted: np.ndarray


def upsert(records: pa.Table, shape: KeyShape, time: int, state: KeyState) -> Changed:
    """What the records of one time change. They have the columns of `shape`, `mz_tombstone` and, if it is
    known already, `mz_key_hash`; in the order in which they count."""
    every = one_batch(records, shape.names, shape.schema)
    hashes = _hashes(records, every, shape)
    deleted = contiguous(records.column(TOMBSTONE_COLUMN)).to_numpy(zero_copy_only=False)
    lacking: Lacking | None = None
    if UNAVAILABLE_COLUMN in records.schema.names:
        left_out = contiguous(records.column(UNAVAILABLE_COLUMN))
        # One record of a batch that lacks something gives the column to all buckets.
        if len(left_out.flatten()):
            every, lacking = fill_here(every, left_out, deleted, shape)
    forced: np.ndarray | None = None
    if shape.order:
        every, deleted = order.remembered(every, deleted, shape)
        won = order.winners(every, hashes, shape)
        chosen, forced = won.at, won.forced
    else:
        chosen = last_of_each_key(hashes, [every.column(i) for i in shape.key])
    rows, hashes, deleted = every.take(pa.array(chosen)), hashes[chosen], deleted[chosen]
    found = state.lookup(rows, hashes)
    if lacking is not None:
        rows = fill_from_state(rows, lacking.take(chosen), found.rows, found.where, shape)
    stays = _unchanged(rows, deleted, found)
    if forced is not None and len(found.where):
        new = rows.take(pa.array(found.where))
        stays |= order.lost(new, found.rows, shape, forced[found.where])
    gone = _where(found.rows, ~stays)
    # A key changes when it gets a row that differs, or loses the one it has.
    changes = ~deleted
    changes[found.where] = ~stays
    come = _where(rows, changes & ~deleted)
    updates = pa.Table.from_batches([as_updates(gone, shape, time, -1), as_updates(come, shape, time, 1)])
    return Changed(updates, _where(rows, changes), hashes[changes], deleted[changes])


def _hashes(records: pa.Table, rows: pa.RecordBatch, shape: KeyShape) -> np.ndarray:
    if HASH_COLUMN in records.schema.names:
        return contiguous(records.column(HASH_COLUMN)).to_numpy()
    return key_hash(rows, shape.key)


def _unchanged(rows: pa.RecordBatch, deleted: np.ndarray, found: FoundRows) -> np.ndarray:
    """Per found row whether the key's new row equals it."""
    count = len(found.where)
    if not count:
        return np.zeros(0, dtype=np.bool_)
    new = rows.take(pa.array(found.where))
    return rows_equal(new.columns, found.rows.columns, count) & ~deleted[found.where]


def _where(rows: pa.RecordBatch, mask: np.ndarray) -> pa.RecordBatch:
    return rows if mask.all() else rows.take(pa.array(mask.nonzero()[0]))


def as_updates(rows: pa.RecordBatch, shape: KeyShape, time: int, diff: int) -> pa.RecordBatch:
    """The rows as the shard keeps them."""
    columns = rows.columns
    columns[shape.visible : shape.visible] = [pa.array(np.full(rows.num_rows, n)) for n in (time, diff)]
    return pa.RecordBatch.from_arrays(columns, schema=shape.update_schema)
