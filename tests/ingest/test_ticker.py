"""Many sources along one clock, without Spark: what fails or floods is alone with it (I5)."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidemill.errors import TidemillError
from tidemill.ingest import keyed
from tidemill.ingest import ticker as ticker_module
from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.runner import JobFailed, LocalRunner
from tidemill.ingest.slot import SourceSlot
from tidemill.ingest.status import RunState
from tidemill.ingest.ticker import ALONE_LANE, SHARED_JOBS, SHARED_LANE, Ticker
from tidemill.ingest.unit import Unit, UnitFacts
from tidemill.persist.environment import Environment
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import (
    ReadLimits,
    SourceBatch,
    SourcePiece,
    SourceReader,
    UpstreamError,
    UpstreamSource,
)
from tidemill.sources.definition import open_source
from tidemill.sources.generators.definition import normalise
from tidemill.sources.offsets import Offsets
from tidemill.time.clock import Clock, SystemClock

WAIT_SECONDS = 180.0


class Recording(LocalRunner):
    """Remembers which sources shared which job; `poison` makes a job that carries it fail as a whole, and
    `held` makes jobs of sources that go alone wait."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.jobs: list[tuple[str, list[str]]] = []
        self.poison: str | None = None
        self.error: Exception = JobFailed("the worker died")
        self.held: threading.Event | None = None
        # How long a job takes at least; how many ran at once at most.
        self.seconds = 0.0
        self.running = self.most = 0
        self._lock = threading.Lock()

    def forget(self) -> None:
        """As on another machine: no state is at hand."""
        self._folder += "-other"

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        names = [u.source for u in units]
        self.jobs.append((lane, names))
        if self.poison in names:
            raise self.error
        if self.held is not None and lane == ALONE_LANE:
            assert self.held.wait(2 * WAIT_SECONDS)
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            time.sleep(self.seconds)
            return super().run(units, lane=lane, seconds=seconds)
        finally:
            with self._lock:
                self.running -= 1


class SleepyReader:
    def __init__(self, inner: SourceReader, seconds: float) -> None:
        self._inner, self._seconds = inner, seconds

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        time.sleep(self._seconds)
        return self._inner.read(piece)


class Sleepy(UpstreamSource):
    """A counter whose upstream takes its time to answer, or to be read, or fails."""

    def __init__(
        self,
        inner: UpstreamSource,
        seconds: float = 0.0,
        error: UpstreamError | None = None,
        read_seconds: float = 0.0,
    ) -> None:
        self.inner = inner
        self.gauge, self.outputs, self.start = inner.gauge, inner.outputs, inner.start
        self.seconds = seconds
        self.error = error
        self.read_seconds = read_seconds
        # It answers only once this is set.
        self.answers: threading.Event | None = None

    def frontier(self, now: int) -> Offsets:
        time.sleep(self.seconds)
        if self.answers is not None:
            assert self.answers.wait(2 * WAIT_SECONDS)
        if self.error is not None:
            raise self.error
        return self.inner.frontier(now)

    def reader(self) -> SourceReader:
        return SleepyReader(self.inner.reader(), self.read_seconds)


class Scattered(Sleepy):
    """Its ranges cannot be cut: a bug of the source."""

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        raise ZeroDivisionError("no ways")


