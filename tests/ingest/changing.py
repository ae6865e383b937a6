"""A table upstream, a connector that writes its changes to a topic, and a source that reads them: for tests
of ENVELOPE DEBEZIUM in the tick without Spark.

The connector behaves as Debezium does: it takes a snapshot, follows the log, and after a kill repeats what
came since its last flush, or begins the snapshot again. `fold` is the meaning of the envelope in a few lines.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill.catalog.sidecars import FACTS_DESC
from tidemill.ingest.changes import ChangeState
from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.unit import Unit, UnitFacts
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import (
    BEFORE_COLUMN,
    COMMITTED_COLUMN,
    KEY_SLOT_COLUMN,
    OFFSET_COLUMN,
    OP_COLUMN,
    PHASE_COLUMN,
    POSITION_COLUMN,
    TIMELINE_COLUMN,
    TOMBSTONE_COLUMN,
    UNKNOWN_POSITION,
    ChangePhase,
    Gauge,
    OutputDefinition,
    ReadLimits,
    SourceBatch,
    SourcePiece,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN
from tidemill.types.model import BYTEA, INT4, TEXT, UINT8, Column, RelationDesc

GAUGE = Gauge(Column("offset", UINT8, nullable=False), Column("partition", INT4, nullable=False))
DESC = RelationDesc((Column("id", INT4), Column("v", TEXT)), (Column(KEY_SLOT_COLUMN, BYTEA),))
Row = tuple[int, str]


@dataclass(frozen=True)
class Change:
    """A record of the topic. Without `after` it deletes `key`."""

    phase: ChangePhase
    position: tuple[int, int, int] | None
    op: str
    key: int
    before: Row | None
    after: Row | None
    committed: int = 0
    timeline: str = "A"


def fold(changes: Sequence[Change]) -> Counter[Row]:
    """What the relation holds behind these records of one partition."""
    rows: Counter[Row] = Counter()
    snapshot: tuple[int, int, int] | None = None
    greatest: tuple[int, int, int] | None = None
    seen: set[tuple[int, str]] = set()
    for change in changes:
        if change.phase is ChangePhase.STREAMED:
            assert change.position is not None
            position = change.position
            if greatest is not None and position < greatest:
                continue
            if greatest != position:
                greatest, seen = position, set()
            if (change.key, change.op) in seen:
                continue
            seen.add((change.key, change.op))
            rows.subtract([change.before] if change.before is not None else [])
        else:
            if change.phase is ChangePhase.SNAPSHOT and change.position != snapshot:
                rows.clear()
                snapshot, greatest, seen = change.position, None, set()
            for row in [row for row in rows if row[0] == change.key]:
                del rows[row]
        rows.update([change.after] if change.after is not None else [])
    return Counter({row: count for row, count in rows.items() if count})


class Database:
    """One table, and its log: (commit position, changes in the order of the log). Transactions overlap, so
    that positions within the log do not rise with commits."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lsn = 100_000
        self.rows: dict[int, Row] = {}
        self.log: list[tuple[int, list[Change]]] = []
        self.commits = 0

    def commit(self) -> None:
        """A transaction of some changes, which may have begun before the last one ended."""
        rng = self.rng
        last = self.log[-1][0] if self.log else UNKNOWN_POSITION
        at = self.lsn - rng.choice([0, 0, 5, 15])
        changes: list[Change] = []
        for _ in range(rng.choice([1, 1, 2, 5])):
            at += rng.choice([0, 1, 3])
            changes += self._changes((last, at, 0), rng)
        self.lsn = max(self.lsn, at) + rng.randint(20, 30)
        self.commits += 1
        self.log.append((self.lsn, [*changes]))

    def _changes(self, position: tuple[int, int, int], rng: random.Random) -> list[Change]:
        def change(op: str, key: int, before: Row | None, after: Row | None) -> Change:
            return Change(ChangePhase.STREAMED, position, op, key, before, after, self.commits)

        used = {c.key for c in self.pending(position)}
        key, new = rng.randint(0, 9), f"v{rng.randint(0, 3)}-{self.commits}"
        if key in used:
            return []
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = (key, new)
            found = [change("c", key, None, (key, new))]
        elif rng.random() < 0.3:
            del self.rows[key]
            found = [change("d", key, old, None)]
        elif rng.random() < 0.3 and (other := rng.randint(10, 19)) not in self.rows and other not in used:
            # The key changes: both have one position.
            del self.rows[key]
            self.rows[other] = (other, new)
            found = [change("d", key, old, None), change("c", other, None, (other, new))]
        else:
            self.rows[key] = (key, new)
            found = [change("u", key, old, (key, new))]
        self._now = (position, [*self.pending(position), *found])
        return found

    _now: tuple[tuple[int, int, int], list[Change]] = ((0, 0, 0), [])

    def pending(self, position: tuple[int, int, int]) -> list[Change]:
        """What this position has: no two changes of one position have one key and operation."""
        return self._now[1] if self._now[0] == position else []


