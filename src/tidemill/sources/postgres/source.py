"""PostgreSQL source: logical replication with nothing in between.

Created by `sources.definition` from the catalog's definition, with the resolved connection. The gauge is the
position in the write-ahead log (LSN). The range [a, b) has the transactions with a < end LSN <= b, and the
rows that the tables had when the slot was made are a transaction at the slot's first position, `lsn`.

One process holds the one connection to the slot: the server, in `receiver`. What arrives is spooled, and
tasks read ranges from there; the spool is filled again from the slot after a crash. The slot moves only to
what is durable in all shards (`durable`), so every range that may be read again can be received again. The
snapshot cannot: after a crash before it is complete, a later snapshot is read with the changes since taken
back (`reader`). Tables that are added later begin in the same way.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg

from tidemill.sources.contract import (
    Lag,
    ReadLimits,
    SnapshotProgress,
    SourcePiece,
    SourceReader,
    UpstreamError,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets
from tidemill.sources.postgres import failures
from tidemill.sources.postgres.connect import connect, upstream_error
from tidemill.sources.postgres.definition import GAUGE, MARKS, read_definition
from tidemill.sources.postgres.exporter import SnapshotExport
from tidemill.sources.postgres.lsn import lsn_text
from tidemill.sources.postgres.reader import PostgresReader, ReadSnapshot, SpooledPiece
from tidemill.sources.postgres.receiver import Receiver, ReceiverSettings
from tidemill.sources.postgres.replication import ReplicationConnection
from tidemill.sources.postgres.snapshot import plan_snapshot
from tidemill.sources.postgres.snapshot_progress import progress
from tidemill.sources.postgres.spool import Spool
from tidemill.sources.postgres.table_marks import MarksSpec
from tidemill.sources.postgres.table_watch import TableWatch

log = logging.getLogger(__name__)

# How long a call waits for the upstream; then the ticker asks again.
LOOK_SECONDS = 3.0
# The same for a snapshot that is about to be read, in a job of its own.
SNAPSHOT_SECONDS = 10.0
# Received transactions are bound at once. A position without any is bound this often: it costs a job, and
# only moves the slot.
QUIET_SECONDS = 10.0
# Bytes of log that a changed row takes, about: an UPDATE of a small row with its transaction.
LOG_BYTES = 128
# The messages of a task: tenths of a second.
TASK_MESSAGES = 50_000
# How long it is waited for that nobody reads from a slot that is to be dropped.
DROP_SECONDS = 5.0
# A snapshot in so many pieces at most; each is read on a connection of its own.
SNAPSHOT_PIECES = 1024
# The least bytes per second of a snapshot, for the deadline of its job.
LEAST_SNAPSHOT_RATE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A snapshot for the range [0, upper) of some outputs."""

    export: SnapshotExport
    upper: int
    outputs: frozenset[int]
    snapshot: ReadSnapshot


