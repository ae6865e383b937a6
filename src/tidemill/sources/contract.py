"""Source contract: the interface between a source and the tick.

A source has two halves. `UpstreamSource` runs on the driver: it reports the position of the upstream and
splits ranges. Its `SourceReader` is pickled into Spark tasks and turns a piece of a range into columns.
`tests/sources/conformance.py` checks every source against this module.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tidemill.catalog.sidecars import MATERIALIZE
from tidemill.cdcv2.messages import Progress
from tidemill.errors import TidemillError
from tidemill.persist.shard import Shard
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.types.model import UINT8, Column, Kind, RelationDesc

# Columns that a reader's batches carry beside the output's own.
OFFSET_COLUMN = "mz_offset"  # int64: the record's number in its partition (keyed outputs)
TOMBSTONE_COLUMN = "mz_tombstone"  # bool: the record deletes its key (keyed outputs)
# list<int32>: positions of columns whose value the upstream did not send because it did not change; -1 - p
# for a jsonb column p that only lacks members (`decode.debezium.placeholders`). Only in batches that need it.
UNAVAILABLE_COLUMN = "mz_unavailable"
# binary, a hidden column of relations whose records can fail: the error slot of a row. Null for rows of
# readable keys.
KEY_SLOT_COLUMN = "mz_key"
# bool: the record empties the relation, independent of its key. Only in batches that have such records.
TRUNCATE_COLUMN = "mz_truncate"
# Of outputs whose records are changes (`OutputDefinition.changes`), in every batch:
# a record of the output's columns: the row before the change. Null where there was none.
BEFORE_COLUMN = "mz_before"
# uint8: `ChangePhase`.
PHASE_COLUMN = "mz_phase"
# fixed-size list of three int64: the position of the change in the upstream's log, compared as a tuple. Of a
# snapshot's row the position of the snapshot; of an incremental row where the log stood, null if that is not
# known. Null for records that failed. Its first number may be `UNKNOWN_POSITION` right behind a snapshot:
# before all others.
POSITION_COLUMN = "mz_position"
UNKNOWN_POSITION = -1
# uint8: the letter of the operation. Two changes of one position differ in their key or in this.
OP_COLUMN = "mz_op"
# int64: when the change was committed upstream, as the upstream says it, in any unit.
COMMITTED_COLUMN = "mz_committed"
# text: which history of the upstream the position belongs to; of rows of a snapshot the beginning of it. Null
# for incremental rows.
TIMELINE_COLUMN = "mz_timeline"
# int64, or a fixed-size list of int64 for products: the time of an update in a CDCv2 stream (outputs that are
# one).
STREAM_TIME_COLUMN = "mz_stream_time"

# How the text of an error ends that a table keeps for good.
MAKE_ANEW = "Drop the table and create it again from the source to read it as it is now."


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
    has no partitions. With `stamp`, a hidden column, each binding also stores what identifies the contents of
    its partitions (`UpstreamSource.stamps`). If `value` is text, the progress relation shows the stamp in the
    place of the number that is counted."""

    value: Column
    partition: Column | None = None
    stamp: Column | None = None

    @property
    def remap_desc(self) -> RelationDesc:
        """Contents of the remap shard; the value is in its diffs, as increments."""
        hidden = () if self.stamp is None else (self.stamp,)
        return RelationDesc(() if self.partition is None else (self.partition,), hidden)

    @property
    def shows_stamp(self) -> bool:
        return self.value.type.kind is Kind.TEXT

    @property
    def progress_desc(self) -> RelationDesc:
        return RelationDesc((*self.remap_desc.columns, self.value))


