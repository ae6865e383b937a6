"""Source contract: the interface between a source and the tick.

A source has two halves. `UpstreamSource` runs on the driver: it reports the position of the upstream and
splits ranges. Its `SourceReader` is pickled into Spark tasks and turns a piece of a range into columns.
`tests/sources/conformance.py` checks every source against this module.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tidemill.cdcv2.messages import Progress
from tidemill.errors import TidemillError
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.types.model import UINT8, Column, RelationDesc

# Columns that a reader's batches carry beside the output's own.
OFFSET_COLUMN = "mz_offset"  # int64: the record's number in its partition (keyed outputs)
TOMBSTONE_COLUMN = "mz_tombstone"  # bool: the record deletes its key (keyed outputs)
# list<int32>: positions of columns whose value the upstream did not send because it did not change; -1 - p
# for a jsonb column p that only lacks members (`decode.debezium.placeholders`). Only in batches that need it.
UNAVAILABLE_COLUMN = "mz_unavailable"
# binary, a hidden column of relations whose records can fail: the error slot of a row. Null for rows of
# readable keys.
KEY_SLOT_COLUMN = "mz_key"
# bool: the record says nothing of a key; it empties the relation. Only in batches that have any.
TRUNCATE_COLUMN = "mz_truncate"
# Of outputs whose records are changes (`OutputDefinition.changes`), in every batch:
# a record of the output's columns: the row before the change. Null where there was none.
BEFORE_COLUMN = "mz_before"
# uint8: `ChangePhase`.
PHASE_COLUMN = "mz_phase"
# fixed-size list of three int64: the position of the change in the upstream's log, compared as a tuple. Of a
# snapshot's row the position of the snapshot. Null for incremental rows, and for records that failed. Its
# first number may be `UNKNOWN_POSITION` right behind a snapshot: before all others.
POSITION_COLUMN = "mz_position"
UNKNOWN_POSITION = -1
# uint8: the letter of the operation. Two changes of one position differ in their key or in this.
OP_COLUMN = "mz_op"
# int64: when the change was committed upstream, as the upstream says it, in any unit.
COMMITTED_COLUMN = "mz_committed"
# text: which history of the upstream the position belongs to. Null for rows of snapshots.
TIMELINE_COLUMN = "mz_timeline"
# int64, or a fixed-size list of int64 for products: the time of an update in a CDCv2 stream (outputs that are
# one).
STREAM_TIME_COLUMN = "mz_stream_time"


# The stored definition of a source (`definition`).
Definition: TypeAlias = dict[str, Any]


class UpstreamError(TidemillError):
    """The upstream is unreachable or not as expected. Stalls only this source, which is retried. `permanent`:
    no attempt can succeed without intervention; queries do not wait for it."""

    sqlstate = "58000"
    permanent: bool = False


class UpstreamLost(UpstreamError):
    """The upstream was replaced, or has lost data that was read."""

    permanent = True


class Forgotten(UpstreamError):
    """The upstream no longer has records that were bound: retention removed them."""

    sqlstate = "72000"
    permanent = True


def unreadable_definition(detail: str) -> UpstreamError:
    return UpstreamError(
        "the source's definition cannot be read",
        detail=detail,
        hint="It was made by another version of Tidemill, or the catalog is damaged.",
    )


@dataclass(frozen=True, slots=True)
class Gauge:
    """How the upstream counts: the columns of the progress relation. `partition` is None for a source that
    has no partitions."""

    value: Column
    partition: Column | None = None

    @property
    def remap_desc(self) -> RelationDesc:
        """Contents of the remap shard; the value is in its diffs, as increments."""
        return RelationDesc(() if self.partition is None else (self.partition,))

    @property
    def progress_desc(self) -> RelationDesc:
        return RelationDesc((*self.remap_desc.columns, self.value))


# Of generators, and of whatever counts events without partitions.
EVENTS = Gauge(Column("offset", UINT8, nullable=False))


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Properties of a CDCv2 stream that are known before it is read: the kind of its times (`cdcv2.times`),
    whether its statements have digests of the columns of the output, and the words for the position of a
    record, before its partition and before its offset."""

    kind: int = 0
    digests: bool = False
    words: tuple[str, str] = ("partition ", ", offset ")

    def place(self, partition: object, offset: int) -> str:
        return f"{self.words[0]}{partition}{self.words[1]}{offset}"


@dataclass(frozen=True, slots=True)
class Stated:
    """The content of a CDCv2 record other than updates: a progress statement, or (as text) why it cannot be
    read."""

    offset: int
    said: Progress | str


class ChangePhase(IntEnum):
    """Where a change comes from: the upstream's log, a snapshot of the whole table, or an incremental
    snapshot beside the log."""

    STREAMED = 0
    SNAPSHOT = 1
    INCREMENTAL = 2


