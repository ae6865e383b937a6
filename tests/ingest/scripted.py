"""A source whose upstream is a script, and what a model says of it: for tests of the tick without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.runner import LocalRunner
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import (
    Gauge,
    OutputDefinition,
    ReadLimits,
    SourceBatch,
    SourcePiece,
    UpstreamError,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import INT4, INT8, TEXT, UINT8, Column, RelationDesc

GAUGE = Gauge(Column("offset", UINT8, nullable=False), Column("partition", INT4, nullable=False))
EVENTS = RelationDesc((Column("partition", INT4), Column("number", INT8)))
TENTHS = RelationDesc((Column("name", TEXT),))


class ScriptedReader:
    """Output 0 has a row per record, output 1 one for every tenth: most ticks give it nothing."""

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        numbers = np.arange(piece.lower, piece.upper, dtype=np.int64)
        rows = pa.RecordBatch.from_arrays(
            [pa.array(np.full(len(numbers), piece.partition, np.int32)), pa.array(numbers)],
            names=["partition", "number"],
        )
        yield SourceBatch(0, rows, len(numbers), 8 * len(numbers))
        tenths = [f"{piece.partition}/{n}" for n in numbers.tolist() if n % 10 == 0]
        yield SourceBatch(
            1, pa.RecordBatch.from_arrays([pa.array(tenths, pa.string())], names=["name"]), 0, 0
        )


class ScriptedSource(UpstreamSource):
    """`stands` is the upstream; tests move it."""

    gauge = GAUGE
    outputs = (OutputDefinition("events", EVENTS), OutputDefinition("tenths", TENTHS))

    def __init__(self) -> None:
        self.stands = Offsets()
        # What it was told to be durable.
        self.kept = Offsets()
        self.error: UpstreamError | None = None

    def frontier(self, now: int) -> Offsets:
        if self.error is not None:
            raise self.error
        return self.stands

    def reader(self) -> ScriptedReader:
        return ScriptedReader()

    def durable(self, frontier: Offsets) -> None:
        assert self.kept <= frontier
        self.kept = frontier

    def produce(self, **records: int) -> None:
        """`p0=3`: three more records in partition 0."""
        increments: dict[PartitionKey, int] = {int(p[1:]): n for p, n in records.items()}
        self.stands = self.stands.plus(increments)


@dataclass
class House:
    """An environment with one scripted source in it, which can be left and opened again."""

    folder: Path
    source: ScriptedSource = field(default_factory=ScriptedSource)
    limits: ReadLimits = field(default_factory=ReadLimits)
    interval: int = 100
    created: int = 0
    # What was kept of what the source had learned, with the number of bindings that there were then.
    kept: list[tuple[Mapping[str, Any], int]] = field(default_factory=list[tuple[Mapping[str, Any], int]])

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.environment = Environment.open(str(self.folder))
        oracle = self.environment.oracle
        if not self.created:
            self.created = oracle.write_ts()
            oracle.complete(self.created)
        remap = self._shard("remap", GAUGE.remap_desc)
        self.environment.open_shard(remap.id)
        feeds = [
            TableFeed(i, self._shard(f"data{i}", output.desc), self.created)
            for i, output in enumerate(self.source.outputs)
        ]
        self.machine = SourceMachine(
            "u1",
            self.source,
            Remap(remap, GAUGE, self.source.start),
            feeds,
            TickTiming(self.created, self.interval),
            home=self.environment,
            clock=oracle,
            limits=self.limits,
            keep=self._keep,
        )

    def _keep(self, learned: Mapping[str, Any]) -> None:
        self.kept.append((learned, len(self.bindings())))

    def _shard(self, name: str, desc: RelationDesc) -> Shard:
        try:
            if name == "remap":
                return self.environment.open_shard(name)
            return self.environment.open_ingested(name)
        except ShardMissing:
            return self.environment.create_shard(name, desc, since=self.created)

    def close(self) -> None:
        self.environment.close()

    def tick(self, now: int) -> bool:
        """One tick, without Spark; True when there was something to do."""
        if self.machine.bind(now) is None:
            return False
        unit = self.machine.unit(2, 60.0)
        (facts,) = LocalRunner(str(self.folder / "state")).run([unit], lane="test", seconds=60.0)
        if facts.failure is not None:
            self.machine.abandon(unit)
            raise facts.failure.error()
        self.machine.commit(unit, facts)
        return True

    def bindings(self) -> list[tuple[int, Offsets]]:
        return [(b.time, b.upper) for b in self.machine.remap.bindings(0)]

    def updates(self, output: int) -> list[tuple[tuple[object, ...], int, int]]:
        """(row, time, diff) as they lie in the shard, sorted."""
        shard = self.machine.feeds[output].shard
        found: list[tuple[tuple[object, ...], int, int]] = []
        as_of = max(upper_of(shard) - 1, shard.since)
        with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
            for part in snapshot.parts:
                table = snapshot.read_part(part)
                names = [n for n in table.schema.names if not n.startswith("mz_")]
                rows = zip(*(table.column(n).to_pylist() for n in names), strict=True)
                times, diffs = (table.column(n).to_pylist() for n in (TIME_COLUMN, DIFF_COLUMN))
                found += list(zip(rows, times, diffs, strict=True))
        return sorted(found, key=str)

    def expected(self, output: int) -> list[tuple[tuple[object, ...], int, int]]:
        """What the bindings say must be there: each record once, at the first time that covers it."""
        rows: list[tuple[tuple[object, ...], int, int]] = []
        done: dict[PartitionKey, int] = {}
        for time, upper in self.bindings():
            for partition, value in upper.items():
                for number in range(done.get(partition, 0), value):
                    if output == 0:
                        rows.append(((partition, number), time, 1))
                    elif number % 10 == 0:
                        rows.append(((f"{partition}/{number}",), time, 1))
                done[partition] = value
        return sorted(rows, key=str)

    def check(self) -> None:
        """Every record that is bound is there once, at its time; times and frontiers rise."""
        for output in range(2):
            assert self.updates(output) == self.expected(output)
        times = [time for time, _ in self.bindings()]
        assert times == sorted(set(times))