class World:
    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.environment = Environment.open(str(folder / "data"), clock=clock)
        self.runner = Recording(str(folder / "state"))
        self.ticker = Ticker(self.environment.oracle, self.runner)
        self.ticker.start()

    def counter(self, **options: int) -> UpstreamSource:
        now = self.environment.oracle.now()
        named = {name.replace("_", " "): value for name, value in options.items()}
        return open_source(normalise("COUNTER", {"TICK INTERVAL": 1000, **named}, now))

    def add(
        self,
        name: str,
        source: UpstreamSource,
        limits: ReadLimits | None = None,
        *,
        alone: bool = False,
        interval: int = 100,
    ) -> SourceSlot:
        oracle = self.environment.oracle
        created = oracle.write_ts()
        oracle.complete(created)
        remap = self.environment.create_shard(f"{name}-remap", source.gauge.remap_desc, since=created)
        shard = self.environment.create_shard(name, source.outputs[0].desc, since=created)
        machine = SourceMachine(
            name,
            source,
            Remap(remap, source.gauge, source.start),
            [TableFeed(0, shard, created)],
            TickTiming(created, interval),
            home=self.environment,
            clock=oracle,
            limits=limits,
        )
        slot = SourceSlot(name, name, machine, alone=alone)
        self.ticker.add(slot)
        return slot

    def wait(self, what: Callable[[], bool]) -> None:
        assert self.ticker.wait_for(what, time.monotonic() + WAIT_SECONDS)

    def ticks(self, *slots: SourceSlot, more: int = 3) -> None:
        """Until each has ticked so many times more."""
        wanted = {s.id: s.report.statistics.ticks + more for s in slots}
        self.wait(lambda: all(s.report.statistics.ticks >= wanted[s.id] for s in slots))

    def close(self) -> None:
        self.ticker.stop()
        self.environment.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_what_is_small_shares_a_job_and_a_time(world: World) -> None:
    a, b = world.add("a", world.counter()), world.add("b", world.counter())
    world.ticks(a, b, more=5)
    world.wait(lambda: any(lane == SHARED_LANE and len(names) == 2 for lane, names in world.runner.jobs))

    def shared_times() -> set[int]:
        first, second = ({x.time for x in s.machine.remap.bindings(0)} for s in (a, b))
        return first & second

    world.wait(lambda: len(shared_times()) >= 3)
    assert a.report.status.state is RunState.RUNNING
    assert a.machine.readable > world.environment.oracle.now() - 60_000


def test_a_source_that_fails_is_told_and_hurts_nobody(world: World) -> None:
    good = world.add("good", world.counter())
    bad = world.add("bad", world.counter(FAIL_AT=5))
    world.wait(lambda: bad.report.status.state is RunState.STALLED)
    assert bad.report.status.error is not None
    began, failures = time.monotonic(), bad.failures
    world.ticks(good, more=5)
    assert good.report.statistics.jobs_failed == 0
    # Twice as long from each attempt to the next.
    assert bad.failures <= failures + 1 + math.log2(1 + time.monotonic() - began)
    # What it could read before stays bound, and nothing of it is there in half.
    assert len(bad.machine.feeds[0].shard.parts) <= 1


def test_a_bug_of_one_source_is_not_told_of_another(world: World) -> None:
    good = world.add("good", world.counter())
    bad = world.add("bad", Scattered(world.counter()))
    world.ticks(good, more=8)
    assert good.report.statistics.jobs_failed == 0
    world.wait(lambda: bad.report.status.state is RunState.STALLED)
    assert bad.report.status.error == "ZeroDivisionError: no ways"


def test_however_many_go_alone_the_others_keep_their_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker_module, "JOB_THREADS", 2)
    monkeypatch.setattr(ticker_module, "ALONE_THREADS", 1)
    world = World(tmp_path)
    world.runner.held = threading.Event()
    others = [world.add(f"other{n}", world.counter(), alone=True) for n in range(3)]
    world.ticks(world.add("calm", world.counter()), more=5)
    assert not any(slot.report.statistics.ticks for slot in others)
    world.runner.held.set()
    world.ticks(*others, more=1)
    world.close()


def test_sources_of_odd_intervals_share_jobs_when_there_are_many(world: World) -> None:
    world.runner.seconds = 0.2
    slots = [world.add(f"s{n}", world.counter(), interval=101 + n) for n in range(30)]
    world.ticks(*slots, more=3)
    assert world.runner.most <= SHARED_JOBS
    # One job for each would take each some twenty times as long.
    sizes = [len(names) for lane, names in world.runner.jobs if lane == SHARED_LANE]
    assert sum(sizes) / len(sizes) > 3