# For generators, and other sources that count events without partitions.
EVENTS = Gauge(Column("offset", UINT8, nullable=False))


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Properties of a CDCv2 stream that are known before it is read: the kind of its times (`cdcv2.times`),
    whether its statements have digests of the output's columns, and the words that describe a position: the
    text before the partition, and the text before the offset."""

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
    """One relation that the source feeds. With `key` (names of columns of `desc`; the last one may be hidden)
    its records are upserts: the last record of a key is its row. With `order` (names of hidden columns of
    integers or text), the record that is greatest by these columns is the row. With `changes` (and `key`),
    each record has the old row too, and a position in the log of the upstream, which identifies repetitions;
    `place` describes the log in errors. With `stream`, the records are statements of a CDCv2 stream."""

    name: str
    desc: RelationDesc
    key: tuple[str, ...] | None = None
    order: tuple[str, ...] = ()
    stream: StreamSpec | None = None
    changes: bool = False
    place: str = ""

    @property
    def envelope(self) -> str:
        """The envelope of the relation in the catalog, if the statement names none."""
        if self.stream is not None:
            return MATERIALIZE
        return "none" if self.key is None else "upsert"


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """The records [lower, upper) of one partition, which one task reads."""

    partition: PartitionKey
    lower: int
    upper: int

    @property
    def records(self) -> int:
        return self.upper - self.lower


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows of one output, in the order of their records. The columns are those of the output's `desc`, with
    their physical names and storage types. An output without a key may add `mz_diff` (int64; 1 if missing)
    and `mz_error` (text; then the row is an error without values). An output with a key adds, if its relation
    has hidden columns, `mz_error` and those columns; then `mz_offset` and `mz_tombstone`; and in batches that
    need them `mz_unavailable` and `mz_truncate`. An output of changes never adds these two, but always the
    columns from `mz_before` to `mz_timeline`. An output of a CDCv2 stream adds `mz_stream_time`, `mz_diff`
    and `mz_offset`; `stated` has the statements of its records. `records` is the number of upstream records
    that the rows were made from, and `bytes` their size in the upstream."""

    output: int
    rows: pa.RecordBatch
    records: int
    bytes: int
    stated: tuple[Stated, ...] = ()


class Jobs(Protocol):
    """Who names the writers of parts (`persist.environment`)."""

    def begin_job(self) -> str: ...

    def end_job(self, job: str) -> None: ...


class SourceReader(Protocol):
    """The half that is sent to the tasks: small, picklable, without open connections. Connections are opened
    in the task, and may be kept in the worker's module for the next tick."""

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """Exactly the piece's records, in order. A batch has at most `MAX_BATCH_ROWS` rows, so that a
        deadline is noticed in time. While the upstream is silent, yield batches without rows for the same
        reason. Raises UpstreamError."""
        ...


# Rows per batch of a reader: large enough to make the cost per batch negligible, small enough that a batch
# has some megabytes and takes some tens of milliseconds.
MAX_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of one binding: what a tick can read, hold and write without missing the next."""

    records: int = 1_000_000


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """Of a snapshot that is being read: what the upstream has, about, and what is read of it."""

    rows_known: int | None
    rows_read: int
    bytes_known: int
    bytes_read: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the collections are behind the upstream: what is not in them yet, and since when the first of
    it is there; None is what is not known."""

    bytes: int | None
    seconds: float | None


