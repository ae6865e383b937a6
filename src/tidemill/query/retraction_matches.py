"""The search for the insertions that retractions may belong to, and their positions.

`read` calls `retraction_matches` when a large collection has retractions. Threads of the server read the
parts with Arrow, not with Spark. Reading three columns and applying the probe takes a third of the time of
Spark's own scan. Arrow gives the position of each row in its part for free, and the result is small. Each
thread holds only one row group at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.query.insertions import Insertions
from tidemill.query.probe import Places, Probe
from tidemill.types.arrow import DIFF_COLUMN, shard_schema

if TYPE_CHECKING:
    from tidemill.persist.part import Part
    from tidemill.persist.snapshot import Snapshot

# Rows that one thread reads at once: some row groups, so that opening the file costs little in comparison.
_PIECE_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundInsertions:
    """Insertions that may have been retracted, row by row."""

    # The requested columns, and `mz_diff` as the number of copies.
    rows: pa.Table
    # By a part's path, the places of these rows in it, in order. Parts without any are not there.
    places: Mapping[str, Places]


class _TooMany(Exception):
    pass


def find(
    snapshot: Snapshot,
    parts: Sequence[Part],
    probe: Probe,
    columns: Sequence[str],
    *,
    threads: int,
    limit: int,
    check: Callable[[], None],
) -> FoundInsertions | None:
    """The insertions at or before the snapshot's time to which the probe says yes; None when they are more
    than `limit` bytes. `check` is called often, and may raise. Raises `DataCorrupted`."""
    search = _Search(snapshot, probe, columns, limit, check)
    pieces: list[tuple[Part, int, int]] = []
    for part in parts:
        count = -(-part.rows // _PIECE_ROWS)
        pieces += [(part, i, count) for i in range(count)]
    with ThreadPoolExecutor(threads, thread_name_prefix="tidemill-find") as pool:
        try:
            results = list(pool.map(search.piece, pieces))
        except _TooMany:
            return None
        finally:
            # The first failure ends the others soon.
            search.over.set()
    places: dict[str, list[Places]] = {}
    tables = [search.schema.empty_table()]
    for (part, _, _), found in zip(pieces, results, strict=True):
        for where, rows in found:
            places.setdefault(part.path, []).append(where)
            tables.append(rows)
    return FoundInsertions(
        pa.concat_tables(tables), {path: np.concatenate(some) for path, some in places.items()}
    )


class _Search:
    """One search; `piece` runs in its threads."""

    def __init__(
        self, snapshot: Snapshot, probe: Probe, columns: Sequence[str], limit: int, check: Callable[[], None]
    ) -> None:
        self.snapshot = snapshot
        self.probe = probe
        self.columns = list(columns)
        whole = shard_schema(snapshot.desc)
        self.schema = pa.schema([whole.field(n).with_nullable(True) for n in (*columns, DIFF_COLUMN)])
        self.over = threading.Event()
        self.check = check
        self._lock = threading.Lock()
        self._left = limit  # bytes that may still be found

    def piece(self, piece: tuple[Part, int, int]) -> list[tuple[Places, pa.Table]]:
        part, i, n = piece
        insertions = Insertions(part, self.snapshot.as_of)
        wanted = [*self.columns, *insertions.columns]
        result: list[tuple[Places, pa.Table]] = []
        for first, table in self.snapshot.read_groups(part, wanted, (i, n)):
            self.check()
            if self.over.is_set():
                return result
            places = self.probe.places(table)
            if not places.size:
                continue
            rows = table.take(pa.array(places))
            live = insertions.mask(rows)
            if live is not None:
                places, rows = places[live], rows.filter(pa.array(live))
            if DIFF_COLUMN not in wanted:
                rows = rows.append_column(DIFF_COLUMN, pa.array(np.ones(len(places), np.int64)))
            self._count(rows.nbytes)
            result.append((places + first, rows.select(self.schema.names).cast(self.schema)))
        return result

    def _count(self, size: int) -> None:
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise _TooMany
