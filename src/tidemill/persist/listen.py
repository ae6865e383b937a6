"""Listen: follows a shard and returns every update from a given time on, in time order. No Spark.

Created by `Shard.listen`. Used by subscriptions, by followers of the txns shard and by tests. Each batch ends
with the frontier. A listen wakes on commits of this process; call `Shard.refresh` to see the commits of
another. It holds since just before its frontier, so times that it has not returned yet are not merged with
earlier ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.persist.entry import CLOSED
from tidemill.persist.holds import Hold
from tidemill.persist.part import Part
from tidemill.types.arrow import TIME_COLUMN, shard_schema
from tidemill.types.identity import consolidate

if TYPE_CHECKING:
    from tidemill.persist.shard import Shard

# A listen that catches up takes history in batches of about this much Parquet; a batch is never less than one
# time, nor than the parts that overlap there.
LISTEN_BATCH_BYTES = 32 << 20


class Listen:
    """Iterate, or call `next` with a timeout. Not for several threads at once. Close it, or use it as a
    context manager."""

    def __init__(self, shard: Shard, from_: int, hold: Hold, batch_bytes: int = LISTEN_BATCH_BYTES) -> None:
        self._shard = shard
        self._hold = hold
        self.batch_bytes = batch_bytes
        # Everything before it was handed out; None once the shard is closed and all of it was.
        self.frontier: int | None = from_
        shard.recent.join(self)

    def next(self, timeout: float | None = None) -> tuple[pa.Table, int | None] | None:
        """The next updates (consolidated per time and row, sorted by time; possibly none) and the frontier
        after them, once the upper of the shard has passed ours. Returns None after `timeout` seconds (None:
        no limit), and at the end, when `frontier` is None."""
        if self.frontier is None:
            return None
        if self._hold.released:
            raise Internal("the listen is closed")
        found = self._wait(self.frontier, timeout)
        if found is None:
            return None
        parts, until, lower, desc = *found, self.frontier, self._shard.desc
        try:
            # Other listens get the same span, even if more updates have arrived since.
            table, upper = self._shard.recent.get(
                (lower, self.batch_bytes, desc), lambda: (self._read(parts, lower, until), until)
            )
        finally:
            self._hold.version = None
        self.frontier = upper
        if upper is None:
            self.close()
        else:
            self._hold.advance(max(self._hold.at, upper - 1))
        return table, upper

    def _wait(self, frontier: int, timeout: float | None) -> tuple[list[Part], int | None] | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        changed = self._shard.changed
        with changed:
            while True:
                state = self._shard.state
                if state.upper == CLOSED or state.upper > frontier:
                    parts = [part for part in state.parts.values() if part.max_time >= frontier]
                    upper = None if state.upper == CLOSED else state.upper
                    chosen, upper = self._cut(parts, frontier, upper)
                    # The files of this version stay until they were read.
                    self._hold.version = state.version
                    return chosen, upper
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                changed.wait(left)

    def _cut(self, parts: list[Part], frontier: int, upper: int | None) -> tuple[list[Part], int | None]:
        """As many times as fit into a batch: stops before the first part, by its earliest time, that would
        be too much."""
        parts.sort(key=lambda part: part.min_time)
        total = 0
        for index, part in enumerate(parts):
            total += part.bytes
            if total > self.batch_bytes and index and part.min_time > frontier:
                return parts[:index], part.min_time
        return parts, upper

    def _read(self, parts: list[Part], lower: int, upper: int | None) -> pa.Table:
        desc = self._shard.desc
        tables = self._shard.reader.read_all(parts, desc, None, (lower, upper))
        if not tables:
            return shard_schema(desc).empty_table()
        table = consolidate(pa.concat_tables(tables), desc)
        return table.sort_by(TIME_COLUMN)

    def close(self) -> None:
        """Idempotent."""
        self._hold.release()
        self._shard.recent.leave(self)

    def __iter__(self) -> Iterator[tuple[pa.Table, int | None]]:
        return self

    def __next__(self) -> tuple[pa.Table, int | None]:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> Listen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
