"""The contents of one arrangement: what all readers of it share.

Updates that every reader has passed are added up in the base (`base`), which a later process can use. Later
ones keep their times in memory (`pieces`), because a reader may ask for the contents just before any of them.
The history of the collection is held just before the time of the base on disk, so that a later process can
bring it up to date. Thread-safe: pieces and runs never change, and the lock protects which of them there are.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.arrangements.base import Base, find_in
from tidemill.arrangements.pieces import TimedPiece, add_piece
from tidemill.errors import Unavailable
from tidemill.persist.holds import Hold
from tidemill.runs.run import HashRun
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

log = logging.getLogger(__name__)

# Updates that all readers have passed move to the base from this number on: with fewer, each tick would write
# files, and later merges rewrite many small runs.
FOLD_ROWS = 16 * 1024

# Memory of the updates that are not in the base: that some reader has not passed, or that the disk refuses. A
# reader that holds back more is cut off, and must open the arrangement again.
TAIL_BYTES = 256 << 20

# Lookups of this many rows release the pages of the files at once, others within REST_SECONDS (`store`).
REST_ROWS = 256 * 1024


class DiskFull(Unavailable):
    """The rows do not fit where arrangements are kept."""

    def __init__(self, folder: str, error: OSError) -> None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        super().__init__(
            "an arrangement cannot be written",
            detail=f"{folder}: {error.strerror or error}",
            hint="Make room there, or give another folder with --scratch-dir.",
            sqlstate="53100" if full else None,
        )


class Contents:
    def __init__(self, base: Base, upper: int, holds: Sequence[Hold], *, alone: bool = True) -> None:
        """`base` has the contents just before `upper`. `holds` are on the collections that the rows come
        from, just before the time of the base on disk; they move with it. Unless it is `alone`, someone calls
        `fold` for it and others at one time."""
        self.schema = base.schema
        self.alone = alone
        self.upper = upper
        self.folder = base.folder
        # The ids of the shards that the rows come from.
        self.inputs: list[str] = base.about["inputs"]
        self._base = base
        self._holds = holds
        # Newest first: all updates that are not in the base, each after those that are.
        self._pieces: list[TimedPiece] = []
        # What was needed when someone last asked; by now its readers have done with what is before it.
        self.passed = upper
        # The time that each reader still needs; a reader that was cut off is not here.
        self._readers: dict[int, int] = {}
        # Who they are.
        self.names: dict[int, str] = {}
        self._last_reader = 0
        # Why the last updates did not get into the base.
        self._refused: OSError | None = None
        # Runs that the background should merge.
        self._unmerged: tuple[HashRun, ...] = ()
        self._lock = threading.Lock()

    @property
    def since(self) -> int:
        """Before it no reader can begin."""
        return self._base.since

    @property
    def kept(self) -> int | None:
        """The time of the contents on disk."""
        return self._base.kept

    @property
    def rows(self) -> int:
        """Rows that are kept: a row with a retraction that is not merged yet counts twice."""
        return self._base.rows + sum(map(len, self._pieces))

    @property
    def bytes(self) -> int:
        return self._base.bytes + sum(piece.bytes for piece in self._pieces)

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def to_merge(self) -> bool:
        """Whether the background has something to do."""
        return bool(self._unmerged)

    @property
    def about(self) -> dict[str, Any]:
        return self._base.about

    def join(self, at: int, name: str) -> int | None:
        """A new reader at `at`; None if the contents there are not known any more."""
        with self._lock:
            if at < self.since:
                return None
            self._last_reader += 1
            self._readers[self._last_reader] = at
            self.names[self._last_reader] = name
            return self._last_reader

    def leave(self, reader: int) -> None:
        with self._lock:
            self._readers.pop(reader, None)
            self.names.pop(reader, None)

    def reads(self, reader: int) -> bool:
        """Whether the reader was not cut off."""
        return reader in self._readers

    def find(self, hashes: np.ndarray, before: int) -> pa.Table:
        """The base, and the updates before a time, of the hashes (sorted, unique)."""
        with self._lock:
            runs, pieces = self._base.runs, self._pieces
        found = find_in(runs, hashes, self.schema)
        if sum(table.num_rows for table in found) >= REST_ROWS:
            _rest(runs)
        found += [rows for piece in pieces if (rows := piece.find(hashes, before)).num_rows]
        if not found:
            return self.schema.empty_table()
        return consolidate(pa.concat_tables(found), RelationDesc())

    def count(self, hashes: np.ndarray) -> int:
        with self._lock:
            runs, pieces = self._base.runs, self._pieces
        return sum(run.count(hashes) for run in runs) + sum(piece.count(hashes) for piece in pieces)

    def append(self, updates: pa.Table, hashes: np.ndarray, upper: int, reader: int | None = None) -> None:
        """All changes from `self.upper` (or an earlier time) to `upper`. Raises DiskFull."""
        with self._lock:
            if upper <= self.upper:
                return
            times = contiguous(updates.column(TIME_COLUMN)).to_numpy()
            fresh = times >= self.upper
            if not fresh.all():
                # Another reader has brought a part of them.
                updates, hashes = updates.filter(pa.array(fresh)), hashes[fresh]
            if len(hashes):
                rows = pa.table([updates.column(name) for name in self.schema.names], schema=self.schema)
                self._pieces = add_piece(self._pieces, TimedPiece.of(rows, hashes, times[fresh]))
            self.upper = upper
            self._limit(reader)

    def pass_time(self, upper: int) -> None:
        """Nothing changed before `upper`."""
        with self._lock:
            self.upper = max(self.upper, upper)

    def rewind(
        self, at: int, updates: pa.Table, hashes: np.ndarray, since: int, holds: Sequence[Hold]
    ) -> bool:
        """Make the contents from `at` on known again: `updates` are all of [at, since), where `since` is
        where they are known from. `holds` replace the present ones. False if that has changed meanwhile, or
        the disk refuses; then the holds are released."""
        with self._lock:
            if since != self.since or at >= since:
                release(holds)
                return False
            rows = pa.table([updates.column(name) for name in self.schema.names], schema=self.schema)
            less = pa.array(-contiguous(rows.column(DIFF_COLUMN)).to_numpy())
            less = rows.set_column(rows.num_columns - 1, self.schema.field(DIFF_COLUMN), less)
            try:
                self._unmerged = self._base.add(less, hashes, at, at)
            except OSError as error:
                log.warning("an arrangement in %s does not go back: %s", self.folder, error)
                release(holds)
                return False
            release(self._holds)
            self._holds = holds
            if len(hashes):
                times = contiguous(updates.column(TIME_COLUMN)).to_numpy()
                self._pieces = add_piece(self._pieces, TimedPiece.of(rows, hashes, times))
            return True

    def _limit(self, reader: int | None) -> None:
        if sum(piece.bytes for piece in self._pieces) <= TAIL_BYTES:
            return
        if self._refused is not None:
            raise DiskFull(self.folder, self._refused)
        own = self._readers.get(reader or 0)
        if own is not None:
            for other in [n for n, since in self._readers.items() if since < own]:
                del self._readers[other]

    def compact(self, reader: int, to: int) -> None:
        """The reader needs no time before `to`."""
        with self._lock:
            if reader in self._readers:
                self._readers[reader] = to
            if self.alone or sum(piece.bytes for piece in self._pieces) > TAIL_BYTES // 2:
                self._fold(FOLD_ROWS, self._needed())

    @property
    def unfolded(self) -> int:
        """How many updates are not in the base."""
        return sum(map(len, self._pieces))

    def _needed(self) -> int:
        return min(self._readers.values(), default=self.upper)

    @property
    def needed(self) -> int:
        """The earliest time that is still needed."""
        with self._lock:
            return self._needed()

    def keep(self) -> None:
        """Bring what is on disk to the earliest time that is still needed."""
        self.fold(self.needed)

    def fold(self, to: int) -> None:
        """Bring what is on disk to a time that no reader is before."""
        with self._lock:
            if to >= self.since:
                self._fold(0, min(to, self._needed()))

    def look(self) -> None:
        """Remember what is needed now."""
        self.passed = self.needed

    def _fold(self, least: int, to: int) -> None:
        """Move the updates before `to` to the base, from `least` on."""
        parts = [piece.split(to) for piece in self._pieces]
        early = [piece for piece, _ in parts if piece is not None]
        count = sum(map(len, early))
        if count < least or (not count and self._base.kept == to):
            return
        one = TimedPiece.merged(early) if early else None
        rows = self.schema.empty_table() if one is None else one.rows
        hashes = np.zeros(0, np.uint64) if one is None else one.hashes
        since = self._base.since if one is None else int(one.times.max()) + 1
        try:
            self._unmerged = self._base.add(rows, hashes, since, to)
        except OSError as error:
            log.warning("an arrangement in %s does not advance on disk: %s", self.folder, error)
            self._refused = error
            return
        self._refused = None
        self._pieces = [piece for _, piece in parts if piece is not None]
        for hold in self._holds:
            hold.advance(max(hold.at, to - 1))

    def merge(self) -> None:
        """Merge large runs, for the background: lookups and changes go on meanwhile."""
        with self._lock:
            runs, self._unmerged = self._unmerged, ()
        if not runs:
            return
        try:
            new = self._base.merge(runs)
            with self._lock:
                self._base.replace(runs, new)
        except OSError as error:
            log.warning("runs of an arrangement in %s were not merged: %s", self.folder, error)

    def rest(self) -> None:
        """Release the pages of the files, which stay in the system's cache."""
        _rest(self._base.runs)

    def close(self) -> None:
        """Release the history of the collection."""
        release(self._holds)


def release(holds: Iterable[Hold]) -> None:
    for hold in holds:
        hold.release()


def _rest(runs: Sequence[HashRun]) -> None:
    for run in runs:
        run.rest()
