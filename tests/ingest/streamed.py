"""A CDCv2 stream as a source whose upstream is a script: for tests of recovery in the tick."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from ingest.scripted import GAUGE
from support.shipped import Shipped
from tidemill.catalog.sidecars import CLOCK_DESC, FACTS_DESC, stash_desc
from tidemill.cdcv2 import Message, Progress, Updates
from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.recovery.stream import StreamState
from tidemill.ingest.runner import LocalRunner, Runner
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import (
    OFFSET_COLUMN,
    STREAM_TIME_COLUMN,
    OutputDefinition,
    ReadLimits,
    SourceBatch,
    SourcePiece,
    SourceReader,
    Stated,
    StreamSpec,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.time.bounds import MAX_TIME
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.model import TEXT, Column, RelationDesc

ROWS = RelationDesc((Column("name", TEXT),))
# (row, time, diff)
Told = tuple[str | None, int, int]


@dataclass(frozen=True)
class StreamReader:
    """One message per record; a text stands for a record that cannot be read."""

    partitions: dict[PartitionKey, tuple[Message | str, ...]]
    kind: int

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        for offset in range(piece.lower, piece.upper):
            said = self.partitions[piece.partition][offset]
            if isinstance(said, Updates):
                yield SourceBatch(0, self._rows(said, offset), 1, 100)
            else:
                yield SourceBatch(0, self._rows(Updates([]), offset), 1, 100, (Stated(offset, said),))

    def _rows(self, said: Updates, offset: int) -> pa.RecordBatch:
        count = len(said.updates)
        time = pa.int64() if self.kind == 0 else pa.list_(pa.int64(), self.kind)
        columns = [
            pa.array([str(data) for data, _, _ in said.updates], pa.string()),
            pa.array([t for _, t, _ in said.updates], time),
            pa.array([d for _, _, d in said.updates], pa.int64()),
            pa.array(np.full(count, offset, np.int64)),
        ]
        names = ["name", STREAM_TIME_COLUMN, DIFF_COLUMN, OFFSET_COLUMN]
        return pa.RecordBatch.from_arrays(columns, names=names)


cloudpickle.register_pickle_by_value(sys.modules[__name__])


class StreamSource(UpstreamSource):
    gauge = GAUGE

    def __init__(self, kind: int = 0, digests: bool = False) -> None:
        self.kind = kind
        self.outputs = (OutputDefinition("rows", ROWS, stream=StreamSpec(kind, digests)),)
        self.partitions_: dict[PartitionKey, list[Message | str]] = {}

    def frontier(self, now: int) -> Offsets:
        return Offsets({p: len(said) for p, said in self.partitions_.items()})

    def reader(self) -> SourceReader:
        return Shipped(StreamReader({p: tuple(said) for p, said in self.partitions_.items()}, self.kind))

    def produce(self, said: Sequence[Message | str], partition: int = 0) -> None:
        self.partitions_.setdefault(partition, []).extend(said)


@dataclass
class StreamHouse:
    """An environment with one such source in it, which can be left and opened again."""

    folder: Path
    source: StreamSource = field(default_factory=StreamSource)
    runner: Runner | None = None
    created: int = 0
    # The rows keep the stream's times.
    own_times: bool = False

    def __post_init__(self) -> None:
        self.clock = 0
        self.open()

    def open(self) -> None:
        self.environment = Environment.open(str(self.folder))
        oracle = self.environment.oracle
        if not self.created:
            self.created = oracle.write_ts()
            oracle.complete(self.created)
        rows, gauge = self.source.outputs[0].desc, self.source.gauge
        desc = stash_desc(rows, self.source.kind)
        line = self._shard("line", rows) if self.own_times else None
        data = self._shard("data", CLOCK_DESC if self.own_times else rows)
        self.stream = StreamState(data, self._shard("stash", desc), self._shard("tally", FACTS_DESC), line)
        self.machine = SourceMachine(
            "u1",
            self.source,
            Remap(self._shard("remap", gauge.remap_desc), gauge, self.source.start),
            [TableFeed(0, data, self.created, self.stream)],
            TickTiming(self.created, 100),
            home=self.environment,
            clock=oracle,
            limits=ReadLimits(),
        )
        # Past every promise of the one before.
        self.clock = max(self.clock, oracle.now(), self.machine.promised) // 100 * 100 + 100

    def _shard(self, name: str, desc: RelationDesc) -> Shard:
        try:
            if name == "remap":
                return self.environment.open_shard(name)
            return self.environment.open_ingested(name)
        except ShardMissing:
            if name == "line":
                return self.environment.create_foreign(name, desc)
            return self.environment.create_shard(name, desc, since=self.created)

    def close(self) -> None:
        self.environment.close()

    def again(self) -> None:
        """As after a kill: nothing but the shards is left. (And the workers' caches.)"""
        self.close()
        self.open()

    def tick(self, shares: int = 1) -> bool:
        self.clock += 100
        if self.machine.bind(self.clock) is None:
            return False
        unit = self.machine.unit(2, 60.0, shares)
        runner = self.runner or LocalRunner(str(self.folder.with_name("state")))
        (facts,) = runner.run([unit], lane="alone", seconds=60.0)
        if facts.failure is not None:
            self.machine.abandon(unit)
            raise facts.failure.error()
        self.machine.commit(unit, facts)
        return True

    def settle(self) -> None:
        while self.tick():
            pass

    @property
    def frontier(self) -> list[Any]:
        found = self.stream.frontier
        return [0 if not self.source.kind else (0,) * self.source.kind] if found is None else found

    def updates(self) -> list[Told]:
        """As they lie in the relation's shard; errors have no row."""
        return sorted(
            (
                (row["name"], row[TIME_COLUMN], row[DIFF_COLUMN])
                for row in self._all(self.machine.feeds[0].rows)
            ),
            key=str,
        )

    def errors(self) -> list[str]:
        rows = self._all(self.machine.feeds[0].rows)
        return [row[ERROR_COLUMN] for row in rows if row[ERROR_COLUMN] is not None]

    def stashed(self) -> list[dict[str, Any]]:
        """What the stash holds, each row as often as it is there: never twice, never less than once."""
        rows: dict[str, tuple[int, dict[str, Any]]] = {}
        for row in self._all(self.stream.stash):
            own = {name: value for name, value in row.items() if not name.startswith("mz_")}
            count = rows.get(str(own), (0, own))[0]
            rows[str(own)] = (count + row[DIFF_COLUMN], own)
        assert {count for count, _ in rows.values()} <= {0, 1}
        return [own for count, own in rows.values() if count]

    @staticmethod
    def _all(shard: Shard) -> list[dict[str, Any]]:
        upper = shard.upper
        as_of = MAX_TIME if upper is None else max(upper - 1, shard.since)
        if upper == 0:
            return []
        with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
            return [row for part in snapshot.parts for row in snapshot.read_part(part).to_pylist()]


def counted(lower: Any, upper: Any, counts: Sequence[tuple[Any, int]] = ()) -> Progress:
    return Progress(lower, upper, counts)
