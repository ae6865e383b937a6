"""The contents of one arrangement: what all readers of it share.

Updates that every reader has passed are added up in the base (`base`). Later ones keep their times in memory
(`pieces`), because a reader may ask for the contents just before any of them. Thread-safe: pieces never
change, and the lock protects only which of them there are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.arrangements.base import Base
from tidemill.arrangements.pieces import TimedPiece, add_piece
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

# Updates that all readers have passed move to the base from this number on: with fewer, each tick would add a
# run of its own, which later merges rewrite.
FOLD_ROWS = 16 * 1024

# Memory of the updates that some reader has not passed, and others have: a reader that holds back more is cut
# off, and must open the arrangement again.
TAIL_BYTES = 256 << 20


class Contents:
    def __init__(self, schema: pa.Schema, base: Base, upper: int) -> None:
        """`schema`: the columns and the diff. `base` has the contents just before `upper`."""
        self.schema = schema
        self.upper = upper
        self._base = base
        # Newest first, all at or after `_folded`.
        self._pieces: list[TimedPiece] = []
        # The base has all updates before it, and no others.
        self._folded = upper
        # The time that each reader still needs; a cut-off reader is not here.
        self._readers: dict[int, int] = {}
        self._last_reader = 0
        self._lock = threading.Lock()

    @property
    def since(self) -> int:
        return self._folded

    @property
    def rows(self) -> int:
        """Rows that are kept: a row with a retraction that is not merged yet counts twice."""
        return self._base.rows + sum(map(len, self._pieces))

    @property
    def bytes(self) -> int:
        return self._base.bytes + sum(piece.bytes for piece in self._pieces)

    def join(self, at: int) -> int | None:
        """A new reader at `at`; None if the contents there are not known any more."""
        with self._lock:
            if at < self._folded:
                return None
            self._last_reader += 1
            self._readers[self._last_reader] = at
            return self._last_reader

    def leave(self, reader: int) -> int:
        """The number of readers that remain."""
        with self._lock:
            self._readers.pop(reader, None)
            return len(self._readers)

    def reads(self, reader: int) -> bool:
        """Whether the reader was not cut off."""
        return reader in self._readers

    def find(self, hashes: np.ndarray, before: int) -> pa.Table:
        with self._lock:
            base, pieces = self._base.opened(), self._pieces
        found = [*base.find(hashes), *(piece.find(hashes, before) for piece in pieces)]
        found = [table for table in found if table.num_rows]
        if not found:
            return self.schema.empty_table()
        return consolidate(pa.concat_tables(found), RelationDesc())

    def append(self, updates: pa.Table, hashes: np.ndarray, upper: int, reader: int) -> None:
        with self._lock:
            if upper <= self.upper:
                return
            times = contiguous(updates.column(TIME_COLUMN)).to_numpy()
            fresh = times >= self.upper
            if not fresh.all():
                # Another reader has brought a part of them.
                updates, hashes = updates.filter(pa.array(fresh)), hashes[fresh]
            if len(hashes):
                rows = updates.select([*self.schema.names[:-1], TIME_COLUMN, DIFF_COLUMN])
                self._pieces = add_piece(self._pieces, TimedPiece.of(rows, hashes))
            self.upper = upper
            self._cut_off(reader)

    def _cut_off(self, reader: int) -> None:
        own = self._readers.get(reader)
        if own is not None and sum(piece.bytes for piece in self._pieces) > TAIL_BYTES:
            for other in [n for n, since in self._readers.items() if since < own]:
                del self._readers[other]

    def compact(self, reader: int, to: int) -> None:
        with self._lock:
            if reader in self._readers:
                self._readers[reader] = to
            self._fold(min(self._readers.values(), default=self.upper))

    def _fold(self, to: int) -> None:
        parts = [piece.split(to) for piece in self._pieces]
        early = [piece for piece, _ in parts if piece is not None]
        if sum(map(len, early)) >= FOLD_ROWS or not self._pieces:
            if early:
                self._base.add(*_summed(early), to)
            self._pieces = [piece for _, piece in parts if piece is not None]
            self._folded = to


def _summed(pieces: Sequence[TimedPiece]) -> tuple[pa.Table, np.ndarray]:
    merged = pieces[0] if len(pieces) == 1 else TimedPiece.merged(pieces)
    rows = merged.rows.append_column("mz_key_hash", pa.array(merged.hashes))
    rows = consolidate(rows, RelationDesc())
    return rows.drop_columns(["mz_key_hash"]), contiguous(rows.column("mz_key_hash")).to_numpy()
