"""ENVELOPE DEBEZIUM in the tick: changes are filtered in the tasks, and their marks kept beside the relation.

Called by `machine` on the driver (`ChangeState`) and by `task` and `keyed` in the tasks (`PieceChanges`). A
unit is read as if nothing was repeated within it: each piece assumes that it begins where the last unit
ended. What the pieces found is checked together (`envelope.changes.settle`). If an assumption was wrong, the
same pieces are read again from where they really begin; nothing was committed.

Streamed changes need no state: -1 for the old row, +1 for the new one. Rows of snapshots are upserts by key.
A unit that has any goes the way of upserts, whose state is a cache of the collection. So a snapshot that a
crash interrupts goes on where it was; afterwards the state is removed, and what remains is one mark for each
partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.envelope.changes import ChangeFilter, ChangeMark, ChangeSummary, SettledChanges, settle
from tidemill.envelope.keys import KeyShape
from tidemill.envelope.upsert import as_updates
from tidemill.errors import DataCorrupted, Internal
from tidemill.ingest.fact_shard import read_facts, write_facts
from tidemill.ingest.state.fill import KeyNotUnique
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.sources.contract import (
    BEFORE_COLUMN,
    OFFSET_COLUMN,
    TOMBSTONE_COLUMN,
    TRUNCATE_COLUMN,
    SourcePiece,
    UpstreamError,
    UpstreamLost,
)
from tidemill.sources.offsets import PartitionKey
from tidemill.types.columns import contiguous, valid_mask
from tidemill.types.model import RelationDesc

FP_MARKED = failpoints.register("tick.changes.marked", "the marks of changes have the tick, the data not")

# A piece of a unit, by its partition and first offset.
PieceId = tuple[PartitionKey, int]

# Names of facts: the mark of a partition (JSON behind it), and that the last unit had upserts.
MARK, UPSERTS = "mark ", "upserts"


def piece_id(piece: SourcePiece) -> PieceId:
    return piece.partition, piece.lower


@dataclass(frozen=True, slots=True)
class ChangeWork:
    """What a unit needs to filter the changes of a target. `key`: the columns of the key, as of `UpsertWork`.
    `marks`: where its pieces begin if nothing before them in the unit counts; `starts`: where they really
    begin, once that is known. `several`: the topic has several partitions; `place` describes it in errors."""

    key: tuple[str, ...]
    marks: Mapping[PartitionKey, ChangeMark]
    starts: Mapping[PieceId, ChangeMark]
    several: bool
    place: str

    def start(self, piece: SourcePiece) -> ChangeMark:
        assumed = self.marks.get(piece.partition, ChangeMark())
        return self.starts.get(piece_id(piece), assumed)

    def settle(self, found: Mapping[PieceId, ChangeSummary]) -> SettledChanges:
        """What follows from all pieces of a unit. Raises UpstreamLost."""
        return settle(self.marks, found, self.several, self.place)

    def stands(self, found: Mapping[PieceId, ChangeSummary]) -> bool:
        """Whether what the pieces kept may be applied: states that were kept for a unit that is read again
        would be wrong."""
        try:
            return not self.settle(found).starts
        except UpstreamError:
            return False


def incomplete_changes(place: str, error: KeyNotUnique) -> UpstreamError:
    """Why rows of a snapshot cannot replace those of their keys."""
    return UpstreamLost(
        "a snapshot came after changes whose old rows were never there",
        detail=f"It is in {place}. {error.found} A row of a snapshot replaces the one row of its key.",
        hint="Create the source again over a topic that begins with a snapshot, or with START OFFSET where "
        "the new one begins; or use ENVELOPE DEBEZIUM UPSERT.",
    )


class PieceChanges:
    """The changes of one piece for one target, in a task."""

    def __init__(self, work: ChangeWork, desc: RelationDesc, piece: SourcePiece) -> None:
        self._shape = KeyShape.of(desc, work.key)
        place = f"{work.place}, partition {piece.partition}"
        self._filter = ChangeFilter(work.start(piece), self._shape.key, place)

    @property
    def summary(self) -> ChangeSummary:
        return self._filter.summary

    def updates(self, batch: pa.RecordBatch, time: int) -> Iterator[pa.RecordBatch]:
        """Streamed changes as updates of the shard: old rows, and new ones."""
        rows, _ = self._filter.keep(batch)
        if self.summary.upserts:
            # The unit will be read again, as upserts.
            return
        shape = self._shape
        before = contiguous(rows.column(BEFORE_COLUMN))
        had = pa.array(valid_mask(before))
        gone = before.filter(had)
        others = [pa.nulls(len(gone), f.type) for f in list(shape.schema)[shape.visible :]]
        old = pa.RecordBatch.from_arrays([*gone.flatten(), *others], schema=shape.schema)
        yield as_updates(old, shape, time, -1)
        there = ~rows.column(TOMBSTONE_COLUMN).to_numpy(zero_copy_only=False)
        new = rows if there.all() else rows.filter(pa.array(there))
        columns = new.columns[: len(shape.names)]
        yield as_updates(pa.RecordBatch.from_arrays(columns, schema=shape.schema), shape, time, 1)

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The changes as records of upserts (`sources.contract`)."""
        rows, resets = self._filter.keep(batch)
        width = len(self._shape.names)
        names = [*batch.schema.names[:width], OFFSET_COLUMN, TOMBSTONE_COLUMN]
        records = rows.select(names)
        if not resets:
            return records
        # A record that empties the relation, before the first one of the snapshot.
        at = np.insert(np.arange(len(records)), resets, resets)
        empties = np.insert(np.zeros(len(records), np.bool_), resets, True)
        taken = records.take(pa.array(at))
        return taken.append_column(pa.field(TRUNCATE_COLUMN, pa.bool_()), pa.array(empties))


