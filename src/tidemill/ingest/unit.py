"""A unit: the work of one source for one time. Plain values that are sent to Spark tasks and back.

Created by `machine`, sent by `runner`, executed by `task`. The result of a unit is a `UnitFacts` value, even
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

# Calls that are shown for an unforeseen error: the position itself, and its callers.
SHOWN_FRAMES = 3


@dataclass(frozen=True, slots=True)
class UpsertWork:
    """The target's records are upserts: `key` and `order` are columns of its shard
    (`envelope.keys.KeyShape`). Its state before the unit is the collection at `upper - 1`, complete before
    `upper`."""

    key: tuple[str, ...]
    upper: int
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitTarget:
    """The shard of one output of the source; `upsert` or `recover` if its records must meet by key; `changes`
    if repeated records are dropped by their positions."""

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
    """Read `pieces`, and write their updates at `time` as parts of the targets. There is one target per
    output of the source, or None if the output is inactive, or already has the data (after a crash between
    two commits). `job` names the parts for the sweeper. `seconds` is the time after which the unit gives up,
    which limits the delay of others in the same job. `shares` is the number of tasks that share its keys
    (`task_packing`), 1 for a single task."""

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
        """Whether its records must meet by key, and need a second stage."""
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
    """Why a unit failed, as plain text that can be pickled with any cause. `transient`: a retry may succeed
    without any action; `permanent` as of `RowError`."""

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
    """The position where an unforeseen error was raised, because users do not see a log of the task."""
    frames = traceback.extract_tb(error.__traceback__)[-SHOWN_FRAMES:]
    if not frames:
        return None
    places = [f"{f.name} ({os.path.basename(f.filename)}, line {f.lineno})" for f in reversed(frames)]
    return "Raised in " + ", called by ".join(places) + "."


@dataclass(slots=True)
class UnitFacts:
    """The result of a unit, or of one task's share of it. Shares are added up."""

    # By target position: the written parts, invisible until they are appended. (A stash has a position too:
    # `recovery.deduplicate.stash_index`.)
    parts: dict[int, list[Part]] = field(default_factory=dict[int, list[Part]])
    records: int = 0
    bytes: int = 0
    updates: int = 0
    # The number of rows from the records.
    rows: int = 0
    # By the position of a CDCv2 stream: the findings of the tasks, and the verdict over all of them.
    found: dict[int, FoundUpdates] = field(default_factory=dict[int, FoundUpdates])
    settled: dict[int, Settled] = field(default_factory=dict[int, Settled])
    # Of changes, by position of the target: the summary of each piece.
    changes: dict[int, dict[PieceId, ChangeSummary]] = field(
        default_factory=dict[int, dict[PieceId, ChangeSummary]]
    )
    # Buckets of the upsert state that were cached, and buckets that had to be read from the collection.
    hits: int = 0
    misses: int = 0
    # The size of those buckets, with the changes of the unit.
    state_bytes: int = 0
    # Seconds in the tasks: reading, the state, writing.
    read_seconds: float = 0.0
    state_seconds: float = 0.0
    write_seconds: float = 0.0
    # Set if any share failed; then the parts are useless.
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
