"""The work of a task for a unit: read its pieces, make updates, write parts.

Runs inside Spark's Python workers, and in this process for tests without Spark. An error that belongs to one
source is never raised here: it is recorded in the `UnitFacts`. Written parts are invisible until the driver
appends them, so a task may be killed, retried or run twice at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.errors import TidemillError
from tidemill.ingest.changes import PieceChanges, piece_id
from tidemill.ingest.unit import Unit, UnitFacts, UnitFailure, UnitTarget
from tidemill.persist.part import write_part
from tidemill.sources.contract import SourceBatch, SourcePiece
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.names import physical_names

FP_READ = failpoints.register("tick.task.read", "a task has read its records, no part is written")
FP_WRITTEN = failpoints.register("tick.task.written", "a task's parts are durable, the driver does not know")

# A part is written when this much has gathered. Limits the task's memory; parts of this size need little
# compaction.
PART_ROWS = 1 << 20
PART_BYTES = 64 << 20


class TooSlow(TidemillError):
    """The unit has used up its time. Units that share its job must not wait for it."""

    sqlstate = "57014"
    transient = True


class Deadline:
    """The time at which a unit must give up. Checked between batches."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._at:
            raise TooSlow(
                f"reading took longer than {self._seconds:g} s", hint="It goes on in a job of its own."
            )


def ingest(unit: Unit, pieces: Sequence[SourcePiece]) -> UnitFacts:
    """Read the pieces of a unit without keys, and write their updates."""
    facts = UnitFacts()
    try:
        writers = [
            None if target is None else PartWriter(unit, index, target, facts)
            for index, target in enumerate(unit.targets)
        ]
        for piece in pieces:
            changes = piece_changes(unit, piece, facts)
            for batch in read(unit, [piece], facts):
                writer = writers[batch.output]
                if writer is None:
                    continue
                if batch.output not in changes:
                    writer.add(stamped(batch.rows, writer.names, unit.time))
                    continue
                for updates in changes[batch.output].updates(batch.rows, unit.time):
                    writer.add(updates)
                if changes[batch.output].summary.upserts:
                    # It is read again, as upserts.
                    return facts
        failpoints.hit(FP_READ)
        for writer in writers:
            if writer is not None:
                writer.flush()
        failpoints.hit(FP_WRITTEN)
    except Exception as e:
        facts.failure = UnitFailure.of(e)
    return facts


def piece_changes(unit: Unit, piece: SourcePiece, facts: UnitFacts) -> dict[int, PieceChanges]:
    """The filters of the targets whose records are changes; their summaries are in the facts."""
    found: dict[int, PieceChanges] = {}
    for index, target in enumerate(unit.targets):
        if target is not None and target.changes is not None:
            found[index] = PieceChanges(target.changes, target.desc, piece)
            facts.changes.setdefault(index, {})[piece_id(piece)] = found[index].summary
    return found


def read(unit: Unit, pieces: Sequence[SourcePiece], facts: UnitFacts) -> Iterator[SourceBatch]:
    """The batches of the pieces, counted and timed, until the deadline."""
    deadline = Deadline(unit.seconds)
    began = time.monotonic()
    for piece in pieces:
        for batch in unit.reader.read(piece):
            facts.records += batch.records
            facts.rows += batch.rows.num_rows
            facts.bytes += batch.bytes
            facts.read_seconds += time.monotonic() - began
            yield batch
            deadline.check()
            began = time.monotonic()
    facts.read_seconds += time.monotonic() - began


def named(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[str]:
    """The batch with the relation's physical column names: the source may have been created with other
    names."""
    return [*names, *rows.schema.names[len(names) :]]


def stamped(rows: pa.RecordBatch, names: Sequence[str], at: int) -> pa.RecordBatch:
    """The rows as updates at a time. A reader may have added diffs and errors as last columns."""
    own = len(names)
    given = dict(zip(rows.schema.names[own:], rows.columns[own:], strict=True))
    times = pa.array(np.full(rows.num_rows, at, np.int64))
    diffs = given.get(DIFF_COLUMN)
    errors = given.get(ERROR_COLUMN)
    columns = [
        *rows.columns[:own],
        times,
        pa.array(np.ones(rows.num_rows, np.int64)) if diffs is None else diffs,
        pa.nulls(rows.num_rows, pa.string()) if errors is None else errors,
    ]
    return pa.RecordBatch.from_arrays(columns, names=[*names, TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN])


class PartWriter:
    """Gathers the updates of one target, and writes them as parts of bounded size."""

    def __init__(self, unit: Unit, index: int, target: UnitTarget, facts: UnitFacts) -> None:
        self._unit = unit
        self._index = index
        self._target = target
        self.names = physical_names(target.desc)
        self._facts = facts
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, updates: pa.RecordBatch) -> None:
        if updates.num_rows == 0:
            return
        self._batches.append(updates)
        self._rows += updates.num_rows
        self._bytes += updates.nbytes
        if self._rows >= PART_ROWS or self._bytes >= PART_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._batches:
            return
        began = time.monotonic()
        table = pa.Table.from_batches(self._batches)
        target = self._target
        part = write_part(self._unit.blobs, target.shard, target.desc, table, self._unit.job)
        self._facts.parts.setdefault(self._index, []).append(part)
        if self._index >= 0:
            # Updates in a stash do not count as updates yet.
            self._facts.updates += part.rows
        self._batches, self._rows, self._bytes = [], 0, 0
        self._facts.write_seconds += time.monotonic() - began
