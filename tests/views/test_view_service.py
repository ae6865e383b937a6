"""All views of a server, without Spark: views over views, slow and broken ones beside others, drops, and
history that is kept for views that are not open yet."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from views_world import BAD, BAD_TEXT, PyProgram, World, held, judge

from tidemill.catalog.items import MaterializedView
from tidemill.catalog.ops import DropOp
from tidemill.catalog.state import CatalogState
from tidemill.errors import Unavailable, UndefinedObject
from tidemill.ingest.status import RunState
from tidemill.persist.settle import upper_of
from tidemill.views import service
from tidemill.views.service import Views

# For what must come, on a machine however busy.
WAIT_SECONDS = 120.0


class Running(World):
    """With its service. Programs of views in `gates` wait there; those in `broken` fail as a JVM does that
    is not there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gates: dict[str, threading.Event] = {}
        self.waiting: set[str] = set()
        self.broken: set[str] = set()
        self.told: list[str] = []
        self.serve()

    def serve(self) -> Views:
        self.service = Views(
            self.environment, self.catalog, self.bind, on_moved=self._moved, on_lost=self._lost
        )
        self.service.start()
        return self.service

    def _lost(self, error: Exception) -> None:
        raise error

    def _moved(self, shards: Collection[str]) -> None:
        self.told += shards

    def bind(self, state: CatalogState, item: MaterializedView) -> PyProgram:
        program = self.program(state, item)
        answer = program.answer

        def gated(at: int) -> pa.Table:
            if item.name in self.broken:
                raise Unavailable("Spark has ended")
            gate = self.gates.get(item.name)
            if gate is not None:
                self.waiting.add(item.name)
                assert gate.wait(2 * WAIT_SECONDS)
            return answer(at)

        program.answer = gated
        return program

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it does not come"
            time.sleep(0.005)

    def complete(self, name: str, at: int) -> None:
        """Waits as a SELECT does."""
        assert self.service is not None
        views, item = self.service, self.view(name)
        if views.readable(item) <= at:
            views.hurry(item.id)
        self.until(lambda: views.readable(item) > at)

    def check(self, name: str, query: str) -> None:
        assert self.service is not None
        item = self.view(name)
        assert judge(self, query, self.service.shard(item), self.service.readable(item))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Running]:
    world = Running(tmp_path / "data")
    yield world
    for gate in world.gates.values():
        gate.set()
    world.close()


def test_views_over_views_see_what_was_written(world: Running) -> None:
    world.create("one", "filtered")
    world.create("two", "summed", over="one")
    world.create("three", "filtered", over="two")
    at = world.commit({"a": Counter({(1, 4): 1, (2, 5): 2}), "b": Counter({(1, 1): 1})})
    world.complete("three", at)
    world.check("one", "filtered")
    assert world.service is not None
    two, three = world.view("two"), world.view("three")
    assert held(world.service.shard(two), at, world.service.readable(two)) == {(1, 6): 1, (2, 12): 1}
    assert held(world.service.shard(three), at, world.service.readable(three)) == {(1, 7): 1, (2, 13): 1}
    shards = {world.view(n).shard for n in ("one", "two", "three")}
    world.until(lambda: shards <= set(world.told))


def test_an_error_passes_through_and_goes(world: Running) -> None:
    world.create("one", "filtered")
    world.create("two", "summed", over="one")
    at = world.commit({"a": Counter({(1, BAD): 1})})
    world.complete("two", at)
    assert world.service is not None
    views, two = world.service, world.view("two")
    assert held(views.shard(two), at, views.readable(two)) == BAD_TEXT
    world.until(lambda: views.status(two).state is not RunState.HYDRATING)
    status = views.status(two)
    assert (status.state, status.error, status.since) == (RunState.FAILED, BAD_TEXT, at)
    later = world.commit({"a": Counter({(1, BAD): -1, (3, 3): 1})})
    world.complete("two", later)
    world.until(lambda: views.status(two).state is RunState.RUNNING)
    assert held(views.shard(two), later, views.readable(two)) == {(3, 4): 1}
    assert held(views.shard(two), at, views.readable(two)) == BAD_TEXT


def test_a_slow_and_a_broken_view_delay_nobody(world: Running) -> None:
    world.gates["slow"] = threading.Event()
    world.broken.add("broken")
    for name in ("slow", "broken", "good"):
        world.create(name, "filtered")
    world.until(lambda: "slow" in world.waiting)
    for n in range(3):
        world.complete("good", world.commit({"a": Counter({(n, n): 1})}))
    world.check("good", "filtered")
    assert world.service is not None
    views, broken = world.service, world.view("broken")
    world.until(lambda: views.status(broken).state is RunState.STALLED)
    assert views.status(broken).error == "Spark has ended"
    assert views.readable(world.view("slow")) == 0
    world.broken.clear()
    world.gates["slow"].set()
    at = world.commit({"a": Counter({(7, 7): 1})})
    for name in ("slow", "broken"):
        world.complete(name, at)
        world.check(name, "filtered")
    world.until(lambda: views.status(broken).state is RunState.RUNNING)


def test_more_views_than_threads_all_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STEP_THREADS", 2)
    world = Running(tmp_path / "data")
    names = [f"v{n}" for n in range(9)]
    for name in names:
        world.create(name, "filtered")
    at = world.commit({"a": Counter({(1, 5): 1})})
    for name in names:
        world.complete(name, at)
    world.check(names[-1], "filtered")
    world.close()


def test_a_view_is_dropped_at_work(world: Running) -> None:
    world.gates["slow"] = threading.Event()
    item = world.create("slow", "filtered")
    world.until(lambda: "slow" in world.waiting)
    table = world.environment.open_shard(world.table("a").shard)
    world.catalog.transact([DropOp(item.id)])
    assert world.service is not None
    with pytest.raises(UndefinedObject):
        world.service.readable(item)
    world.gates["slow"].set()
    # What it held of its inputs is free again.
    at = world.commit({"a": Counter({(1, 5): 1})})
    world.environment.txns.apply_until(table.id, at)
    world.until(lambda: table.downgrade_since(at) == at)


def test_history_is_kept_for_views_that_are_not_open(world: Running) -> None:
    world.create("view", "summed")
    world.complete("view", world.commit({"a": Counter({(1, 5): 1})}))
    upper = upper_of(world.service.shard(world.view("view"))) if world.service else 0
    world.reopen()
    world.service = Views(
        world.environment, world.catalog, world.bind, on_moved=lambda _: None, on_lost=print
    )
    # It does not run yet: as while the sources under a view are being opened.
    tables = {world.table(n).id for n in ("a", "b")}
    assert world.service.unheld() == tables
    shard = world.environment.open_shard(world.table("a").shard)
    world.commit({"a": Counter({(1, 6): 1})})
    world.environment.txns.apply_until(shard.id, world.history[-1][0])
    world.catalog.maintain(-10_000, world.service.unheld())
    assert shard.since < upper
    world.service.start()
    world.until(lambda: not world.service or not world.service.unheld())
    world.complete("view", world.history[-1][0])
    world.check("view", "summed")
