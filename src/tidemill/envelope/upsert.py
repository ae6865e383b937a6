"""UPSERT: the last record of a key is its row; a record without value deletes it.

`upsert` is a pure function of the records of one time and of the rows that the collection had before: it says
which updates follow, and what the state must remember. Called by `ingest.state`, one key bucket at a time.

The steps, and what later envelopes put between them:
1. Of several records of a key only the last counts. Records come in the order of (partition, offset).
   ORDER BY replaces this order by its own columns.
2. `State.lookup` finds the rows that the keys have now. Here a record may turn out to have lost against the
   stored row (ORDER BY compares hidden columns), and what it leaves out may be taken from the old row (TOAST
   placeholders).
3. Equal rows cancel; the rest are retractions of old rows and insertions of new ones.
Slots of errors are rows like any others, with `mz_error` among the hidden columns and their raw key
(`mz_key`) in `Shape.key`; a tombstone that must keep winning is a row of hidden columns, no tombstone here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import HASH_COLUMN, Shape, key_hash, last_of_each_key, one_batch, rows_equal
from tidemill.sources.contract import TOMBSTONE_COLUMN
from tidemill.types.columns import contiguous


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of the state, and `where` their keys stand among those that were asked for."""

    rows: pa.RecordBatch
    where: np.ndarray


class State(Protocol):
    """What the collection holds, by key."""

    def lookup(self, rows: pa.RecordBatch, hashes: np.ndarray) -> Found:
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


def upsert(records: pa.Table, shape: Shape, time: int, state: State) -> Changed:
    """What the records of one time change. They have the columns of `shape`, `mz_tombstone` and, if it is
    known already, `mz_key_hash`; in the order in which they count."""
    every = one_batch(records, shape.names, shape.schema)
    hashes = _hashes(records, every, shape)
    last = last_of_each_key(hashes, [every.column(i) for i in shape.key])
    rows, hashes = every.take(pa.array(last)), hashes[last]
    deleted = contiguous(records.column(TOMBSTONE_COLUMN)).to_numpy(zero_copy_only=False)[last]
    found = state.lookup(rows, hashes)
    same = _unchanged(rows, deleted, found)
    gone = _where(found.rows, ~same)
    # A key changes when it gets a row that differs, or loses the one it has.
    changes = ~deleted
    changes[found.where] = ~same
    come = _where(rows, changes & ~deleted)
    updates = pa.Table.from_batches([_updates(gone, shape, time, -1), _updates(come, shape, time, 1)])
    return Changed(updates, _where(rows, changes), hashes[changes], deleted[changes])


def _hashes(records: pa.Table, rows: pa.RecordBatch, shape: Shape) -> np.ndarray:
    if HASH_COLUMN in records.schema.names:
        return contiguous(records.column(HASH_COLUMN)).to_numpy()
    return key_hash(rows, shape.key)


def _unchanged(rows: pa.RecordBatch, deleted: np.ndarray, found: Found) -> np.ndarray:
    """Per found row whether the key's new row equals it."""
    count = len(found.where)
    if not count:
        return np.zeros(0, dtype=np.bool_)
    new = rows.take(pa.array(found.where))
    return rows_equal(new.columns, found.rows.columns, count) & ~deleted[found.where]


def _where(rows: pa.RecordBatch, mask: np.ndarray) -> pa.RecordBatch:
    return rows if mask.all() else rows.take(pa.array(mask.nonzero()[0]))


def _updates(rows: pa.RecordBatch, shape: Shape, time: int, diff: int) -> pa.RecordBatch:
    columns = rows.columns
    columns[shape.visible : shape.visible] = [pa.array(np.full(rows.num_rows, n)) for n in (time, diff)]
    return pa.RecordBatch.from_arrays(columns, schema=shape.update_schema)
