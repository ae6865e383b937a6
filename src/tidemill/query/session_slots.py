"""A pool of Spark sessions of one context, lent to queries while their names are resolved.

A query registers its inputs as temporary views under the names that its text uses, has the text analysed, and
drops the views. Two queries may use the same names, so each borrows a session exclusively for this. Sessions
share the context, its threads and its caches. A session is kept for the next query.

There are two kinds. `small` serves queries whose inputs together fit the driver (`read.Limits`): one
partition, no adaptive planning, no broadcast. A join with grouping and order is then a single stage of one
task (measured, warm: 43 ms, against 94 ms with a shuffle per step and 130 ms with adaptive planning). The
other kind serves all other queries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from tidemill.errors import Unavailable
from tidemill.persist.part import group_rows
from tidemill.query.result_size import Growth
from tidemill.sql.functions.python import register

# A lease lasts some tens of milliseconds (analysis only), so more would only be needed beyond a hundred
# queries a second.
MAX_SLOTS = 16
# Longer than any analysis of a statement within its size limit on a busy machine.
LEASE_TIMEOUT = 60.0

# Files of a shuffle grow with the square of it.
MAX_PARTITIONS = 1_000
# The minimum that one task reads: for less, it costs more than it reads. (Not more: a row group of similar
# rows is some hundred kilobytes, and several of them would be one task's result.)
MIN_SPLIT_BYTES = 64 << 10
_SHUFFLED = "spark.sql.shuffle.partitions"
_SPLIT = "spark.sql.files.maxPartitionBytes"
_JOINED = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
# Rows that some operators keep in the heap, however long they are, before they begin to put them aside.
_KEPT = tuple(
    f"spark.sql.{name}.buffer.in.memory.threshold"
    for name in ("cartesianProductExec", "windowExec", "sortMergeJoinExec")
)
# A result batch is limited only by its rows. If these may be long, use as many rows as a sixteenth of the
# heap holds with a megabyte each, because several copies of a batch exist while it is built.
GROWN_BATCH_ROWS = 1_024
WIDE_SHARE = 1 / 16
# Rows that are longer on average are wide.
WIDE_ROW_BYTES = 16 << 10

_SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


def pieces(rows: int, memory: int) -> int:
    """Into how many partitions rows that take so much memory are cut."""
    return max(1, -(-rows // group_rows(rows, memory)))


class SessionSlot:
    """One session. `jsession` is its JVM side, which the hot path of small queries speaks to directly."""

    def __init__(self, session: Any, *, small: bool) -> None:
        self.session = session
        self.small = small
        self.jsession = session._jsparkSession
        self.jvm = session._jvm
        # Settings of a session that were changed for the current query, and their previous values.
        self._usual: dict[str, str] = {}
        # The number of partitions of the query's inputs.
        self._pieces = 0
        self.growth = Growth.NONE

    def grow(self, growth: Growth, row_bytes: int, heap_bytes: int) -> None:
        """Set how the query's result grows from its inputs, whose rows have `row_bytes` on average."""
        self.growth = growth
        if growth is Growth.NONE:
            return
        wide = growth is Growth.WIDTH or row_bytes > WIDE_ROW_BYTES
        few = max(16, int(heap_bytes * WIDE_SHARE) >> 20)
        self._bound(_BATCH, min, few if wide else GROWN_BATCH_ROWS)
        for key in _KEPT if wide else ():
            self._bound(key, min, few)

    def expect(self, rows: int, memory: int, size: int) -> None:
        """The query reads this many more rows, which take this much memory, from this many bytes of Parquet.
        Partitions are made as large as row groups, so that one of a result is one task's result. Bytes of
        Parquet or of a shuffle are no measure: similar rows take fifty times the space in memory."""
        self._pieces += pieces(rows, memory)
        self._bound(_SHUFFLED, max, min(MAX_PARTITIONS, self._pieces))
        split = max(MIN_SPLIT_BYTES, size // pieces(rows, memory))
        self._bound(_SPLIT, min, split)
        self._bound(_JOINED, min, split)

    def _bound(self, key: str, choose: Callable[[int, int], int], value: int) -> None:
        now = self.jsession.conf().get(key)
        # Sizes may have been given in words; those are left alone.
        if now.isdigit() and choose(int(now), value) != int(now):
            self._usual.setdefault(key, now)
            self.jsession.conf().set(key, str(value))

    def settle(self) -> None:
        """For the next query."""
        for key, value in self._usual.items():
            self.jsession.conf().set(key, value)
        self._usual.clear()
        self._pieces = 0
        self.growth = Growth.NONE


class Slots:
    """All sessions beside the first, of one JVM."""

    def __init__(self, base: Any) -> None:
        self._base = base
        # Guards the fields below; notified when a slot is returned.
        self._freed = threading.Condition()
        self._free: dict[bool, list[SessionSlot]] = {True: [], False: []}
        self._made = {True: 0, False: 0}

    @property
    def leased(self) -> int:
        """How many queries have a session now."""
        with self._freed:
            return sum(self._made.values()) - sum(map(len, self._free.values()))

    @property
    def finished(self) -> bool:
        """Whether a query has given its session back."""
        with self._freed:
            return any(self._free.values())

    @contextmanager
    def lease(self, *, small: bool) -> Generator[SessionSlot]:
        slot = self._take(small)
        try:
            yield slot
        finally:
            slot.settle()
            with self._freed:
                self._free[small].append(slot)
                self._freed.notify()

    def _take(self, small: bool) -> SessionSlot:
        with self._freed:
            if not self._free[small] and self._made[small] >= MAX_SLOTS:
                self._freed.wait_for(lambda: self._free[small], LEASE_TIMEOUT)
                if not self._free[small]:
                    raise Unavailable(
                        "too many queries are being planned at once", hint="run the statement again"
                    )
            if self._free[small]:
                return self._free[small].pop()
            self._made[small] += 1
        try:
            return self._make(small)
        except BaseException:
            with self._freed:
                self._made[small] -= 1
            raise

    def _make(self, small: bool) -> SessionSlot:
        session = self._base.newSession()
        for key, value in _SMALL.items() if small else ():
            session.conf.set(key, value)
        # Functions that bound queries call by name; each new session must register them.
        register(session)
        return SessionSlot(session, small=small)
