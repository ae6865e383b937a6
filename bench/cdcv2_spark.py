"""CDCv2 in the tick on Spark, two cores: the rate of recovery, and whether a batch costs more the more came
before it.

Called by `bench_cdcv2`. The messages are those of the local measurement, shuffled within 20 times and each
twice; they are made inside the tasks, as columns, so that what is measured is recovery and its commits: the
shuffle, the stash on disk and in its shard, the tally, the relation's parts. "Updates/s" counts what comes
out.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from bench.busy import core_seconds
from bench.report import Figure
from support.shipped import Shipped
from tidemill.catalog.sidecars import FACTS_DESC, stash_desc
from tidemill.cdcv2 import Progress
from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.recovery.stream import StreamState
from tidemill.ingest.spark_runner import SparkRunner
from tidemill.ingest.task_packing import key_shares
from tidemill.ingest.warm import WORKERS
from tidemill.persist.environment import Environment
from tidemill.query.spark import SparkHost
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import (
    EVENTS,
    MAX_BATCH_ROWS,
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
from tidemill.sources.offsets import Offsets
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import FLOAT8, INT8, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("id", INT8), Column("name", TEXT), Column("amount", FLOAT8)))
NAMES = pa.array([f"name {i}" for i in range(1000)])
# Times that a transport mixes, and rows of one message.
NEAR = 20
PER_MESSAGE = 10_000
CORES = 2
# A batch that takes longer hangs.
SECONDS = 600.0
# Batches between two rounds of maintenance, which is not counted.
MAINTAIN_EVERY = 20
# Batches that are compared: so many around the 10th and before the last.
AROUND = 9


@dataclass(frozen=True)
class Plan:
    """Message n has rows: a window of all rows, each twice, that moves on with n. A statement for a time
    follows when all of its rows have passed by."""

    updates: int
    times: int
    per_message: int

    @property
    def per_time(self) -> int:
        return self.updates // self.times

    @property
    def messages(self) -> int:
        """Of updates; statements come with them."""
        return -(-2 * self.updates // self.per_message)

    def ids(self, message: int) -> np.ndarray:
        """The rows of a message: a fixed mixture, so that any task can make any message. Places 0 to 2n are
        mixed within blocks; place p is row p // 2."""
        first = message * self.per_message
        places = np.arange(first, min(first + self.per_message, 2 * self.updates))
        block = 2 * NEAR * self.per_time
        start = places // block * block
        size = np.minimum(block, 2 * self.updates - start)
        # A permutation of the block: multiplication by a number that has no factor in common with it.
        return (start + (places - start) * _coprime(block) % size) // 2

    def stated(self, message: int) -> list[int]:
        """The times whose statements come with a message: those of the block that ends there."""
        block = 2 * NEAR * self.per_time
        last = min((message + 1) * self.per_message, 2 * self.updates)
        ended = last // block if last < 2 * self.updates else -(-last // block)
        before = (message * self.per_message) // block
        return list(range(before * NEAR, min(ended * NEAR, self.times)))


def _coprime(size: int) -> int:
    """Near the golden share of the size, and prime: it shares no factor with a size of small factors."""
    candidate = int(size * 0.618) | 1
    while any(candidate % d == 0 for d in (3, 5, 7, 11, 13)) or np.gcd(candidate, size) != 1:
        candidate += 2
    return candidate


