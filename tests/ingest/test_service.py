"""Sources between the catalog and their ticks, without Spark: what is made, changed and dropped while others
are at work, or cannot be opened."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tidemill.catalog.items import Source, SourceTable
from tidemill.catalog.ops import DropOp
from tidemill.catalog.source_ops import CreateSourceOp, CreateSourceTable, SetSourceInterval
from tidemill.catalog.store import Catalog
from tidemill.ingest import service as service_module
from tidemill.ingest.machine import SourceMachine
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import OPEN_THREADS, Ingestion
from tidemill.ingest.status import RunState
from tidemill.ingest.unit import Unit, UnitFacts
from tidemill.persist.environment import Environment
from tidemill.sources.contract import UpstreamSource as Upstream
from tidemill.sources.definition import Definition, open_source
from tidemill.sources.generators.definition import normalise
from tidemill.sources.offsets import Offsets
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

WAIT_SECONDS = 180.0
# Longer than anybody may wait for a job that waits.
GATE_SECONDS = 2 * WAIT_SECONDS
INTERVAL = 100


class Gate(LocalRunner):
    """Jobs wait while it is shut."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.open = threading.Event()
        self.open.set()
        self.waits = threading.Event()

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        if not self.open.is_set():
            self.waits.set()
            assert self.open.wait(GATE_SECONDS)
        return super().run(units, lane=lane, seconds=seconds)

    def shut(self) -> None:
        """Returns when a job waits."""
        self.waits.clear()
        self.open.clear()
        assert self.waits.wait(WAIT_SECONDS)


class World:
    def __init__(self, folder: Path) -> None:
        self.environment = Environment.open(str(folder / "data"))
        self.catalog = Catalog.open(self.environment)
        self.gate = Gate(str(folder / "state"))
        self.ingestion = Ingestion(self.environment, self.catalog, self.gate)
        state = self.catalog.state
        self.schema = state.schema(state.database("materialize").id, "public").id

    def auction(self, name: str, definition: Definition | None = None) -> Source:
        """A source of five outputs of which nobody wants any yet."""
        options = {"TICK INTERVAL": 10_000}
        definition = definition or normalise("AUCTION", options, self.environment.oracle.now())
        op = CreateSourceOp(
            schema=self.schema,
            name=name,
            type="load-generator",
            definition=json.dumps(definition),
            sql="",
            desc=None,
            envelope=None,
            remap_desc=_AUCTION.gauge.remap_desc,
            progress_desc=_AUCTION.gauge.progress_desc,
            interval_ms=INTERVAL,
        )
        self.catalog.transact([op])
        return next(s for s in self.catalog.state.sources() if s.name == name)

    def table(self, source: Source, output: str, name: str | None = None) -> SourceTable:
        desc = next(o.desc for o in _AUCTION.outputs if o.name == output)
        name = name or f"{source.name}_{output}"
        self.catalog.transact([CreateSourceTable(self.schema, name, source.id, output, desc, "none")])
        return next(t for t in self.catalog.state.source_tables(source.id) if t.name == name)

    def wait(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ticks(self, source: Source, more: int = 3) -> None:
        wanted = self.ingestion.report(source).statistics.ticks + more
        self.wait(lambda: self.ingestion.report(source).statistics.ticks >= wanted)

    def check(self, table: SourceTable) -> int:
        """The table has the rows of every event that is bound, each once, at the first time that covers it
        and at which the table was there. Returns how many."""
        now = self.environment.oracle.read_ts()
        self.wait(lambda: self.ingestion.readable(table) > now)
        readable = self.ingestion.readable(table)
        machine = self.ingestion.machine(table)
        assert machine is not None
        output = [o.name for o in machine.source.outputs].index(table.output)
        expected: Counter[tuple[object, ...]] = Counter()
        for binding in machine.remap.bindings(0):
            if binding.time >= readable:
                break
            for piece in machine.source.split(binding.lower, binding.upper, 1):
                for batch in machine.source.reader().read(piece):
                    if batch.output == output:
                        rows = zip(*(c.to_pylist() for c in batch.rows.columns), strict=True)
                        expected.update((max(binding.time, table.created), *row) for row in rows)
        found: Counter[tuple[object, ...]] = Counter()
        shard = self.ingestion.shard(table)
        with shard.snapshot(readable - 1, readable=readable) as snapshot:
            for part in snapshot.parts:
                rows = snapshot.read_part(part)
                names = [TIME_COLUMN, *(n for n in rows.schema.names if not n.startswith("mz_"))]
                values = zip(*(rows.column(n).to_pylist() for n in names), strict=True)
                for row, diff in zip(values, rows.column(DIFF_COLUMN).to_pylist(), strict=True):
                    found[row] += diff
        assert found == expected
        return sum(found.values())

    def close(self) -> None:
        self.gate.open.set()
        self.ingestion.stop()
        self.environment.close()


_AUCTION = open_source(normalise("AUCTION", {}, 0))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_a_table_is_not_readable_before_it_is_fed(world: World) -> None:
    """Its source is at work when it is made: until that has ended nobody has told it of the table, and what
    the source has read says nothing about the table."""
    source = world.auction("house")
    world.ticks(source)
    first = world.table(source, "bids")
    world.ticks(source)
    assert world.check(first) > 0
    world.gate.shut()
    later = world.table(source, "auctions")
    assert world.ingestion.readable(later) == 0
    # The others go on as before.
    assert world.ingestion.readable(first) > later.created - 60_000
    world.gate.open.set()
    assert world.check(later) > 0
    assert world.check(first) > 0


def test_a_table_that_was_made_while_its_source_was_being_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> SourceMachine:
        machine = SourceMachine(*args, **kwargs)
        opening.set()
        assert go_on.wait(WAIT_SECONDS)
        return machine

    monkeypatch.setattr(service_module, "SourceMachine", slow)
    source = world.auction("house")
    assert opening.wait(WAIT_SECONDS)
    table = world.table(source, "bids")
    go_on.set()
    world.ticks(source)
    assert world.check(table) > 0


def test_a_table_that_was_dropped_and_made_anew_begins_anew(world: World) -> None:
    source = world.auction("house")
    # Three bindings have three events, of which the last one is a bid.
    world.ticks(source)
    old = world.table(source, "bids", "old")
    assert world.check(old) > 0
    world.gate.shut()
    world.catalog.transact([DropOp(old.id)])
    new = world.table(source, "bids", "new")
    world.gate.open.set()
    assert world.check(new) > 0


def test_a_source_that_waits_to_be_opened_is_told_from_one_that_is_being_opened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, go_on = threading.Semaphore(0), threading.Event()

    def slow(definition: Definition, files_root: str = "") -> Upstream:
        opening.release()
        assert go_on.wait(WAIT_SECONDS)
        return open_source(definition, files_root)

    monkeypatch.setattr(service_module, "open_source", slow)
    first = [world.auction(f"house{n}") for n in range(OPEN_THREADS)]
    for _ in first:
        assert opening.acquire(timeout=WAIT_SECONDS)
    last = world.auction("last")

    def state(source: Source) -> RunState:
        return world.ingestion.report(source).status.state

    assert {state(source) for source in first} == {RunState.STARTING}
    assert state(last) is RunState.CREATED
    go_on.set()
    world.ticks(last)
    assert state(last) is RunState.RUNNING


def test_sources_that_cannot_be_opened_keep_nobody_from_being_opened(world: World) -> None:
    bad = [world.auction(f"bad{n}", {"kind": "of another version"}) for n in range(OPEN_THREADS + 1)]
    good = world.auction("good")
    world.ticks(good)
    for source in bad:
        world.wait(lambda s=source: world.ingestion.report(s).status.state is RunState.STALLED)
        assert world.ingestion.report(source).status.error == "the source's definition cannot be read"


def test_what_a_source_learns_is_known_to_whoever_opens_it_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str | None] = []

    def open_(definition: Definition, files_root: str = "") -> Upstream:
        known = definition.get("topic_id")
        opened.append(known)
        source = open_source({k: v for k, v in definition.items() if k != "topic_id"}, files_root)
        source.learned = {"topic_id": "A"} if known is None else None
        return source

    monkeypatch.setattr(service_module, "open_source", open_)
    source = world.auction("house")
    table = world.table(source, "bids")
    world.check(table)
    (kept,) = world.catalog.state.sources()
    assert json.loads(kept.definition)["topic_id"] == "A"
    world.ingestion.stop()
    opened.clear()
    world.ingestion = Ingestion(world.environment, world.catalog, world.gate)
    world.check(table)
    assert opened == ["A"]


