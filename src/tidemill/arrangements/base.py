"""The base of an arrangement: rows and their counts at one time, by the hash of their key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.arrangements.pieces import TimedPiece, add_piece

_NEVER = np.iinfo(np.int64).max


class Base:
    def __init__(self, pieces: list[TimedPiece] | None = None) -> None:
        self._pieces = pieces or []

    @property
    def rows(self) -> int:
        return sum(map(len, self._pieces))

    @property
    def bytes(self) -> int:
        return sum(piece.bytes for piece in self._pieces)

    def opened(self) -> Base:
        return Base(self._pieces)

    def find(self, hashes: np.ndarray) -> list[pa.Table]:
        return [piece.find(hashes, _NEVER) for piece in self._pieces]

    def add(self, rows: pa.Table, hashes: np.ndarray, upper: int) -> None:
        """Rows with their diffs, that complete the base at `upper`."""
        if len(hashes):
            order = np.argsort(hashes, kind="stable")
            times = np.zeros(len(hashes), dtype=np.int64)
            piece = TimedPiece(rows.take(pa.array(order)).combine_chunks(), hashes[order], times)
            self._pieces = add_piece(self._pieces, piece)