@dataclass(frozen=True)
class PlanReader:
    plan: Plan

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        for message in range(piece.lower, piece.upper):
            ids = self.plan.ids(message)
            stated = tuple(
                Stated(message, Progress([t], [t + 1], [(t, self.plan.per_time)]))
                for t in self.plan.stated(message)
            )
            columns = [
                pa.array(ids),
                NAMES.take(pa.array(ids % len(NAMES))),
                pa.array(ids / 4),
                pa.array(ids // self.plan.per_time),
                pa.array(np.ones(len(ids), np.int64)),
                pa.array(np.full(len(ids), message, np.int64)),
            ]
            names = ["id", "name", "amount", STREAM_TIME_COLUMN, DIFF_COLUMN, OFFSET_COLUMN]
            rows = pa.RecordBatch.from_arrays(columns, names=names)
            for first in range(0, max(1, rows.num_rows), MAX_BATCH_ROWS):
                yield SourceBatch(0, rows.slice(first, MAX_BATCH_ROWS), 1, rows.nbytes, stated)
                stated = ()


cloudpickle.register_pickle_by_value(sys.modules[__name__])


class PlanSource(UpstreamSource):
    gauge = EVENTS
    outputs = (OutputDefinition("rows", DESC, stream=StreamSpec()),)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.stands = 0

    def frontier(self, now: int) -> Offsets:
        return Offsets.at(self.stands)

    def reader(self) -> SourceReader:
        return Shipped(PlanReader(self._plan))


class Run:
    """A relation on a folder of its own, driven batch by batch."""

    def __init__(self, folder: Path, plan: Plan, host: SparkHost) -> None:
        self.environment = Environment.open(str(folder / "data"))
        self._runner = SparkRunner(host, str(folder / "state"))
        oracle = self.environment.oracle
        created = oracle.write_ts()
        oracle.complete(created)
        create = self.environment.create_shard
        data = create("data", DESC, since=created)
        stream = StreamState(
            data,
            create("stash", stash_desc(DESC), since=created),
            create("tally", FACTS_DESC, since=created),
        )
        self.source = PlanSource(plan)
        remap = Remap(create("remap", EVENTS.remap_desc, since=created), EVENTS, self.source.start)
        self.machine = SourceMachine(
            "u1",
            self.source,
            remap,
            [TableFeed(0, data, created, stream)],
            TickTiming(created, 1),
            home=self.environment,
            clock=oracle,
            limits=ReadLimits(10**9),
        )
        self.stream = stream
        self._begun = False
        self._now = oracle.now()

    def batch(self, upper: int) -> int:
        """Take the messages before `upper` in; how many updates came out."""
        self.source.stands = upper
        self._now = max(self._now + 1, self.environment.oracle.now())
        while self.machine.bind(self._now) is None:
            self._now += 1
        # As the ticker cuts it, for a source that goes alone.
        rows = self.machine.pending_rows
        shares = key_shares(rows, CORES, at_hand=self._begun)
        unit = self.machine.unit(self.machine.pace.ways(rows, CORES), SECONDS, shares)
        began = time.perf_counter()
        (facts,) = self._runner.run([unit], lane="alone", seconds=SECONDS)
        if facts.failure is not None:
            raise facts.failure.error()
        took = time.perf_counter() - began
        self.machine.commit(unit, facts)
        self.machine.pace.learn(facts, took, self.machine.weight)
        self._begun = True
        self.machine.retain(self._now, 0, 1)
        return facts.updates


@dataclass(frozen=True, slots=True)
class Took:
    """Each batch's seconds, by the clock and of a core: of this process, Spark's JVM and the workers."""

    clock: list[float]
    cores: list[float]


def _drive(plan: Plan, batches: int, host: SparkHost) -> Took:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        run = Run(Path(folder), plan, host)
        took = Took([], [])
        released = 0
        for n in range(1, batches + 1):
            used, began = core_seconds(), time.perf_counter()
            released += run.batch(plan.messages * n // batches)
            took.clock.append(time.perf_counter() - began)
            took.cores.append(core_seconds() - used)
            if n % MAINTAIN_EVERY == 0:
                # What a server does beside its ticks: files are joined, and old ones go.
                run.environment.maintain()
        frontier = run.stream.frontier
        run.environment.close()
    if released != plan.updates or frontier != [plan.times]:
        raise AssertionError(f"{released} of {plan.updates} updates came out, frontier {frontier}")
    return took


@contextmanager
def _spark() -> Generator[SparkHost]:
    host = SparkHost(f"local[{CORES}]", WORKERS)
    try:
        host.wait(600)
        yield host
    finally:
        host.stop()


def rate(*, quick: bool) -> list[Figure]:
    plan = Plan(400_000, 100, PER_MESSAGE) if quick else Plan(10_000_000, 1_000, PER_MESSAGE)
    batches = 4 if quick else 20
    with _spark() as host:
        _drive(Plan(200_000, 100, PER_MESSAGE), 2, host)
        took = _drive(plan, batches, host)
    rate = plan.updates / sum(took.clock)
    return [
        Figure(
            f"recovery on Spark, {CORES} cores: {plan.updates:,} updates over {plan.times:,} times, twice, "
            f"shuffled within {NEAR} times, {batches} batches, updates/s",
            f"{rate:,.0f} ({plan.updates / sum(took.cores):,.0f} per second of a core)",
            ">= 250,000",
            rate >= 250_000,
        )
    ]


def later(*, quick: bool) -> list[Figure]:
    batches = 60 if quick else 1_000
    plan = Plan(batches * 2_000, batches, 1_000)
    with _spark() as host:
        took = _drive(plan, batches, host)
    (early, late), (before, after) = (_around(seconds) for seconds in (took.clock, took.cores))
    return [
        Figure(
            f"... a batch of {2 * plan.updates // batches:,} updates: the {batches:,}th beside the 10th",
            f"{late / early:.2f} ({late * 1000:.0f} ms and {early * 1000:.0f} ms); of a core "
            f"{after / before:.2f} ({after * 1000:.0f} ms and {before * 1000:.0f} ms)",
            "<= 1.2",
            late <= 1.2 * early,
        )
    ]


def _around(seconds: list[float]) -> tuple[float, float]:
    """The median around the 10th and before the last."""
    return statistics.median(seconds[10 : 10 + AROUND]), statistics.median(seconds[-AROUND - 1 : -1])
