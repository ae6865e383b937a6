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

from tidemill.envelope.keys import HASH_COLUMN, Shape, key_columns, key_hash, last_of_each_key, rows_equal
from tidemill.sources.contract import TOMBSTONE_COLUMN
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.names import RESERVED_PREFIX


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of the state, and `where` their keys stand among those that were asked for (ascending)."""

    rows: pa.Table
    where: np.ndarray


class State(Protocol):
    """What the collection holds, by key."""

    def lookup(self, rows: pa.Table, hashes: np.ndarray) -> Found:
        """The rows that the keys of `rows` have now; keys without a row are left out. The keys are distinct
        and in the order of their hashes."""
        ...


@dataclass(frozen=True, slots=True)
class Changed:
    """`updates`: the shard's columns with time and diff. The rest is for the state: per key that changed, in
    the order of the hashes, its new row, or anything where it is `deleted`."""

    updates: pa.Table
    rows: pa.Table
    hashes: np.ndarray
    deleted: np.ndarray


def upsert(records: pa.Table, shape: Shape, time: int, state: State) -> Changed:
    """What the records of one time change. They have the columns of `shape`, `mz_tombstone` and, if it is
    known already, `mz_key_hash`; in the order in which they count."""
    records = records.combine_chunks()
    hashes = _hashes(records, shape)
    last = last_of_each_key(hashes, key_columns(records.select(shape.key_names), range(len(shape.key))))
    rows, hashes = records.select(shape.names).take(pa.array(last)), hashes[last]
    deleted = _mask(records, TOMBSTONE_COLUMN)[last]
    found = state.lookup(rows, hashes)
    same = _unchanged(rows, deleted, found)
    # Of the old rows those go whose key is deleted or has another row now.
    gone = found.rows if not same.any() else found.rows.filter(pa.array(~same))
    stale = np.zeros(len(hashes), dtype=np.bool_)
    stale[found.where] = True
    equal = np.zeros(len(hashes), dtype=np.bool_)
    equal[found.where[same]] = True
    comes = ~deleted & ~equal
    come = rows if comes.all() else rows.filter(pa.array(comes))
    changed = comes | (deleted & stale)
    if not changed.all():
        kept = pa.array(np.flatnonzero(changed))
        rows, hashes, deleted = rows.take(kept), hashes[changed], deleted[changed]
    return Changed(_updates(gone, come, shape, time), rows, hashes, deleted)


def _hashes(records: pa.Table, shape: Shape) -> np.ndarray:
    if HASH_COLUMN in records.schema.names:
        return contiguous(records.column(HASH_COLUMN)).to_numpy()
    return key_hash(records.select(shape.key_names), range(len(shape.key)))


def _mask(records: pa.Table, name: str) -> np.ndarray:
    return contiguous(records.column(name)).to_numpy(zero_copy_only=False)


def _unchanged(rows: pa.Table, deleted: np.ndarray, found: Found) -> np.ndarray:
    """Per found row whether the key's new row equals it."""
    count = len(found.where)
    if not count:
        return np.zeros(0, dtype=np.bool_)
    new = rows if count == rows.num_rows else rows.take(pa.array(found.where))
    every = range(rows.num_columns)
    return rows_equal(key_columns(new, every), key_columns(found.rows, every), count) & ~deleted[found.where]


def _updates(gone: pa.Table, come: pa.Table, shape: Shape, time: int) -> pa.Table:
    """Retractions, then insertions, in the columns of the shard: the relation's, time, diff, hidden ones."""
    diffs = np.repeat(np.array([-1, 1]), [gone.num_rows, come.num_rows])
    rows = pa.concat_tables([gone, come])
    visible = sum(not name.startswith(RESERVED_PREFIX) for name in shape.names)
    rows = rows.add_column(
        visible, pa.field(TIME_COLUMN, pa.int64(), nullable=False), pa.array(np.full(len(diffs), time))
    )
    return rows.add_column(visible + 1, pa.field(DIFF_COLUMN, pa.int64(), nullable=False), pa.array(diffs))