class Connector:
    """Writes the topic. `kill` forgets what was not flushed."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.topic: list[Change] = []
        self.flushed: int | None = None
        # Of the log: what was read, and the transaction behind the last snapshot.
        self.read = self.first = 0

    def snapshot(self, cut: int | None = None) -> None:
        """All of the table, or (killed) the first `cut` rows. The table is not empty: nothing in the topic
        would tell that the rows of an earlier snapshot are gone."""
        database = self.database
        while not database.rows:
            database.commit()
        database.lsn += 1
        position = (database.lsn, 0, 0)
        rows = sorted(database.rows.items())[:cut]
        self.topic += [Change(ChangePhase.SNAPSHOT, position, "r", key, None, row) for key, row in rows]
        if cut is None:
            self.read = self.flushed = len(database.log)
            self.first = self.read

    def incremental(self) -> None:
        """Some rows of the table, as they are now."""
        self.stream()
        rows = [item for item in sorted(self.database.rows.items()) if self.database.rng.random() < 0.5]
        self.topic += [Change(ChangePhase.INCREMENTAL, None, "r", key, None, row) for key, row in rows]

    def stream(self, most: int | None = None) -> None:
        for _, changes in self.database.log[self.read : None if most is None else self.read + most]:
            for change in changes:
                if self.read == self.first and change.position is not None:
                    # The first transaction behind a snapshot does not know the one before it.
                    change = replace(change, position=(UNKNOWN_POSITION, *change.position[1:]))
                self.topic.append(change)
            self.read += 1

    def flush(self) -> None:
        self.flushed = self.read

    def kill(self) -> None:
        self.read = self.flushed or 0


def batch_of(changes: Sequence[Change], first: int) -> pa.RecordBatch:
    row = pa.struct([("id", pa.int32()), ("v", pa.string()), ("mz_error", pa.string()), ("x", pa.binary())])
    before = [None if c.before is None else {"id": c.before[0], "v": c.before[1]} for c in changes]
    columns: dict[str, pa.Array] = {
        "id": pa.array([c.key for c in changes], pa.int32()),
        "v": pa.array([None if c.after is None else c.after[1] for c in changes], pa.string()),
        ERROR_COLUMN: pa.nulls(len(changes), pa.string()),
        KEY_SLOT_COLUMN: pa.nulls(len(changes), pa.binary()),
        OFFSET_COLUMN: pa.array(range(first, first + len(changes)), pa.int64()),
        TOMBSTONE_COLUMN: pa.array([c.after is None for c in changes], pa.bool_()),
        BEFORE_COLUMN: pa.array(before, pa.struct(list(row)[:2])),
        PHASE_COLUMN: pa.array([c.phase for c in changes], pa.uint8()),
        POSITION_COLUMN: pa.array([c.position for c in changes], pa.list_(pa.int64(), 3)),
        OP_COLUMN: pa.array([ord(c.op) for c in changes], pa.uint8()),
        COMMITTED_COLUMN: pa.array([c.committed for c in changes], pa.int64()),
        TIMELINE_COLUMN: pa.array(
            [None if c.phase is ChangePhase.INCREMENTAL else c.timeline for c in changes], pa.string()
        ),
    }
    return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True)
class ChangingReader:
    topics: tuple[tuple[Change, ...], ...]
    batch: int

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        assert isinstance(piece.partition, int)
        for first in range(piece.lower, piece.upper, self.batch):
            end = min(first + self.batch, piece.upper)
            rows = batch_of(self.topics[piece.partition][first:end], first)
            yield SourceBatch(0, rows, end - first, 8 * (end - first))


class ChangingSource(UpstreamSource):
    gauge = GAUGE
    outputs = (OutputDefinition("t", DESC, ("id", KEY_SLOT_COLUMN), changes=True, place='topic "t"'),)

    def __init__(self, topics: Sequence[Sequence[Change]] = ((),)) -> None:
        self.topics: list[list[Change]] = [[*topic] for topic in topics]
        self.stands = Offsets()
        self.batch = 3

    def frontier(self, now: int) -> Offsets:
        return self.stands

    def reader(self) -> ChangingReader:
        return ChangingReader(tuple(map(tuple, self.topics)), self.batch)


@dataclass
class ChangeHouse:
    """An environment with one such source in it."""

    folder: Path
    source: ChangingSource = field(default_factory=ChangingSource)
    created: int = 0
    # How often a unit was read.
    reads: int = 0
    unit: Unit | None = None
    facts: UnitFacts | None = None

    def __post_init__(self) -> None:
        self.clock = 0
        self.local = LocalRunner(str(self.folder.with_name("state")))
        self.open()

    def open(self) -> None:
        self.environment = Environment.open(str(self.folder))
        oracle = self.environment.oracle
        if not self.created:
            self.created = oracle.write_ts()
            oracle.complete(self.created)
        data = self._shard("data", self.source.outputs[0].desc)
        self.changes = ChangeState(data, self._shard("positions", FACTS_DESC))
        self.machine = SourceMachine(
            "u1",
            self.source,
            Remap(self._shard("remap", GAUGE.remap_desc), GAUGE, self.source.start),
            [TableFeed(0, data, self.created, changes=self.changes)],
            TickTiming(self.created, 100),
            home=self.environment,
            clock=oracle,
            limits=ReadLimits(),
        )
        # Past every promise of the one before.
        self.clock = max(self.clock, oracle.now(), self.machine.promised) // 100 * 100 + 100

    def _shard(self, name: str, desc: RelationDesc) -> Shard:
        try:
            return (self.environment.open_shard if name == "remap" else self.environment.open_ingested)(name)
        except ShardMissing:
            return self.environment.create_shard(name, desc, since=self.created)

    def close(self) -> None:
        self.environment.close()

    def again(self) -> None:
        """As after a kill: nothing but the shards is left. (And the workers' caches.)"""
        self.close()
        self.open()

    def tick(self, ways: int = 2) -> bool:
        self.clock += 100
        if self.machine.bind(self.clock) is None:
            return False
        while True:
            self.unit = unit = self.machine.unit(ways, 60.0)
            self.reads += 1
            (facts,) = self.local.run([unit], lane="alone", seconds=60.0)
            self.facts = facts
            if facts.failure is not None:
                self.machine.abandon(unit)
                raise facts.failure.error()
            if not self.machine.review(unit, facts):
                break
            self.machine.abandon(unit)
        self.machine.commit(unit, facts)
        return True

    def rows(self) -> Counter[tuple[Any, ...]]:
        """The collection behind the last binding."""
        shard = self.machine.feeds[0].shard
        names = [column.name for column in self.source.outputs[0].desc.columns]
        found: Counter[tuple[Any, ...]] = Counter()
        as_of = max(upper_of(shard) - 1, shard.since)
        with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
            for part in snapshot.parts:
                table: list[dict[str, Any]] = snapshot.read_part(part).to_pylist()
                for row in table:
                    assert row[ERROR_COLUMN] is None
                    found[tuple(row[name] for name in names)] += row[DIFF_COLUMN]
        return Counter({row: count for row, count in found.items() if count})
