"""The storage interface as a program uses it, and what the metrics tell of its sources; without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.store import Catalog
from tidemill.engine.serve.ingest_metrics import IngestCollector
from tidemill.errors import DuplicateObject, UndefinedObject, WrongObjectType
from tidemill.ingest.compaction import SparkCompactor
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.ingest.storage import CollectionType, SourceDescription, Storage, StorageCollectionId
from tidemill.persist.environment import Environment
from tidemill.persist.snapshot import InvalidAsOf, NotYetReadable
from tidemill.query.spark import SparkHost
from tidemill.sources.generators.definition import normalise
from tidemill.types.model import INT8, Column, RelationDesc

WAIT_SECONDS = 180.0
PAIRS = RelationDesc((Column("k", INT8), Column("v", INT8)))


@dataclass
class World:
    environment: Environment
    catalog: Catalog
    ingestion: Ingestion
    storage: Storage
    schema: str

    def describe(self, name: str, generator: str = "COUNTER", **options: int) -> SourceDescription:
        named = {option.replace("_", " "): value for option, value in options.items()}
        definition = normalise(generator, named, self.environment.oracle.now())
        return SourceDescription(self.schema, name, definition, f"CREATE SOURCE {name}", interval_ms=100)

    def wait(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def numbers(self, up_to: int) -> str:
        """A counter that has come to its end; its id."""
        (made,) = self.storage.create_sources([self.describe("numbers", TICK_INTERVAL=1, UP_TO=up_to)])
        source = StorageCollectionId(made)
        self.wait(lambda: self.storage.render(source).upper > 0)
        self.wait(lambda: self.count(made) == up_to)
        return made

    def count(self, made: str) -> int:
        rendered = self.storage.render(StorageCollectionId(made))
        with rendered.snapshot(rendered.upper - 1) as snapshot:
            return snapshot.read().num_rows


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    environment = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(environment)
    runner, files = LocalRunner(str(tmp_path / "state")), str(tmp_path / "files")
    ingestion = Ingestion(environment, catalog, runner, files_root=files)
    state = catalog.state
    schema = state.schema(state.database("materialize").id, "public").id
    yield World(environment, catalog, ingestion, Storage(environment, catalog, ingestion), schema)
    ingestion.stop()
    environment.close()


def test_a_source_is_its_data_and_its_bindings(world: World) -> None:
    made = world.numbers(250)
    data = world.storage.render(StorageCollectionId(made))
    bindings = world.storage.render(StorageCollectionId(made, CollectionType.REMAPPING))
    assert [c.name for c in data.desc.columns] == ["counter"]
    assert bindings.desc.columns == ()
    as_of = data.upper - 1
    with data.snapshot(as_of) as snapshot:
        assert sorted(snapshot.read().column("counter").to_pylist()) == list(range(1, 251))
    with bindings.snapshot(as_of) as snapshot:
        assert sum(snapshot.read().column("mz_diff").to_pylist()) == 250
    with pytest.raises(NotYetReadable):
        data.snapshot(data.upper + 60_000)


def test_folders_are_found_below_the_root(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "files" / "stream"
    folder.mkdir(parents=True)
    output = {"name": "stream", "include": [], "envelope": {"kind": "materialize"}, "key": None}
    definition = {"kind": "files", "path": "stream", "output": {**output, "value": {"format": "json"}}}
    (made,) = world.storage.create_sources(
        [SourceDescription(world.schema, "stream", definition, "CREATE SOURCE stream")]
    )
    world.wait(lambda: world.storage.render(StorageCollectionId(made)).upper > 0)


def test_all_sources_or_none(world: World) -> None:
    world.storage.create_sources([world.describe("a")])
    with pytest.raises(DuplicateObject):
        world.storage.create_sources([world.describe("b"), world.describe("a")])
    assert [s.name for s in world.catalog.state.sources()] == ["a"]


def test_compaction_lets_history_go_but_nothing_that_is_needed(world: World) -> None:
    made = world.numbers(100)
    source = StorageCollectionId(made)
    first = world.storage.render(source).since
    world.storage.allow_compaction({made: world.storage.render(source).upper + 60_000})
    after = world.storage.render(source)
    assert first < after.since < after.upper
    assert world.count(made) == 100
    with pytest.raises(InvalidAsOf):
        after.snapshot(first)


def test_tables_are_written_at_one_time_and_have_no_bindings(world: World) -> None:
    state = world.catalog.transact([CreateTableOp(world.schema, n, PAIRS) for n in ("left", "right")])
    left, right = (next(t.id for t in state.tables() if t.name == n) for n in ("left", "right"))
    rows = pa.table({"k": [1, 2], "v": [3, 4], "mz_diff": pa.array([1, 1], pa.int64())})
    at = world.storage.insert({left: rows, right: rows})
    for table in (left, right):
        rendered = world.storage.render(StorageCollectionId(table))
        assert rendered.upper > at
        with rendered.snapshot(at) as snapshot:
            assert snapshot.read().num_rows == 2
        with pytest.raises(WrongObjectType, match="has no bindings"):
            world.storage.render(StorageCollectionId(table, CollectionType.REMAPPING))
    assert world.storage.durability_frontier_updates()[left] > at


def test_what_cannot_be(world: World) -> None:
    made = world.numbers(10)
    rows = pa.table({"counter": [1], "mz_diff": pa.array([1], pa.int64())})
    with pytest.raises(WrongObjectType, match='cannot insert into source "numbers"'):
        world.storage.insert({made: rows})
    with pytest.raises(UndefinedObject):
        world.storage.render(StorageCollectionId("u99"))
    (house,) = world.storage.create_sources([world.describe("house", "AUCTION")])
    with pytest.raises(WrongObjectType, match="has no rows of its own"):
        world.storage.render(StorageCollectionId(house))


def test_frontiers_follow_the_ticks(world: World) -> None:
    (made,) = world.storage.create_sources([world.describe("numbers", TICK_INTERVAL=1000)])
    now = world.environment.oracle.now()
    world.wait(lambda: world.storage.durability_frontier_updates()[made] > now + 200)


def test_the_metrics_tell_of_ticks(world: World) -> None:
    world.numbers(200)
    broken = world.describe("broken", FAIL_AT=0, TICK_INTERVAL=1000)
    (bad,) = world.storage.create_sources([broken])
    item = next(s for s in world.catalog.state.sources() if s.id == bad)
    world.wait(lambda: world.ingestion.report(item).statistics.jobs_failed > 0)
    # It needs no Spark until it is asked to look.
    compactor = SparkCompactor(world.environment, cast("SparkHost", None))
    collector = IngestCollector(world.ingestion, compactor)
    found = {
        (sample.name, sample.labels.get("source"), sample.labels.get("phase")): sample.value
        for family in collector.collect()
        for sample in family.samples
    }
    for phase in ("bind", "job", "commit", "visible"):
        assert found["tidemill_tick_seconds_count", "numbers", phase] >= 1
        assert found["tidemill_tick_seconds_sum", "numbers", phase] > 0
    assert found["tidemill_source_lag_seconds", "numbers", None] < 60
    assert found["tidemill_source_records_behind", "numbers", None] == 0
    assert found["tidemill_source_stalled", "numbers", None] == 0
    assert found["tidemill_source_stalled", "broken", None] == 1
    assert found["tidemill_source_files", "numbers", None] >= 1
    assert found["tidemill_source_messages_received_total", "numbers", None] == 200
    assert found["tidemill_source_updates_committed_total", "numbers", None] == 200
    assert found["tidemill_source_bytes_received_total", "numbers", None] > 0
    assert found["tidemill_source_jobs_failed_total", "broken", None] > 0
    # Of a source without keys.
    assert found["tidemill_source_state_hits_total", "numbers", None] == 0
