"""All sinks of a server: they follow the catalog, are woken by their collection, wait after a failure, and
one that fails hurts no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidemill import stepping
from tidemill.catalog.connection_ops import AlterConnectionOp, CreateConnectionOp
from tidemill.catalog.items import Sink
from tidemill.catalog.ops import CreateTableOp, DropOp, Op
from tidemill.catalog.sink_ops import CreateSinkOp
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.ingest.status import RunState
from tidemill.persist.environment import Environment
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.service import Sinks
from tidemill.sinks.target import SinkError, Written
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4),))
SECONDS = 60.0


class Scripted:
    """In the place of a machine: what its steps do is said by the test."""

    def __init__(self) -> None:
        self.steps = 0
        self.holding = self.begun = self.cancelled = self.closed = False
        self.frontier = 0
        self.before: list[Scripted] = []
        self.error: Exception | None = None
        self.resting = threading.Event()
        self.resting.set()

    def step(self) -> bool:
        self.steps += 1
        assert self.resting.wait(SECONDS)
        if self.error is not None:
            raise self.error
        self.holding = self.begun = True
        self.frontier += 1
        return False

    def take_over(self, other: Scripted) -> None:
        self.before.append(other)
        other.closed = True

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, folder: Path) -> None:
        self.environment = Environment.open(str(folder))
        self.catalog = Catalog.open(self.environment)
        # By sink, those that were opened, and an error that keeps the next from it.
        self.machines: dict[str, list[Scripted]] = {}
        self.refused: dict[str, SinkError] = {}
        self.sinks = Sinks(self.catalog, self._opened, lambda _, sink: f"shard of {sink.relation}")

    def _opened(self, _: CatalogState, sink: Sink, written: Written) -> SinkMachine:
        written.messages += 1
        if sink.name in self.refused:
            raise self.refused[sink.name]
        machine = Scripted()
        self.machines.setdefault(sink.name, []).append(machine)
        return cast("SinkMachine", machine)

    def change(self, *ops: Op) -> CatalogState:
        return self.catalog.transact(ops)

    def sink(self, name: str, relation: str, connections: tuple[str, ...] = ()) -> None:
        schema = self.catalog.state.resolve_schema(("public",), "materialize").id
        self.change(
            CreateSinkOp(
                schema, name, "files", name, "{}", "CREATE SINK", relation, DESC, None, True, connections
            )
        )

    def item(self, name: str) -> Any:
        return self.catalog.state.resolve_item((name,), "materialize", ("public",))

    def state(self, name: str) -> RunState:
        return next(status.state for sink, status, _, _ in self.sinks.all() if sink.name == name)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data")
    schema = world.catalog.state.resolve_schema(("public",), "materialize").id
    world.change(CreateTableOp(schema, "t", DESC), CreateConnectionOp(schema, "k", "kafka", "{}"))
    try:
        yield world
    finally:
        world.sinks.stop()
        world.environment.close()


def test_a_sink_is_run_from_its_creation_to_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "IDLE_SECONDS", 3600.0)
    table = world.item("t").id
    world.sink("s", table)
    assert (world.state("s"), world.sinks.unheld()) == (RunState.CREATED, {table})
    world.sinks.start()
    until(lambda: world.state("s") is RunState.RUNNING)
    (machine,) = world.machines["s"]
    assert world.sinks.unheld() == frozenset()
    before = machine.steps
    world.sinks.moved(["another shard"])
    world.sinks.moved([f"shard of {table}"])
    until(lambda: machine.steps == before + 1)
    until(lambda: [f for _, _, _, f in world.sinks.all()] == [machine.frontier])
    world.change(DropOp(world.item("s").id))
    until(lambda: machine.closed)
    assert machine.cancelled and world.sinks.all() == []


def test_one_that_fails_waits_and_hurts_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "FIRST_RETRY_SECONDS", 0.01)
    table = world.item("t").id
    world.refused["bad"] = SinkError("no such place", detail="It is not there.", hint="Make it.")
    world.sink("bad", table)
    world.sink("good", table)
    world.sinks.start()
    until(lambda: world.state("bad") is RunState.STALLED and world.state("good") is RunState.RUNNING)
    (told,) = [s for sink, s, _, _ in world.sinks.all() if sink.name == "bad"]
    assert (told.error, told.detail, told.hint) == ("no such place", "It is not there.", "Make it.")
    assert world.sinks.unheld() == {table}
    del world.refused["bad"]
    until(lambda: world.state("bad") is RunState.RUNNING)
    (machine,) = world.machines["bad"]
    machine.error = ZeroDivisionError("a bug")
    world.sinks.moved([f"shard of {table}"])
    until(lambda: world.state("bad") is RunState.STALLED)
    # What it held is still held, and it goes on with the same machine.
    assert not machine.closed and world.sinks.unheld() == frozenset()
    machine.error = None
    until(lambda: world.state("bad") is RunState.RUNNING)
    assert len(world.machines["bad"]) == 1


def test_a_connection_that_changes_opens_it_anew(world: World) -> None:
    connection = world.item("k")
    world.sink("s", world.item("t").id, (connection.id,))
    world.sinks.start()
    until(lambda: world.state("s") is RunState.RUNNING)
    world.change(AlterConnectionOp(connection.id, "{}", '{"brokers":["h:1"]}'))
    until(lambda: len(world.machines["s"]) == 2 and world.machines["s"][1].begun)
    first, second = world.machines["s"]
    assert second.before == [first] and first.closed


def test_a_step_under_way_is_told_to_end(world: World) -> None:
    world.sink("s", world.item("t").id)
    world.sinks.start()
    until(lambda: world.state("s") is RunState.RUNNING)
    (machine,) = world.machines["s"]
    machine.resting.clear()
    until(lambda: machine.steps > machine.frontier)
    world.change(DropOp(world.item("s").id))
    assert machine.cancelled and not machine.closed
    machine.resting.set()
    until(lambda: machine.closed)
