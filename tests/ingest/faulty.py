"""Sources that go wrong on demand, in the worker or on the driver, and a world of sources on Spark around
them."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from proof.proof_sources import Judge
from support.shipped import Shipped
from tidemill import failpoints
from tidemill.catalog.items import Source as SourceItem
from tidemill.catalog.store import Catalog
from tidemill.engine.relations.live_sources import LiveSources
from tidemill.engine.relations.sources import StatusRow
from tidemill.ingest import service
from tidemill.ingest.service import Ingestion
from tidemill.ingest.slot import SourceSlot
from tidemill.ingest.spark_runner import SparkRunner
from tidemill.ingest.storage import SourceDescription, Storage
from tidemill.persist.environment import Environment
from tidemill.query.spark import SparkHost
from tidemill.sources.contract import ReadLimits, SourceBatch, SourcePiece, SourceReader, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise
from tidemill.sources.offsets import Offsets

# What a worker out of memory may still take, beyond what it has, before it is refused.
SPARE_BYTES = 64 << 20
CHUNK_BYTES = 8 << 20
# On a machine at rest everything that is waited for takes a second or a few.
PATIENCE = 300.0


@dataclass(frozen=True)
class FaultyReader:
    """Reads as `inner` does, unless the file `told` says otherwise: it is looked at in the worker."""

    inner: SourceReader
    told: str

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        fault, _, argument = _read(self.told).partition(" ")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "sleep":
            time.sleep(float(argument))
        if fault == "full":
            # The worker's next part finds no room, as far as the store below can tell.
            failpoints.arm("persist.part.before_fsync=enospc")
        if fault == "memory":
            _exhaust()
        if fault == "raise" and piece.lower <= int(argument) < piece.upper:
            yield from self.inner.read(SourcePiece(piece.partition, piece.lower, int(argument)))
            raise ValueError(f"no row for event {argument}")
        yield from self.inner.read(piece)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""


def _exhaust() -> None:
    """Take memory until the system refuses more; then the limit is lifted, for the worker is used again."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_BYTES, before[1]))
    taken: list[bytearray] = []
    try:
        while True:
            taken.append(bytearray(CHUNK_BYTES))
    finally:
        taken.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


cloudpickle.register_pickle_by_value(sys.modules[__name__])


class FaultySource(UpstreamSource):
    """`inner` with such a reader. The fault `back` is the driver's: the frontier is so much lower."""

    def __init__(self, inner: UpstreamSource, told: str) -> None:
        self.inner = inner
        self.told = told
        self.gauge, self.outputs, self.start = inner.gauge, inner.outputs, inner.start

    def frontier(self, now: int) -> Offsets:
        stands = self.inner.frontier(now)
        fault, _, argument = _read(self.told).partition(" ")
        return Offsets.at(max(0, stands[None] - int(argument))) if fault == "back" else stands

    def reader(self) -> SourceReader:
        return Shipped(FaultyReader(self.inner.reader(), self.told))

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        return self.inner.cut(lower, upper, limits)

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        return self.inner.split(lower, upper, ways)


class World:
    """Sources over a data directory, read by the Spark session of the test run. `told` holds a file per
    source that says what is wrong with it."""

    interval = 250

    def __init__(self, data_dir: str, spark: SparkHost, told: Path) -> None:
        self.data_dir = data_dir
        self.told = told
        told.mkdir(exist_ok=True)
        self.environment = Environment.open(data_dir)
        self.catalog = Catalog.open(self.environment)
        self.ingestion = Ingestion(self.environment, self.catalog, SparkRunner(spark, str(told / "state")))
        self._live = LiveSources(self.ingestion, self.catalog)
        self._storage = Storage(self.environment, self.catalog, self.ingestion)

    def open(self, definition: Mapping[str, Any], files_root: str = "") -> UpstreamSource:
        """As `sources.definition`, with the faults that the definition's seed or start has a file for."""
        opened = open_source(definition, files_root)
        return FaultySource(opened, str(self.told / str(definition["started"])))

    def create(self, name: str, generator: str, options: Mapping[str, Any]) -> SourceItem:
        """The time at which it starts is also by what it is known, so each has its own."""
        started = self.environment.oracle.write_ts()
        self.environment.oracle.complete(started)
        state = self.catalog.state
        schema = state.schema(state.database("materialize").id, "public").id
        definition = normalise(generator, options, started)
        (made,) = self._storage.create_sources(
            [SourceDescription(schema, name, definition, "", interval_ms=self.interval)]
        )
        return next(s for s in self.catalog.state.sources() if s.id == made)

    def hurt(self, fault: str, *sources: SourceItem) -> None:
        """What the file says from now on; "" ends it."""
        for source in sources:
            (self.told / str(json.loads(source.definition)["started"])).write_text(fault)

    def status(self, source: SourceItem) -> StatusRow:
        """As `mz_source_statuses` tells it."""
        return next(row for row in self._live.statuses() if row.source_id == source.id)

    def slot(self, source: SourceItem) -> SourceSlot:
        slot = self.ingestion.ticker.slot(source.id)
        assert slot is not None
        return slot

    def bindings(self, source: SourceItem) -> int:
        return len(self.slot(source).machine.remap.bindings(0))

    def ingested(self, source: SourceItem) -> int:
        return self.slot(source).machine.ingested[None]

    def due(self, source: SourceItem) -> int:
        """The event that comes next upstream: nobody can have read it yet."""
        return self.slot(source).machine.source.frontier(self.environment.oracle.now())[None]

    def wait(self, what: Callable[[], bool], message: str, seconds: float = PATIENCE) -> float:
        """How long it took."""
        began = time.monotonic()
        while not what():
            assert time.monotonic() - began < seconds, f"{message}: {self._live.statuses()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def wait_for_ticks(self, more: int, *sources: SourceItem) -> float:
        """Until each has been bound, read and committed so many times more."""
        wanted = {s.id: self.ticks(s) + more for s in sources}
        return self.wait(lambda: all(self.ticks(s) >= wanted[s.id] for s in sources), "they stand still")

    def ticks(self, source: SourceItem) -> int:
        return self.ingestion.report(source).statistics.ticks

    def close(self) -> dict[str, int]:
        """Judge what is in the files; returns how many events of each source are there."""
        self.ingestion.stop()
        self.environment.close()
        return Judge(self.data_dir).check()


def patch(monkeypatch: Any, world: World) -> None:
    """Sources of the world are opened with their faults."""
    monkeypatch.setattr(service, "open_source", world.open)
