"""The errors that a relation has now: their number, and the first of them.

Called by the system relations about sources. Errors are rows of the relation's shard, and each part records
its number of errors. The check therefore costs nothing for a relation without errors. For others, only the
parts with errors are read, and only after they changed. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Container
from dataclasses import dataclass

import pyarrow as pa

from tidemill.persist.shard import Shard
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, HIDDEN_ROW, TIME_COLUMN, error_parts
from tidemill.types.kernels import pc

# The number of listed errors of a relation, the earliest ones. More add no information, and each may have a
# kilobyte.
MAX_LISTED = 1000
# Rows of the parts with errors that are read: three narrow columns, a second or two. Beyond this, the count
# covers only the parts that were read.
MAX_SCANNED_ROWS = 16_000_000


@dataclass(frozen=True, slots=True)
class LiveError:
    """`time` is when the error became visible, or a later time after a compaction. `detail` names its
    record."""

    text: str
    detail: str | None
    time: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class LiveErrors:
    """`first` are the earliest errors, at most `MAX_LISTED`. If not `complete`, there may be more than
    `count`."""

    count: int
    first: tuple[LiveError, ...]
    complete: bool = True


NO_ERRORS = LiveErrors(0, ())


class ErrorFinder:
    """Caches the errors of each shard while its parts with errors do not change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, tuple[tuple[str, ...], LiveErrors]] = {}

    def find(self, shard: Shard, complete: int) -> LiveErrors:
        """The errors of a relation that is complete before `complete`."""
        if not any(part.errors for part in shard.parts):
            return NO_ERRORS
        with shard.snapshot(complete - 1, readable=complete) as snapshot:
            parts = [part for part in snapshot.parts if part.errors]
            key = tuple(part.path for part in parts)
            with self._lock:
                known = self._found.get(shard.id)
            if known is not None and known[0] == key:
                return known[1]
            tables: list[pa.Table] = []
            scanned = 0
            for part in parts:
                if scanned and scanned + part.rows > MAX_SCANNED_ROWS:
                    break
                scanned += part.rows
                table = snapshot.read_part(part, [])
                said = pc.fill_null(pc.not_equal(table.column(ERROR_COLUMN), HIDDEN_ROW), False)
                tables.append(table.filter(said))
            found = (
                _summed(pa.concat_tables(tables), complete=len(tables) == len(parts)) if tables else NO_ERRORS
            )
        with self._lock:
            self._found[shard.id] = (key, found)
        return found

    def keep(self, shards: Container[str]) -> None:
        """Forget all other shards."""
        with self._lock:
            self._found = {shard: found for shard, found in self._found.items() if shard in shards}


def _summed(table: pa.Table, *, complete: bool) -> LiveErrors:
    # When the error appeared: if it disappears and reappears, the first time is reported.
    added = table.group_by(ERROR_COLUMN).aggregate([(DIFF_COLUMN, "sum"), (TIME_COLUMN, "min")])
    live = added.filter(pc.greater(added.column(f"{DIFF_COLUMN}_sum"), 0))
    if not live.num_rows:
        return LiveErrors(0, (), complete)
    live = live.sort_by([(f"{TIME_COLUMN}_min", "ascending"), (ERROR_COLUMN, "ascending")])
    listed = live.slice(0, MAX_LISTED)
    first = [
        LiveError(*error_parts(text), time, count)
        for text, time, count in zip(
            listed.column(ERROR_COLUMN).to_pylist(),
            listed.column(f"{TIME_COLUMN}_min").to_pylist(),
            listed.column(f"{DIFF_COLUMN}_sum").to_pylist(),
            strict=True,
        )
    ]
    total = int(pc.sum(live.column(f"{DIFF_COLUMN}_sum")).as_py())
    return LiveErrors(total, tuple(first), complete)
