"""The rows of a large relation, read by the server without Spark: Arrow reads some row groups ahead.

For callers that send a collection unchanged and unordered. Spark would read the same parts and pass every row
through a socket, with no benefit. The input is the result of `read.prepare`, so the rows are exactly those of
the relation that Spark would read. If Spark has to sum the updates, this module cannot be used
(`PreparedRelation.sum_all`). Promises: at most a few row groups are in memory, however large the relation and
however slow the reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.query.insertions import Insertions
from tidemill.query.row_filter import Hidden
from tidemill.query.session_slots import pieces
from tidemill.types.arrow import DIFF_COLUMN

if TYPE_CHECKING:
    from tidemill.persist.part import Part
    from tidemill.persist.snapshot import Snapshot
    from tidemill.query.relation import PreparedRelation

# Row groups (`part.ROW_GROUP_BYTES` each) that are read ahead, each by a separate thread: the consumer is
# busy encoding rows, and a store may have a high latency.
AHEAD = 2


class PartRows:
    """Iterates over batches of the relation's columns and `mz_diff`, which is positive; equal rows may
    repeat. Any thread may use it, one at a time; close it."""

    def __init__(self, prepared: PreparedRelation, check: Callable[[], None]) -> None:
        """`check` is called for each row group, and may raise. Reading raises `DataCorrupted`."""
        if prepared.sum_all or prepared.count is not None:
            raise Internal("a relation that only Spark can put together")
        self._columns = prepared.columns
        self._check = check
        self._held = self._driver_rows(prepared)
        self._snapshot = prepared.snapshot
        self._hidden = prepared.hidden or Hidden()
        self._todo = _groups(prepared.parts)
        self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="tidemill-part-rows")
        self._ahead: deque[Future[list[pa.RecordBatch]]] = deque()
        self._batches = self._all()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Waits for the row groups that are being read. Idempotent."""
        self._pool.shutdown(cancel_futures=True)
        self._ahead.clear()

    def _all(self) -> Iterator[pa.RecordBatch]:
        self._read_ahead()
        yield from self._held
        self._held = []
        while self._ahead:
            self._check()
            batches = self._ahead.popleft().result()
            self._read_ahead()
            # A returned batch is released before the next is requested.
            while batches:
                yield batches.pop(0)

    def _read_ahead(self) -> None:
        while len(self._ahead) < AHEAD and (group := next(self._todo, None)) is not None:
            self._ahead.append(self._pool.submit(self._read, *group))

    def _read(self, part: Part, i: int, n: int) -> list[pa.RecordBatch]:
        if self._snapshot is None:
            raise Internal("parts without a snapshot")
        return list(_read(self._snapshot, part, (i, n), self._columns, self._hidden))

    @staticmethod
    def _driver_rows(prepared: PreparedRelation) -> list[pa.RecordBatch]:
        """Those that were summed on the driver."""
        table = prepared.table
        if table is None:
            return []
        if not prepared.counted:
            table = _with_ones(table)
        return table.select([*prepared.columns, DIFF_COLUMN]).to_batches()


def _groups(parts: list[Part]) -> Iterator[tuple[Part, int, int]]:
    """The parts by about as much as makes a row group."""
    for part in parts:
        count = pieces(part.rows, part.weight)
        yield from ((part, i, count) for i in range(count))


def _read(
    snapshot: Snapshot, part: Part, piece: tuple[int, int], columns: list[str], hidden: Hidden
) -> Iterator[pa.RecordBatch]:
    wanted = Insertions(part, snapshot.as_of)
    gone = hidden.places.get(part.path)
    for first, table in snapshot.read_groups(part, [*columns, *wanted.columns], piece):
        live = wanted.mask(table)
        if gone is not None:
            here = gone[np.searchsorted(gone, first) : np.searchsorted(gone, first + table.num_rows)]
            if here.size:
                live = np.ones(table.num_rows, np.bool_) if live is None else live
                live[here - first] = False
        if live is not None:
            table = table.filter(pa.array(live))
        rows = table if wanted.copies else _with_ones(table.select(columns))
        yield from rows.select([*columns, DIFF_COLUMN]).combine_chunks().to_batches()


def _with_ones(table: pa.Table) -> pa.Table:
    return table.append_column(DIFF_COLUMN, pa.array(np.ones(table.num_rows, np.int64)))