def test_a_source_that_cannot_be_reached_recovers(world: World) -> None:
    source = Sleepy(world.counter(), error=UpstreamError("the upstream is down"))
    slot = world.add("down", source)
    world.wait(lambda: slot.report.status.state is RunState.STALLED)
    assert slot.report.status.error == "the upstream is down"
    source.error = None
    world.wait(lambda: slot.report.status.state is RunState.RUNNING)
    world.ticks(slot, more=1)


def test_an_upstream_that_goes_away_is_told_once_however_it_shows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(UpstreamError):
        transient = True
        sqlstate = "08001"

    def fail(error: UpstreamError) -> None:
        source.error = error
        world.wait(lambda: slot.report.status.error == error.primary)

    source = Sleepy(world.counter(), error=Away("it cannot be reached"))
    slot = world.add("a", source)
    fail(Away("it cannot be reached"))
    fail(Away("it has no leader"))
    fail(UpstreamError("it is another one"))
    source.error = None
    world.ticks(slot, more=1)
    fail(Away("it cannot be reached"))
    told = [r.getMessage() for r in caplog.records if "is stalled" in r.getMessage()]
    assert [t.removeprefix("source a is stalled: ") for t in told] == [
        "it cannot be reached",
        "it is another one",
        "it cannot be reached",
    ]


def test_nobody_waits_for_an_upstream_that_is_slow_to_answer(world: World) -> None:
    source = Sleepy(world.counter(), seconds=0.3)
    slow = world.add("slow", source)
    fast = world.add("fast", world.counter())
    world.ticks(fast, slow, more=2)
    source.answers = threading.Event()
    # One that was asked before may still be answered.
    seen = slow.report.statistics.ticks
    world.ticks(fast, more=8)
    assert slow.report.statistics.ticks <= seen + 1
    source.answers.set()
    world.ticks(slow, more=2)


def test_a_unit_that_takes_too_long_goes_on_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker_module, "SHARED_UNIT_SECONDS", 0.05)
    slow = world.add("slow", Sleepy(world.counter(), read_seconds=0.1))
    world.ticks(slow, more=2)
    assert (ALONE_LANE, ["slow"]) in world.runner.jobs
    assert slow.report.status.state is RunState.RUNNING
    assert slow.report.statistics.jobs_failed == 0
    assert slow.report.slow is not None


def test_a_state_that_is_gone_is_filled_in_a_job_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = world.environment.oracle.now()
    source = open_source(
        normalise("KEY VALUE", {"KEYS": 500, "SNAPSHOT ROUNDS": 1, "TICK INTERVAL": 1000}, now)
    )
    slot = world.add("keyed", source)
    world.ticks(slot)
    before = slot.report.statistics.state_misses
    monkeypatch.setattr(keyed, "FILL_ROWS", 100)
    world.runner.jobs.clear()
    world.runner.forget()
    world.wait(lambda: slot.report.statistics.state_misses > before)
    world.ticks(slot)
    assert (ALONE_LANE, ["keyed"]) in world.runner.jobs
    assert slot.report.status.state is RunState.RUNNING and slot.report.statistics.jobs_failed == 0
    # Then it shares again.
    world.runner.jobs.clear()
    world.wait(lambda: (SHARED_LANE, ["keyed"]) in world.runner.jobs)


def test_a_slow_tick_is_told_in_the_log_with_its_slowest_phase(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ticker_module, "SLOW_SECONDS", 0.5)
    world.ticks(world.add("a", world.counter()), more=2)
    caplog.clear()
    world.runner.seconds = 1.0

    def told() -> bool:
        # A disk that is busy may make another phase the slowest, now and then.
        line = r"slow tick of source a: \d+ ms, most of it in job \(.*\)"
        return any(re.fullmatch(line, record.getMessage()) for record in list(caplog.records))

    world.wait(told)


