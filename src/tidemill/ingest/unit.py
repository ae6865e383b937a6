"""A unit: the work of one source for one time. Plain values that travel to Spark tasks and back.

Made by `machine`, sent by `runner`, executed by `task`. The result of a unit is a `UnitFacts` value, even
when it fails: an exception of one source must not end a job that runs others.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field

from tidemill.envelope.changes import ChangeSummary
from tidemill.errors import TidemillError
from tidemill.ingest.changes import ChangeWork, PieceId
from tidemill.ingest.recovery.values import FoundUpdates, Recover, Settled
from tidemill.persist.blob import Blobs
from tidemill.persist.part import Part
from tidemill.sources.contract import SourcePiece, SourceReader, UpstreamError
from tidemill.types.model import RelationDesc

# Calls that are shown for an unforeseen error: the place itself, and its callers.
SHOWN_FRAMES = 3


@dataclass(frozen=True, slots=True)
class UpsertWork:
    """The target's records are upserts: `key` and `order` are columns of its shard (`envelope.keys.Shape`).
    Its state before the unit is the collection at `upper - 1`, complete before `upper`."""

    key: tuple[str, ...]
    upper: int
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitTarget:
    """The shard that one output of the source goes to; `upsert` or `recover` where its records must meet by
    key. `changes` where repeated records are dropped by their positions."""

    shard: str
    desc: RelationDesc
    upsert: UpsertWork | None = None
    recover: Recover | None = None
    changes: ChangeWork | None = None

    @property
    def keyed(self) -> bool:
        return self.upsert is not None or self.recover is not None


@dataclass(frozen=True, slots=True)
class Unit:
    """Read `pieces`, and write their updates at `time` as parts of the targets, one per output of the
    source: None where nobody wants it, or has it already (a crash came between two commits). `job` names the
    parts for the sweeper; `seconds` is how long the unit may take before it gives up, so that it delays what
    shares its job by no more. `shares` is how many tasks share its keys (`task_packing`), 1 when one does it
    all."""

    source: str
    reader: SourceReader
    pieces: tuple[SourcePiece, ...]
    time: int
    targets: tuple[UnitTarget | None, ...]
    blobs: Blobs
    job: str
    seconds: float
    shares: int = 1

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.pieces)

    @property
    def keyed(self) -> bool:
        """Whether its records must meet by key: then it takes a second stage."""
        return any(t is not None and t.keyed for t in self.targets)

    @property
    def upserts(self) -> bool:
        return any(t is not None and t.upsert is not None for t in self.targets)

    def stands(self, facts: UnitFacts) -> bool:
        """Whether what was read of its changes may be applied (`changes`)."""
        works = [(index, t.changes) for index, t in enumerate(self.targets) if t is not None and t.changes]
        return all(work.stands(facts.changes.get(index, {})) for index, work in works)

    @property
    def recovers(self) -> list[tuple[int, Recover]]:
        """The targets that are CDCv2 streams, by position."""
        return [(i, t.recover) for i, t in enumerate(self.targets) if t is not None and t.recover is not None]


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """Why a unit failed, as plain text that can be pickled whatever raised it. `transient`: a retry may
    succeed without any action; `permanent` as of `RowError`."""

    primary: str
    detail: str | None = None
    hint: str | None = None
    sqlstate: str = "XX000"
    transient: bool = True
    permanent: bool = False

    @staticmethod
    def of(error: BaseException) -> UnitFailure:
        if isinstance(error, TidemillError):
            permanent = isinstance(error, UpstreamError) and error.permanent
            told = (error.primary, error.detail, error.hint, error.sqlstate)
            return UnitFailure(*told, error.transient, permanent)
        if isinstance(error, MemoryError):
            return UnitFailure("out of memory", sqlstate="53200")
        return UnitFailure(f"{type(error).__name__}: {error}", detail=_where(error))

    def error(self) -> TidemillError:
        error = UpstreamError(self.primary, detail=self.detail, hint=self.hint, sqlstate=self.sqlstate)
        error.transient, error.permanent = self.transient, self.permanent
        return error


def _where(error: BaseException) -> str | None:
    """Where an unforeseen error was raised: a task has no log that users see."""
    frames = traceback.extract_tb(error.__traceback__)[-SHOWN_FRAMES:]
    if not frames:
        return None
    places = [f"{f.name} ({os.path.basename(f.filename)}, line {f.lineno})" for f in reversed(frames)]
    return "Raised in " + ", called by ".join(places) + "."


@dataclass(slots=True)
class UnitFacts:
    """The result of a unit, or of one task's share of it; shares are added up."""

    # Per target, by its position: what was written. Invisible until it is appended. (A stash has a position
    # too: `recovery.meet.stash_index`.)
    parts: dict[int, list[Part]] = field(default_factory=dict[int, list[Part]])
    records: int = 0
    bytes: int = 0
    updates: int = 0
    # Rows that the records gave.
    rows: int = 0
    # Of CDCv2 streams, by position: what the tasks found, and what followed from all of it.
    found: dict[int, FoundUpdates] = field(default_factory=dict[int, FoundUpdates])
    settled: dict[int, Settled] = field(default_factory=dict[int, Settled])
    # Of changes, by position of the target: what each piece found.
    changes: dict[int, dict[PieceId, ChangeSummary]] = field(
        default_factory=dict[int, dict[PieceId, ChangeSummary]]
    )
    # Buckets of the upsert state that were there, and that had to be read from the collection.
    hits: int = 0
    misses: int = 0
    # What those buckets take, with what the unit changed.
    state_bytes: int = 0
    # Seconds in the tasks: reading, the state, writing.
    read_seconds: float = 0.0
    state_seconds: float = 0.0
    write_seconds: float = 0.0
    # Set when any share failed: then the parts are of no use.
    failure: UnitFailure | None = None

    def add(self, other: UnitFacts) -> None:
        for target, parts in other.parts.items():
            self.parts.setdefault(target, []).extend(parts)
        self.records += other.records
        self.bytes += other.bytes
        self.updates += other.updates
        self.rows += other.rows
        for target, found in other.found.items():
            self.found.setdefault(target, FoundUpdates()).add(found)
        self.settled.update(other.settled)
        for target, summaries in other.changes.items():
            self.changes.setdefault(target, {}).update(summaries)
        self.hits += other.hits
        self.misses += other.misses
        self.state_bytes += other.state_bytes
        self.read_seconds += other.read_seconds
        self.state_seconds += other.state_seconds
        self.write_seconds += other.write_seconds
        self.failure = self.failure or other.failure
