"""Detection of rows that a large collection may hold more than once, without holding or moving the rows.

Called where a large collection is sent with each row once and its count. Grouping all rows would cost more
than reading and sending them. Most collections hold every row once, and one number per row proves it. Threads
of the server read the parts with Arrow, one or a few columns of them: rows that differ in those columns
differ. Rows with the same number are few (real copies and a few false matches). The caller sums them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.query.insertions import Insertions
from tidemill.query.probe import Keys, row_keys
from tidemill.types.arrow import DIFF_COLUMN, shard_schema

if TYPE_CHECKING:
    from tidemill.persist.part import Part
    from tidemill.persist.snapshot import Snapshot

# Numbers that are held and sorted at once: 8 bytes each.
MAX_NUMBERED_ROWS = 24_000_000
# Columns that are tried before all of them.
_FEW = 3
# Rows that one thread takes at once, as in `retraction_matches`.
_PIECE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Repeats:
    """Every row that occurs more than once has one of `keys` (sorted) in these columns."""

    columns: list[str]
    keys: Keys

    def mask(self, rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """Which of the rows may be there more than once; None for none of them."""
        if not self.keys.size:
            return None
        found = row_keys(rows, self.columns)
        places = np.minimum(np.searchsorted(self.keys, found), self.keys.size - 1)
        mask = self.keys[places] == found
        return mask if bool(mask.any()) else None


def find_repeats(
    snapshot: Snapshot, columns: Sequence[str], *, threads: int, limit: int, check: Callable[[], None]
) -> Repeats | None:
    """None if more than `limit` rows may be repeated, or there are too many to number. `check` is called
    often, and may raise. Raises `DataCorrupted`."""
    if snapshot.rows > MAX_NUMBERED_ROWS:
        return None
    few = _telling(snapshot, columns)
    tries = [*_by_itself(snapshot, few), few, list(columns)]
    for n, some in enumerate(tries):
        if some in tries[:n]:
            continue
        keys = _Numbering(snapshot, some, check).all(threads)
        # Of sorted stretches: they are merged.
        keys.sort(kind="stable")
        again = keys[1:] == keys[:-1]
        repeated = np.unique(keys[1:][again])
        # Of n rows with one key n - 1 follow an equal one.
        if int(np.count_nonzero(again)) + repeated.size <= limit:
            return Repeats(some, repeated)
    return None


def _telling(snapshot: Snapshot, columns: Sequence[str]) -> list[str]:
    """The columns that most likely distinguish rows: wide numbers, then texts, then the others."""
    schema = shard_schema(snapshot.desc)

    def rank(name: str) -> int:
        t = schema.field(name).type
        if pa.types.is_string(t) or pa.types.is_binary(t):
            return 1
        return 0 if pa.types.is_primitive(t) and t.bit_width >= 64 else 2

    return sorted(columns, key=rank)[:_FEW]


def _by_itself(snapshot: Snapshot, columns: Sequence[str]) -> list[list[str]]:
    """The first column that is unique within a row group, if one exists. It is probably unique in all of
    them, and reading it alone costs less."""
    part = max(snapshot.parts, key=lambda part: part.rows)
    for _, table in snapshot.read_groups(part, columns):
        for name in columns:
            if np.unique(row_keys(table, [name])).size == table.num_rows:
                return [[name]]
        break
    return []


class _Numbering:
    """One pass over the parts."""

    def __init__(self, snapshot: Snapshot, columns: list[str], check: Callable[[], None]) -> None:
        self._snapshot = snapshot
        self._columns = columns
        self._check = check
        self._lock = threading.Lock()
        self._keys: Keys = np.empty(snapshot.rows, np.uint64)
        self._filled = 0
        # Keys of rows that one update adds several times.
        self._copies: list[Keys] = []
        self._over = threading.Event()

    def all(self, threads: int) -> Keys:
        pieces: list[tuple[Part, int, int]] = []
        for part in self._snapshot.parts:
            count = -(-part.rows // _PIECE_ROWS)
            pieces += [(part, i, count) for i in range(count)]
        with ThreadPoolExecutor(threads, thread_name_prefix="tidemill-repeats") as pool:
            try:
                list(pool.map(self._piece, pieces))
            finally:
                # The first failure ends the others soon.
                self._over.set()
        return np.concatenate([self._keys[: self._filled], *self._copies]) if self._copies else self._whole()

    def _whole(self) -> Keys:
        return self._keys[: self._filled]

    def _piece(self, piece: tuple[Part, int, int]) -> None:
        part, i, n = piece
        insertions = Insertions(part, self._snapshot.as_of)
        wanted = [*self._columns, *insertions.columns]
        for _, table in self._snapshot.read_groups(part, wanted, (i, n)):
            self._check()
            if self._over.is_set():
                return
            keys = row_keys(table, self._columns)
            live = insertions.mask(table)
            if insertions.copies:
                copied = table.column(DIFF_COLUMN).to_numpy() > 1
                several = keys[copied if live is None else live & copied]
            else:
                several = None
            if live is not None:
                keys = keys[live]
            keys.sort()
            with self._lock:
                at = self._filled
                self._filled += len(keys)
                if several is not None and several.size:
                    self._copies.append(several)
            self._keys[at : at + len(keys)] = keys
