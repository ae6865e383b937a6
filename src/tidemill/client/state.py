"""A relation in memory: applies batches of changes and returns the current rows.

A multiset of rows in storage form: each row with its count. It is independent of the application's key,
so it is correct even while two rows have the same key. Changes are appended, and merged when there are
many, or when the caller reads all rows. An update costs as much as its changes; reading everything
costs as much as the table. Looking up one row by key needs no merge.

Pure and not thread-safe; `live` guards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.client.errors import ProtocolViolation
from tidemill.types.columns import contiguous
from tidemill.types.hash import fold, hash_column
from tidemill.types.identity import comparable, leaders

# Changes that are not merged yet are at most half of the base, or too few to be worth a merge.
MERGE_ROWS = 1 << 16
MERGE_SHARE = 2

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows with their counts, or with changes of their counts."""

    rows: pa.Table
    counts: Counts

    def __add__(self, other: Counted) -> Counted:
        return Counted(pa.concat_tables([self.rows, other.rows]), np.concatenate([self.counts, other.counts]))

    def __neg__(self) -> Counted:
        return Counted(self.rows, -self.counts)

    def consolidated(self) -> Counted:
        """Each row once; rows with a count of zero are dropped."""
        if not len(self.counts):
            return self
        columns = [contiguous(column) for column in self.rows.columns]
        sums = np.zeros(len(self.counts), np.int64)
        np.add.at(sums, leaders(columns, len(self.counts)), self.counts)
        kept = np.flatnonzero(sums)
        return Counted(self.rows.take(pa.array(kept)), sums[kept])


@dataclass(frozen=True, slots=True)
class _Part:
    """Changes that are not merged yet, and the hashes of their keys once a key is looked up."""

    changes: Counted
    hashes: np.ndarray | None

    def __len__(self) -> int:
        return len(self.changes.counts)

    def __add__(self, later: _Part) -> _Part:
        hashes = None
        if self.hashes is not None and later.hashes is not None:
            hashes = np.concatenate([self.hashes, later.hashes])
        return _Part(self.changes + later.changes, hashes)


class RelationState:
    def __init__(self, empty: pa.Table, key: Sequence[int] = ()) -> None:
        """`empty` has the columns; `key` are the positions of the key columns for lookups."""
        self._key = tuple(key)
        self._base = Counted(empty, np.zeros(0, np.int64))
        # Later changes, oldest first. Each part is larger than the next, so there are few.
        self._recent: list[_Part] = []
        self._recent_rows = 0
        # The number of rows, including duplicates.
        self.size = 0
        # The sorted key hashes of the base, and their rows; None before the first lookup.
        self._index: tuple[np.ndarray, np.ndarray] | None = None

    def apply(self, changes: Counted) -> None:
        """Apply the changes of one time. Raises, perhaps later, if a row is removed that does not exist."""
        # After one lookup more will follow: with the hashes stored now, a lookup reads only them.
        part = _Part(changes, None if self._index is None else self._hashes(changes))
        while self._recent and len(self._recent[-1]) <= len(part):
            part = self._recent.pop() + part
        self._recent.append(part)
        self._recent_rows += len(changes.counts)
        self.size += int(changes.counts.sum())
        if self.size < 0:
            raise _never_there()
        if self._recent_rows > max(MERGE_ROWS, len(self._base.counts) // MERGE_SHARE):
            self._merge()

    def replace(self, rows: Counted) -> Counted:
        """Replace all rows by a new snapshot; return the difference from the previous rows."""
        before = self._all()
        self._base, self._index = rows.consolidated(), None
        self._recent, self._recent_rows = [], 0
        self.size = int(rows.counts.sum())
        return (self._base + -before).consolidated() if len(before.counts) else self._base

    def rows(self) -> pa.Table:
        """All rows, including duplicates."""
        base = self._all()
        if bool((base.counts == 1).all()):
            return base.rows
        return base.rows.take(pa.array(np.repeat(np.arange(len(base.counts)), base.counts)))

    def find(self, key: Sequence[pa.Array]) -> pa.Table:
        """The rows with this key: one array of length one for each key column."""
        wanted = fold([hash_column(comparable(value)) for value in key])[0]
        alike = self._in_base(wanted)
        for i, part in enumerate(self._recent):
            if part.hashes is None:
                part = self._recent[i] = _Part(part.changes, self._hashes(part.changes))
            places = np.flatnonzero(part.hashes == wanted)
            if len(places):
                alike = alike + _picked(part.changes, places)
        there = alike.consolidated()
        there = _picked(there, np.flatnonzero(there.counts > 0))
        # Another key may have the same hash: the first of key and rows that equals the key decides.
        columns = [
            pa.concat_arrays([value, contiguous(there.rows.column(i))])
            for value, i in zip(key, self._key, strict=True)
        ]
        same = np.flatnonzero(leaders(columns, len(there.counts) + 1)[1:] == 0)
        return there.rows.take(pa.array(np.repeat(same, there.counts[same])))

    def _in_base(self, wanted: np.uint64) -> Counted:
        if self._index is None:
            hashes = self._hashes(self._base)
            order = np.argsort(hashes, kind="stable")
            self._index = hashes[order], order
        hashes, order = self._index
        first, last = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
        return _picked(self._base, order[first:last])

    def _hashes(self, part: Counted) -> np.ndarray:
        return fold([hash_column(comparable(contiguous(part.rows.column(i)))) for i in self._key])

    def _all(self) -> Counted:
        if self._recent:
            self._merge()
        return self._base

    def _merge(self) -> None:
        parts = [self._base, *(part.changes for part in self._recent)]
        rows = pa.concat_tables([part.rows for part in parts])
        merged = Counted(rows, np.concatenate([part.counts for part in parts])).consolidated()
        if bool((merged.counts < 0).any()):
            raise _never_there()
        self._base, self._index = merged, None
        self._recent, self._recent_rows = [], 0


def _picked(part: Counted, places: np.ndarray) -> Counted:
    return Counted(part.rows.take(pa.array(places)), part.counts[places])


def _never_there() -> ProtocolViolation:
    return ProtocolViolation("a row goes that was not there")