class UpstreamSource(ABC):
    """One upstream. Obligations:

    - `frontier` is cheap (it reads no data), returns or raises within seconds, and never goes back. (The
      ticker calls it in a separate thread, so other sources do not wait.)
    - A range [lower, upper) identifies its records exactly: reading it again returns the same rows, in the
      same order, on any machine, at any later time. If the upstream no longer has some of them, reading
      raises an error and never returns fewer rows.
    - Reading can begin at any frontier that was ever returned or cut, and needs only the definition.
    - Nothing blocks for long: every network call has a deadline.
    - Memory is bounded by a batch, independent of the size of the range.
    """

    gauge: Gauge
    outputs: tuple[OutputDefinition, ...]
    # Where reading begins; fixed when the source is created.
    start: Offsets = Offsets()
    # About how many offsets a record takes: 1 where offsets count records; more where they count bytes.
    offsets_per_record: int = 1
    # The known partitions at the creation of the source. Each has a row in the progress relation, even
    # without records.
    partitions: frozenset[PartitionKey] = frozenset()
    # Fields of the definition that were unknown at the creation of the source and that the last check found
    # (the id of the topic). The caller stores them before anything is bound, and then resets them.
    learned: Mapping[str, Any] | None = None

    # What is missing upstream before reading can begin, as text; set by the last check.
    waits: str | None = None

    # What the gauge counts, in the plural.
    counts: str = "records"

    # Whether the last frontier had everything that the upstream had then. Others are read up to where they
    # stand before the collections are readable for the first time.
    complete: bool = True

    def attach(self, inbox: Shard, jobs: Jobs) -> None:  # noqa: B027 - most upstreams can be asked again
        """Called first, for kinds with an inbox (`catalog.sidecars.INBOXES`): what is received is made
        durable there before a position is reported that covers it."""

    @abstractmethod
    def frontier(self, now: int) -> Offsets:
        """The position of the upstream. `now` is the tick's time in milliseconds; only sources that are
        driven by the clock use it. Raises UpstreamError."""

    @abstractmethod
    def reader(self) -> SourceReader: ...

    def plan(
        self, lower: Offsets, upper: Offsets, ways: int, outputs: frozenset[int]
    ) -> tuple[SourceReader, list[SourcePiece]]:
        """The reader for a range of which only some outputs are needed, and the range as pieces for about
        `ways` tasks. Called before each attempt to read it; sources that must prepare a range do it here.
        Raises UpstreamError."""
        return self.reader(), self.split(lower, upper, ways)

    def reading_seconds(self, lower: Offsets, upper: Offsets, usual: float) -> float:
        """How long reading the planned range in a job of its own may take. Only sources whose ranges cannot
        be cut as small as `cut` is asked to need more than usual."""
        return usual

    def durable(self, frontier: Offsets) -> None:  # noqa: B027 - most upstreams keep what they have
        """Everything below is in all shards, and is never read again, except by tables that are added later:
        an upstream that waits for this may forget it."""

    def wanted(self, frontier: Offsets) -> None:  # noqa: B027 - most sources report every position at once
        """A statement waits until everything below is bound: report it as soon as it is reached, even if
        nothing has happened. Any thread."""

    def snapshot_progress(self) -> SnapshotProgress | None:
        """Of a snapshot that is being read in one range; None if there is none. Any thread."""
        return None

    def lag(self, ingested: Offsets) -> Lag | None:
        """Everything below `ingested` is in the collections. None if the gauge says it all. Any thread."""
        return None

    def dropped(self) -> None:
        """Called instead of `close` when the source was dropped: nothing of it must stay upstream. Raises
        UpstreamError if something does. Then it is called again, of a source that was opened again. (Its type
        is in `catalog.sidecars.OWING`, else only once.)"""
        self.close()

    def close(self) -> None:  # noqa: B027 - most sources hold no connection
        """Close connections. Nothing is called afterwards."""

    # Marks detect that an upstream was changed after it was read (files). They are texts by name, stored
    # durably with the rows of a range. Only sources of CDCv2 streams can store them.

    def mark(self, lower: Offsets, upper: Offsets) -> Mapping[str, str]:
        """The marks of a range, computed before it is read. Must be much faster than reading the range.
        Raises UpstreamError."""
        return {}

    def confirm(self, marks: Mapping[str, str]) -> None:  # noqa: B027 - most sources have no marks
        """Check that a range still matches its marks. Called after the range was read, before it is
        committed. Raises UpstreamError; then the range is marked and read again."""

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:  # noqa: B027 - as above
        """Called once, before the first check: the earlier bindings, and their stored marks. For a gauge with
        stamps, the latest stamp of each partition."""

    def recall_places(  # noqa: B027 - as above
        self, places: Mapping[PartitionKey, Sequence[tuple[int, str]]]
    ) -> None:
        """Called before `recall`, for gauges with stamps only: how far each retained binding went, with its
        stamp."""

    def stamps(self, lower: Offsets, upper: Offsets) -> Mapping[PartitionKey, str]:
        """What identifies the contents of each partition that moves, up to `upper`. Stored with the binding,
        in one write, so that a range that is read again is known to be the same, also by a later process.
        Called before the binding, for gauges with stamps only. Raises UpstreamError."""
        return {}

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """The frontier, at most `upper`, that one binding after `lower` should cover: everything if it is
        within the limits, else a fair share of every partition. It is greater than `lower` if `upper` is.
        Sources whose upstream has transactions override this method, and never cut inside a transaction."""
        behind = upper.records_since(lower)
        if behind <= limits.records:
            return upper
        increments = upper.increments(lower)
        # One record of each partition that moves, and a proportional share of the rest.
        rest, left = max(0, limits.records - len(increments)), behind - len(increments)
        return lower.plus({p: 1 + ((n - 1) * rest // left if left else 0) for p, n in increments.items()})

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        """The range as pieces for about `ways` tasks with equal work. Together they are exactly the range."""
        increments = upper.increments(lower)
        total = sum(increments.values())
        pieces: list[SourcePiece] = []
        for partition, increment in increments.items():
            share = max(1, min(increment, round(ways * increment / total)))
            edges = [lower[partition] + increment * n // share for n in range(share + 1)]
            pieces += [SourcePiece(partition, a, b) for a, b in itertools.pairwise(edges)]
        return pieces
