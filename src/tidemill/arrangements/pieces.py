"""Recent updates with their times, in memory, by the hash of their key.

Each call of `append` adds a piece. Pieces are merged when the newer has a sixth of the older one's size, so a
lookup visits about log n of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.runs.run import spread

# A piece is merged into the next older one when it has this fraction of its rows.
MERGE_SHARE = 6


class TimedPiece:
    """Updates in the order of their hashes; never changes. `rows`: columns and diff."""

    __slots__ = ("hashes", "rows", "times")

    def __init__(self, rows: pa.Table, hashes: np.ndarray, times: np.ndarray) -> None:
        self.rows = rows
        self.hashes = hashes
        self.times = times

    @staticmethod
    def of(rows: pa.Table, hashes: np.ndarray, times: np.ndarray) -> TimedPiece:
        """From updates in any order."""
        order = np.argsort(hashes, kind="stable")
        return TimedPiece(rows.take(pa.array(order)).combine_chunks(), hashes[order], times[order])

    @staticmethod
    def merged(pieces: Sequence[TimedPiece]) -> TimedPiece:
        hashes = np.concatenate([piece.hashes for piece in pieces])
        times = np.concatenate([piece.times for piece in pieces])
        order = np.argsort(hashes, kind="stable")
        rows = pa.concat_tables([piece.rows for piece in pieces]).take(pa.array(order))
        return TimedPiece(rows.combine_chunks(), hashes[order], times[order])

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def bytes(self) -> int:
        return self.rows.nbytes + self.hashes.nbytes + self.times.nbytes

    def find(self, wanted: np.ndarray, before: int) -> pa.Table:
        """The updates of the hashes (sorted, unique) before a time."""
        at = spread(self.hashes.searchsorted(wanted, "left"), self.hashes.searchsorted(wanted, "right"))
        return self.rows.take(pa.array(at[self.times[at] < before]))

    def count(self, wanted: np.ndarray) -> int:
        """The number of updates of the hashes at all times."""
        first, end = self.hashes.searchsorted(wanted, "left"), self.hashes.searchsorted(wanted, "right")
        return int((end - first).sum())

    def split(self, time: int) -> tuple[TimedPiece | None, TimedPiece | None]:
        """The updates before a time, and the others."""
        early = self.times < time
        if early.all():
            return self, None
        if not early.any():
            return None, self
        return self._where(early), self._where(~early)

    def _where(self, mask: np.ndarray) -> TimedPiece:
        return TimedPiece(self.rows.filter(pa.array(mask)), self.hashes[mask], self.times[mask])


def add_piece(pieces: list[TimedPiece], new: TimedPiece) -> list[TimedPiece]:
    """The pieces (newest first) with a new one."""
    count, total = 0, len(new)
    while count < len(pieces) and total * MERGE_SHARE >= len(pieces[count]):
        total += len(pieces[count])
        count += 1
    return [TimedPiece.merged([new, *pieces[:count]]) if count else new, *pieces[count:]]