def test_what_a_source_learns_is_known_if_it_is_opened_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table with an output of its own is made while the first look at the upstream is under way."""
    opened: list[str | None] = []
    looking, go_on = threading.Event(), threading.Event()

    def open_(definition: Definition, files_root: str = "") -> Upstream:
        known = definition.get("topic_id")
        opened.append(known)
        own = {k: v for k, v in definition.items() if k not in ("topic_id", "outputs")}
        source = open_source(own, files_root)
        if known is None:
            source.learned = {"topic_id": "A"}
            look = source.frontier

            def slow(now: int) -> Offsets:
                looking.set()
                assert go_on.wait(WAIT_SECONDS)
                return look(now)

            monkeypatch.setattr(source, "frontier", slow)
        return source

    monkeypatch.setattr(service_module, "open_source", open_)
    source = world.auction("house")
    assert looking.wait(WAIT_SECONDS)
    desc = next(o.desc for o in _AUCTION.outputs if o.name == "bids")
    op = CreateSourceTable(world.schema, "t", source.id, "bids", desc, "none", {"name": "bids"})
    world.catalog.transact([op])
    go_on.set()
    world.wait(lambda: len(opened) > 1)
    assert opened == [None, "A"]


def test_changes_of_a_source_at_work_keep_nobody_waiting(world: World) -> None:
    source = world.auction("house")
    table = world.table(source, "bids")
    world.check(table)
    world.gate.shut()
    for n in range(3 * OPEN_THREADS):
        world.catalog.transact([SetSourceInterval(source.id, 1000 + n)])
    other = world.auction("other")
    world.wait(lambda: world.ingestion.machine(other) is not None)
    world.gate.open.set()
    machine = world.ingestion.machine(source)
    assert machine is not None
    world.wait(lambda: machine.timing.interval == 1000 + 3 * OPEN_THREADS - 1)
    world.ticks(other)


def test_a_source_that_is_dropped_at_work(world: World) -> None:
    source = world.auction("house")
    table = world.table(source, "bids")
    world.check(table)
    world.gate.shut()
    shard = world.ingestion.shard(table)
    version = shard.version
    world.catalog.transact([DropOp(source.id, cascade=True)])
    other = world.auction("other")
    world.gate.open.set()
    world.ticks(other)
    assert [s.name for s, _, _ in world.ingestion.all()] == ["other"]
    assert shard.version == version