class ChangeState:
    """The marks of a relation, on the driver, stepped by its source's machine. A commit writes the facts and
    then the data, whose upper is the truth."""

    def __init__(self, data: Shard, facts: Shard) -> None:
        self._data = data
        self.facts = facts
        # What is known just before the data's upper, and the facts that say so; None when it must be read.
        self._marks: dict[PartitionKey, ChangeMark] | None = None
        self._rows: dict[str, str] = {}
        # Whether the last unit had upserts: the next one is then read as upserts from the start.
        self._upserts = False
        # Of the unit at hand, which was read once: where its pieces begin, and whether it has upserts.
        self._again: SettledChanges | None = None
        # How often the unit at hand was read again. Each time at least one more of its pieces is right.
        self._tries = 0
        # What the unit at hand leads to, if it is committed.
        self._settled: SettledChanges | None = None

    def _load(self) -> dict[PartitionKey, ChangeMark]:
        if self._marks is None:
            self._rows = read_facts(self.facts, upper_of(self._data))
            self._marks, self._upserts = from_facts(self._rows)
        return self._marks

    @property
    def upserts(self) -> bool:
        """Whether the unit at hand is read as upserts."""
        self._load()
        return self._upserts if self._again is None else self._again.upserts

    def work(self, key: tuple[str, ...], *, several: bool, place: str) -> ChangeWork:
        marks = self._load()
        starts = {} if self._again is None else self._again.starts
        return ChangeWork(key, marks, starts, several, place)

    def review(self, work: ChangeWork, found: Mapping[PieceId, ChangeSummary], *, upserted: bool) -> bool:
        """Whether the unit must be read again. Raises UpstreamLost."""
        if not upserted and any(summary.upserts for summary in found.values()):
            # Its pieces stopped where they saw this.
            self._again = SettledChanges({}, {}, upserts=True)
            return True
        settled = work.settle(found)
        if settled.starts:
            self._tries += 1
            if self._tries > len(found) + 1:
                raise Internal(f"the changes of {len(found)} pieces do not settle")
            self._again = SettledChanges({}, settled.starts, upserted)
            return True
        self._settled = settled
        return False

    def begin(self) -> None:
        """Another unit is at hand."""
        self._again = self._settled = None
        self._tries = 0

    def append(self, at: int, job: str) -> None:
        """Make the marks behind the unit durable, before the data. Raises a commit's outcomes."""
        if self._settled is not None and upper_of(self.facts) <= at:
            write_facts(self.facts, self._rows, to_facts(self._settled), at, job)
        failpoints.hit(FP_MARKED)

    def committed(self) -> None:
        """The data has the unit too."""
        if self._settled is not None:
            self._rows = to_facts(self._settled)
            self._marks, self._upserts = dict(self._settled.marks), self._settled.upserts
        self.begin()

    def forget(self) -> None:
        """After a commit that ended at an unknown point."""
        self._marks = None
        self.facts.refresh()

    def allow_compaction(self) -> None:
        """Times before the next redo are no longer needed."""
        needed = upper_of(self._data) - 1
        if needed > self.facts.since:
            self.facts.downgrade_since(needed)


def to_facts(settled: SettledChanges) -> dict[str, str]:
    rows = {f"{MARK}{json.dumps(partition)}": _to_json(mark) for partition, mark in settled.marks.items()}
    return rows | ({UPSERTS: "true"} if settled.upserts else {})


def from_facts(rows: Mapping[str, str]) -> tuple[dict[PartitionKey, ChangeMark], bool]:
    marks = {
        json.loads(item[len(MARK) :]): _from_json(value)
        for item, value in rows.items()
        if item.startswith(MARK)
    }
    return marks, UPSERTS in rows


def _to_json(mark: ChangeMark) -> str:
    fields = {
        "position": mark.position,
        "at": sorted(mark.at),
        "committed": mark.committed,
        "timeline": mark.timeline,
        "snapshot": mark.snapshot,
    }
    return json.dumps(fields, separators=(",", ":"))


def _from_json(text: str) -> ChangeMark:
    fields: dict[str, Any] = json.loads(text)
    try:
        return ChangeMark(
            _position(fields["position"]),
            frozenset(fields["at"]),
            fields["committed"],
            fields["timeline"],
            _position(fields["snapshot"]),
        )
    except (KeyError, TypeError, ValueError) as e:
        raise DataCorrupted("a mark of ENVELOPE DEBEZIUM cannot be read", detail=text[:200]) from e


def _position(value: list[int] | None) -> tuple[int, int, int] | None:
    if value is None:
        return None
    first, second, third = value
    return first, second, third