class JumpingClock(SystemClock):
    """The machine's, with a wall clock that somebody sets."""

    def __init__(self) -> None:
        self.by_us = 0

    def wall_us(self) -> int:
        return super().wall_us() + self.by_us


def test_jumps_of_the_clock(tmp_path: Path) -> None:
    clock = JumpingClock()
    world = World(tmp_path, clock)
    slot = world.add("a", world.counter())
    readable = 0
    for days in (0, 1, -3, 2):
        clock.by_us += days * 86_400_000_000
        world.ticks(slot, more=3)
        assert slot.machine.readable >= readable
        readable = slot.machine.readable
    times = [binding.time for binding in slot.machine.remap.bindings(0)]
    assert times == sorted(set(times))
    # No time is taken from a wrong future.
    assert times[-1] < JumpingClock().wall_us() // 1000 + 60_000
    world.close()


def test_a_round_goes_on_without_those_that_do_not_answer(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.runner.ready = False
    silent = Sleepy(world.counter())
    silent.answers = threading.Event()
    slots = world.add("silent", silent), world.add("other", world.counter())
    time.sleep(0.2)
    world.runner.ready = True
    # Both are due at once.
    world.wait(lambda: slots[1].report.statistics.ticks > 0)
    assert slots[0].report.statistics.ticks == 0
    silent.answers.set()
    world.ticks(slots[0], more=1)
    world.close()


def test_a_flood_goes_alone_and_arrives_whole(world: World) -> None:
    calm = world.add("calm", world.counter())
    flood = world.add("flood", world.counter(TICK_INTERVAL=1, UP_TO=300_000), ReadLimits(records=60_000))
    world.wait(lambda: flood.machine.ingested == Offsets.at(300_000))
    world.ticks(calm, more=2)
    assert (ALONE_LANE, ["flood"]) in world.runner.jobs
    shard = flood.machine.feeds[0].shard
    assert sum(part.rows for part in shard.parts) == 300_000
    # It has caught up, and is back among the others.
    world.wait(lambda: not flood.alone)


@pytest.mark.parametrize("error", [JobFailed("the worker died"), TypeError("cannot pickle")], ids=repr)
def test_a_job_that_fails_as_a_whole_is_tried_one_by_one(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    blamed: list[str] = []
    failed = SourceSlot.failed

    def note(slot: SourceSlot, error: TidemillError) -> None:
        blamed.append(slot.id)
        failed(slot, error)

    monkeypatch.setattr(SourceSlot, "failed", note)
    world.runner.poison, world.runner.error = "bad", error
    world.runner.ready = False
    good, bad = world.add("good", world.counter()), world.add("bad", world.counter())
    time.sleep(0.2)
    # Both are due at once, and share their first job.
    world.runner.ready = True
    world.wait(lambda: bad.report.status.state is RunState.STALLED)
    world.ticks(good, more=4)
    assert good.report.status.state is RunState.RUNNING
    assert set(blamed) == {"bad"}
    world.runner.poison = None
    world.ticks(bad, more=2)
    assert bad.report.status.state is RunState.RUNNING


def test_a_removed_source_stops(world: World) -> None:
    a, b = world.add("a", world.counter()), world.add("b", world.counter())
    world.ticks(a, b, more=2)
    world.ticker.remove("a")
    world.wait(lambda: not a.busy)
    version = a.machine.feeds[0].shard.version
    world.ticks(b, more=4)
    assert a.machine.feeds[0].shard.version == version


def test_nothing_runs_without_a_runner(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.runner.ready = False
    slot = world.add("a", world.counter())
    time.sleep(0.5)
    assert slot.report.statistics.ticks == 0
    assert slot.report.status.state is RunState.STARTING
    world.runner.ready = True
    world.ticks(slot)
    world.close()