@dataclass(frozen=True, slots=True)
class OutputDefinition:
    """One relation that the source feeds. With `key` (names of columns of `desc`, the last one perhaps of a
    hidden one) its records are upserts: the last one of a key is its row; or with `order` (names of hidden
    columns of whole numbers) the one that is greatest by them. With `changes` (and `key`) its records have
    the old row too, and a position in the upstream's log by which repetitions are known; `place` describes
    where they are, in errors. With `stream` its records are statements of a CDCv2 stream."""

    name: str
    desc: RelationDesc
    key: tuple[str, ...] | None = None
    order: tuple[str, ...] = ()
    stream: StreamSpec | None = None
    changes: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """The records [lower, upper) of one partition: what one task reads in one go."""

    partition: PartitionKey
    lower: int
    upper: int

    @property
    def records(self) -> int:
        return self.upper - self.lower


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows of one output, in the order of their records. The columns are those of the output's `desc` under
    their physical names in the storage types. An output without key may add `mz_diff` (int64; 1 where it is
    missing) and `mz_error` (text; the row is an error then, and has no values). One with a key adds, if its
    relation has hidden columns, `mz_error` and those, then `mz_offset` and `mz_tombstone`, and in batches
    that need them `mz_unavailable` and `mz_truncate`. One of changes adds neither of these two, but the
    columns from `mz_before` to `mz_timeline`, in every batch. One that is a CDCv2 stream adds
    `mz_stream_time`, `mz_diff` and `mz_offset`, and has in `stated` what its records say beside updates.
    `records` tells how many records of the upstream the rows came from, `bytes` their size there."""

    output: int
    rows: pa.RecordBatch
    records: int
    bytes: int
    stated: tuple[Stated, ...] = ()


class SourceReader(Protocol):
    """The half that travels: picklable, small, without open connections (they are made in the task and may
    be kept in the worker's module for the next tick)."""

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """Exactly the piece's records, in order. A batch has at most `MAX_BATCH_ROWS` rows, so that a
        deadline is noticed in time; one of no rows, while the upstream is silent, serves that too. Raises
        SourceError."""
        ...


# Rows per batch of a reader: large enough that Python's part per batch does not show, small enough that a
# batch is some megabytes and some tens of milliseconds.
MAX_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of one binding: what a tick can read, hold and write without missing the next."""

    records: int = 1_000_000


class UpstreamSource(ABC):
    """One upstream. Obligations:

    - `frontier` is cheap (no data is read), is there within seconds or raises, and never goes back. (The
      ticker has a thread for it; nobody else waits.)
    - A range [lower, upper) names its records exactly: reading it again gives the same rows, in the same
      order, on any machine, at any later time, until the upstream itself forgets them (which is an error that
      says so, never fewer rows).
    - Reading may begin at any frontier that was ever returned or cut; no state but the definition is needed.
    - Nothing blocks for long: what waits for a network has a deadline.
    - Memory is bounded by a batch, whatever the range.
    """

    gauge: Gauge
    outputs: tuple[OutputDefinition, ...]
    # Where reading begins; fixed when the source is made.
    start: Offsets = Offsets()
    # Those that it had when it was made, as far as is known: each has its row in the progress relation before
    # it has a record.
    partitions: frozenset[PartitionKey] = frozenset()
    # Fields of its definition that were not known when the source was made, and that the last look found out
    # (which of all topics of a name it reads). They are kept before anything is bound, and then taken away.
    learned: Mapping[str, Any] | None = None

    # What is missing upstream before reading can begin, as text; as of the last check.
    waits: str | None = None

    @abstractmethod
    def frontier(self, now: int) -> Offsets:
        """Where the upstream stands. `now` is the tick's time, in milliseconds; only sources that are driven
        by the clock look at it. Raises SourceError."""

    @abstractmethod
    def reader(self) -> SourceReader: ...

    def close(self) -> None:  # noqa: B027 - most have nothing to let go
        """Let connections go. Nothing is called afterwards."""

    # Upstreams that can be changed behind our back (files) are known again by marks: texts by name, kept
    # durably with the rows of a range. Only sources of CDCv2 streams have a place for them.

    def mark(self, lower: Offsets, upper: Offsets) -> Mapping[str, str]:
        """The marks of a range, before it is read. May take as long as a small part of reading it. Raises
        SourceError."""
        return {}

    def confirm(self, marks: Mapping[str, str]) -> None:  # noqa: B027 - most have no marks
        """The range was read and is about to be committed: checks that it still matches its marks. Raises
        SourceError; then it is marked and read again."""

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:  # noqa: B027 - as above
        """Called once, before the first check: the earlier bindings, and their stored marks."""

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """The frontier, at most `upper`, that one binding after `lower` should cover: all of it within the
        limits, else a fair share of every partition. Greater than `lower` when `upper` is. Sources whose
        upstream has transactions override it: they never cut inside one."""
        behind = upper.records_since(lower)
        if behind <= limits.records:
            return upper
        increments = upper.increments(lower)
        # One of each partition that moves, and of the rest a share by what each has left.
        rest, left = max(0, limits.records - len(increments)), behind - len(increments)
        return lower.plus({p: 1 + ((n - 1) * rest // left if left else 0) for p, n in increments.items()})

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        """The range as pieces for about `ways` tasks of equal work; together exactly the range."""
        increments = upper.increments(lower)
        total = sum(increments.values())
        pieces: list[SourcePiece] = []
        for partition, increment in increments.items():
            share = max(1, min(increment, round(ways * increment / total)))
            edges = [lower[partition] + increment * n // share for n in range(share + 1)]
            pieces += [SourcePiece(partition, a, b) for a, b in itertools.pairwise(edges)]
        return pieces