class PostgresSource(UpstreamSource):
    """Raises KeyError, TypeError or ValueError for an invalid definition."""

    gauge = GAUGE
    counts = "bytes of its log"
    offsets_per_record = LOG_BYTES

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self._definition = read = read_definition(definition)
        self._lsn, self._timeline = read.lsn, read.timeline
        self.outputs = tuple(table.output for table in read.tables)
        self._every = frozenset(range(len(self.outputs)))
        self._bound = 0
        self._durable = 0
        self._spool: Spool | None = None
        self._receiver: Receiver | None = None
        self._export: SnapshotExport | None = None
        self._prepared: _Prepared | None = None
        # What was learned about the tables, as it was told last.
        self._marks: Mapping[str, MarksSpec] = {}
        # A statement waits until this is bound.
        self._wanted = 0
        # How the last snapshot ended.
        self._figure: SnapshotProgress | None = None
        # The last frontier, and when it was taken.
        self._told = 0
        self._told_at = 0.0

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:
        self._bound = bound[None]

    # -- where the upstream stands

    def frontier(self, now: int) -> Offsets:
        receiver = self._opened()
        received = receiver.frontier(LOOK_SECONDS)
        if receiver.marks != self._marks:
            self._marks = receiver.marks
            self.learned = {**(self.learned or {}), MARKS: {**self._definition.marks, **self._marks}}
        assert self._lsn is not None and self._spool is not None
        moment = time.monotonic()
        floor = max(self._told, self._bound, self._lsn)
        # Nothing but time has passed in between.
        quiet = not len(self._spool.blocks(floor, received))
        asked = floor < self._wanted <= received
        if not quiet or asked or moment - self._told_at >= QUIET_SECONDS or floor != self._told:
            self._told, self._told_at = max(floor, received), moment
        return Offsets.at(self._told)

    def _opened(self) -> Receiver:
        """The receiver; begins with the slot itself if there is none yet."""
        if self._receiver is not None:
            return self._receiver
        if self._lsn is None or self._timeline is None:
            self._begin()
        assert self._lsn is not None and self._timeline is not None
        definition = self._definition
        self._spool = self._spool or Spool()
        settings = ReceiverSettings(
            definition.connection,
            definition.slot,
            definition.publication,
            definition.tables,
            definition.system,
            self._timeline,
            max(self._bound, self._lsn),
        )
        self._receiver = Receiver(settings, self._spool)
        self._receiver.durable(self._durable)
        self._receiver.start()
        return self._receiver

    def _begin(self) -> None:
        """Make the slot. Its first position is learned for good, before anything is bound."""
        definition = self._definition
        if self._export is None or not self._export.usable:
            self._close_export()
            self._export = SnapshotExport(definition.connection, definition.slot)
        identity, slot = self._export.wait(LOOK_SECONDS)
        if identity.system != definition.system:
            raise failures.other_system(definition.system, identity.system)
        self._lsn, self._timeline = slot.lsn, identity.timeline
        self.learned = {"lsn": slot.lsn, "timeline": identity.timeline}

    def wanted(self, frontier: Offsets) -> None:
        self._wanted = max(self._wanted, frontier[None])

    def durable(self, frontier: Offsets) -> None:
        self._durable = max(self._durable, frontier[None])
        if self._receiver is not None:
            self._receiver.durable(self._durable)
        if self._export is not None and self._lsn is not None and self._durable >= self._lsn:
            # It keeps old rows of the whole database from being vacuumed.
            self._close_export()

    # -- dividing

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """The snapshot alone, then whole blocks of transactions."""
        a, b = lower[None], upper[None]
        first = self._lsn or 0
        if a < first:
            return Offsets.at(min(first, b))
        blocks = self._blocks(a, b)
        counted = np.cumsum(blocks["messages"])
        over = np.flatnonzero(counted > limits.records // LOG_BYTES)
        if not len(over):
            return upper
        # The last block that is within the limit, but one at least; all of its transaction.
        last = max(int(over[0]) - 1, 0)
        return Offsets.at(min(int(blocks["high"][last]), b))

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        a, b = lower[None], upper[None]
        base = self._lsn or 0
        if a >= b:
            return []
        if a >= base:
            return self._stream_pieces(a, b, ways)
        edges = {a, min(b, base), b}
        if self._prepared is not None:
            base, count = self._prepared.upper, self._prepared.snapshot.plan.count
            edges = {a, min(b, base), b, *range(a + 1, min(count, b))}
        return _between(_thinned(sorted(edges), 2 * ways))

    def _stream_pieces(self, a: int, b: int, ways: int) -> list[SourcePiece]:
        """Shares of about equal numbers of messages. A share is named by a part of the range, in order."""
        blocks = self._blocks(a, b)
        messages = int(blocks["messages"].sum())
        count = min(ways, -(-messages // TASK_MESSAGES), b - a)
        if count < 2:
            return [SourcePiece(None, a, b)]
        ends = np.cumsum(blocks["messages"])
        firsts = [int(blocks["number"][0])]
        for n in range(1, count):
            wanted = messages * n // count
            block = int(np.searchsorted(ends, wanted, "right"))
            before = int(ends[block - 1]) if block else 0
            firsts.append(int(blocks["number"][block]) + wanted - before)
        firsts.append(int(blocks["number"][-1]) + int(blocks["messages"][-1]))
        edges = [a + (b - a) * n // count for n in range(count + 1)]
        return [
            SpooledPiece(None, edges[n], edges[n + 1], (a, b), firsts[n], firsts[n + 1]) for n in range(count)
        ]

    def _blocks(self, a: int, b: int) -> np.ndarray:
        spool = self._spool or Spool()
        self._spool = spool
        return spool.blocks(a, b)

    # -- reading

    def reader(self) -> SourceReader:
        receiver = self._opened()
        assert self._lsn is not None
        return self._reader(receiver, self._every, self._lsn, self._prepared)

    def _reader(
        self, receiver: Receiver, outputs: frozenset[int], base: int, prepared: _Prepared | None
    ) -> PostgresReader:
        definition = self._definition
        snapshot = prepared.snapshot if prepared is not None and prepared.upper == base else None
        return PostgresReader(
            definition.connection,
            definition.tables,
            outputs,
            str(receiver.spool.folder),
            base,
            snapshot,
        )

    def plan(
        self, lower: Offsets, upper: Offsets, ways: int, outputs: frozenset[int]
    ) -> tuple[SourceReader, list[SourcePiece]]:
        receiver = self._opened()
        assert self._lsn is not None
        a, b = lower[None], upper[None]
        if a < self._lsn:
            prepared = self._prepare(receiver, b, outputs)
            edges = [a, *range(a + 1, min(prepared.snapshot.plan.count, b)), b]
            return self._reader(receiver, outputs, b, prepared), _between(_thinned(edges, SNAPSHOT_PIECES))
        if not receiver.wait_for(b, LOOK_SECONDS / 10):
            raise failures.NotYet(
                "transactions are received again from PostgreSQL",
                detail=f"Those up to {lsn_text(b)} were bound before this server started; "
                f"{lsn_text(receiver.spool.frontier)} is reached.",
            )
        return self._reader(receiver, outputs, self._lsn, None), self.split(lower, upper, ways)

    def _prepare(self, receiver: Receiver, upper: int, outputs: frozenset[int]) -> _Prepared:
        """A snapshot from which the rows at `upper` can be had: the one of the slot if it still is there,
        else a new one."""
        export = self._export
        if export is None or not export.usable:
            self._close_export()
            export = self._export = SnapshotExport(self._definition.connection, None)
        export.wait(SNAPSHOT_SECONDS)
        if export.lsn < upper:
            self._close_export()
            raise failures.NotYet("a later snapshot is needed", detail=f"It must be at {lsn_text(upper)}.")
        receiver.require(export.lsn)
        faults = self._faults(outputs)
        prepared = self._prepared
        same = (
            prepared is not None
            and prepared.export is export
            and (prepared.upper, prepared.outputs) == (upper, outputs)
            and prepared.snapshot.faults.keys() == faults.keys()
        )
        session = connect(self._definition.connection)
        try:
            if same and prepared is not None:
                plan = prepared.snapshot.plan
            else:
                tables = [
                    (n, table)
                    for n, table in enumerate(self._definition.tables)
                    if n in outputs and n not in faults
                ]
                plan = plan_snapshot(session, export.snapshot, tables)
            if not plan.whole(session):
                self._close_export()
                raise failures.NotYet("a later snapshot is needed", detail="A table was rewritten since.")
        except psycopg.Error as e:
            raise upstream_error(e, self._definition.connection) from None
        finally:
            session.close()
        self._prepared = _Prepared(export, upper, outputs, ReadSnapshot(plan, export.lsn, faults))
        return self._prepared

    def _faults(self, outputs: frozenset[int]) -> dict[int, str]:
        """The tables that are no longer as they were described, and why."""
        definition = self._definition
        watch = TableWatch(definition.connection, definition.publication, definition.slot, definition.tables)
        try:
            return {n: text for n, text in watch.faults().items() if n in outputs}
        finally:
            watch.close()

    def reading_seconds(self, lower: Offsets, upper: Offsets, usual: float) -> float:
        if lower[None] < (self._lsn or 0) and self._prepared is not None:
            return max(usual, self._prepared.snapshot.plan.bytes / LEAST_SNAPSHOT_RATE)
        size = int(self._blocks(lower[None], upper[None])["size"].sum())
        return max(usual, size / LEAST_SNAPSHOT_RATE)

    # -- how it goes

    def snapshot_progress(self) -> SnapshotProgress | None:
        prepared, spool = self._prepared, self._spool
        if prepared is None or spool is None:
            return self._figure
        return progress(str(spool.folder), prepared.snapshot.plan)

    def lag(self, ingested: Offsets) -> Lag | None:
        receiver = self._receiver
        if receiver is None or not receiver.server_position:
            return Lag(None, None)
        at = max(ingested[None], 0)
        seconds = receiver.clock.seconds_since(at, time.monotonic())
        return Lag(max(0, receiver.server_position - at), seconds)

    # -- the end

    def dropped(self) -> None:
        """The slot would keep the upstream's log for ever."""
        self.close()
        definition = self._definition
        try:
            connection = ReplicationConnection(definition.connection)
            try:
                connection.drop_slot(definition.slot, DROP_SECONDS)
            finally:
                connection.close()
        except UpstreamError as e:
            if e.sqlstate != "42704":
                raise failures.slot_stays(definition.slot, e) from None

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._close_export()
        if self._spool is not None:
            self._spool.close()
        self._receiver = self._spool = None

    def _close_export(self) -> None:
        self._figure = self.snapshot_progress()
        if self._export is not None:
            self._export.close()
        self._export = self._prepared = None


def _thinned(edges: list[int], most: int) -> list[int]:
    """At most `most` intervals, with the same ends."""
    count = len(edges) - 1
    if count <= most:
        return edges
    return [edges[count * n // most] for n in range(most + 1)]


def _between(edges: list[int]) -> list[SourcePiece]:
    return [SourcePiece(None, x, y) for x, y in itertools.pairwise(edges)]
