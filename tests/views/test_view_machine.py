"""A materialized view against a model: random histories with errors, steps that die at every named place,
restarts, and history that is let go. At each time that is complete the view holds its query's answer, and
what was complete once never changes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from views_world import (
    BAD,
    BAD_TEXT,
    QUERIES,
    LeapingQuery,
    NoAnswer,
    PyProgram,
    Rows,
    World,
    expected,
    held,
    interesting,
    judge,
)

from support.shards import memory_folder
from tidemill import failpoints
from tidemill.persist.settle import upper_of
from tidemill.types.arrow import TIME_COLUMN
from tidemill.types.kernels import pc
from tidemill.views.error_follower import Span
from tidemill.views.machine import FP_APPENDED, FP_BEFORE_APPEND, FP_PART, ViewHealth, ViewMachine

PLACES = (FP_BEFORE_APPEND, FP_PART, FP_APPENDED, "persist.part.written")

_rows = st.dictionaries(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 3, BAD])), st.integers(1, 2), max_size=3
)


def finish(machine: ViewMachine) -> None:
    """Steps until it is complete at a time that is handed out now."""
    until = machine.program.now()
    for _ in range(1000):
        machine.step()
        if machine.readable >= until:
            return
    raise AssertionError(f"the view stays at {machine.readable}, before {until}")


class ViewModel(RuleBasedStateMachine):
    @initialize(query=st.sampled_from(sorted(QUERIES)), in_parts=st.booleans(), leaps=st.booleans())
    def begin(self, query: str, in_parts: bool, leaps: bool) -> None:
        self.folder = tempfile.mkdtemp(dir=memory_folder())
        self.world = World(Path(self.folder) / "data")
        self.world.in_parts, self.world.leaps = in_parts, leaps
        self.query = query
        self.world.commit({"a": Counter({(1, 2): 1}), "b": Counter({(1, 5): 1})})
        self.world.create("view", query)
        self.machine = self.world.machine("view")
        # What was read at complete times, for ever.
        self.seen: dict[int, Rows | str] = {}

    @rule(a=_rows, b=_rows, take=st.booleans())
    def write(self, a: dict[tuple[int, int], int], b: dict[tuple[int, int], int], take: bool) -> None:
        """New rows; with `take` some of the old ones go."""
        now = self.world.contents(self.world.history[-1][0])
        writes: dict[str, Rows] = {"a": Counter(a), "b": Counter(b)}
        if take:
            for name, rows in now.items():
                for row in sorted(rows)[::2]:
                    writes[name][row] -= 1
        writes = {n: Counter({r: d for r, d in rows.items() if d}) for n, rows in writes.items()}
        if any(writes.values()):
            self.world.commit(writes)

    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.machine.step()

    @rule()
    def catch_up(self) -> None:
        finish(self.machine)

    @rule(place=st.sampled_from(PLACES))
    def fail(self, place: str) -> None:
        failpoints.arm(f"{place}=error")
        try:
            self.machine.step()
        except failpoints.FailpointError:
            pass
        finally:
            failpoints.arm("")

    @rule()
    def restart(self) -> None:
        self.world.reopen()
        self.machine = self.world.machine("view")

    @rule()
    def let_go(self) -> None:
        """Nobody wants history: only what a restart needs stays."""
        now = self.world.environment.oracle.now()
        for name in ("a", "b"):
            self.world.environment.open_shard(self.world.table(name).shard).downgrade_since(now, record=True)

    @rule()
    def forget(self) -> None:
        """Nor does the view's own history stay."""
        self.machine.retain(self.world.environment.oracle.now() + 2000, 1)
        self.machine.shard.compact(everything=True)

    @invariant()
    def holds_the_answer(self) -> None:
        if not hasattr(self, "machine") or not self.machine.hydrated:
            return
        shard, readable = self.machine.shard, self.machine.readable
        # Not beyond what the inputs said; upper is ahead after an append whose outcome nobody learnt.
        assert max(readable, upper_of(shard)) <= self.world.said
        judge(self.world, self.query, shard, readable)
        for at, found in self.seen.items():
            if shard.since <= at < readable:
                assert held(shard, at, readable) == found
        for at in interesting(self.world, shard, readable):
            self.seen[at] = held(shard, at, readable)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.machine.close()
            self.world.close()
            shutil.rmtree(self.folder)


TestViewModel = ViewModel.TestCase
TestViewModel.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "data")


def _program(machine: ViewMachine) -> PyProgram:
    assert isinstance(machine.program, PyProgram)
    return machine.program


def test_closed_times_are_never_worked_out_again(world: World) -> None:
    world.create("view", "summed")
    machine = world.machine("view")
    for n in range(5):
        world.commit({"a": Counter({(n, n): 1})})
        finish(machine)
    upper = upper_of(machine.shard)
    machine.close()
    world.reopen()
    machine = world.machine("view")
    assert machine.readable == upper, "what was complete can be read before anything is worked out"
    finish(machine)
    assert [at for at in _program(machine).asked if at < upper] == []
    world.commit({"a": Counter({(9, 9): 1})})
    finish(machine)
    assert judge(world, "summed", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_it_goes_on_at_the_first_time_that_is_not_done(world: World) -> None:
    world.create("view", "filtered")
    machine = world.machine("view")
    world.commit({"a": Counter({(1, 5): 1})})
    finish(machine)
    machine.close()
    world.reopen()
    machine = world.machine("view")
    upper = upper_of(machine.shard)
    machine.step()
    assert _program(machine).followed == [upper]
    machine.close()
    world.close()


def test_an_idle_view_writes_nothing_and_goes_on_in_time(world: World) -> None:
    world.create("view", "summed")
    machine = world.machine("view")
    world.commit({"b": Counter({(1, 1): 1})})
    finish(machine)
    version, readable = machine.shard.version, machine.readable
    for _ in range(5):
        world.environment.oracle.complete(world.environment.oracle.write_ts())
        finish(machine)
    assert machine.readable > readable and machine.shard.version == version
    machine.close()
    world.close()


def test_inputs_wait_for_the_view_and_no_longer(world: World) -> None:
    world.create("view", "joined")
    machine = world.machine("view")
    finish(machine)
    shards = [world.environment.open_shard(world.table(n).shard) for n in ("a", "b")]
    done = upper_of(machine.shard)
    world.commit({"a": Counter({(1, 1): 1}), "b": Counter({(1, 2): 1})})
    later = world.commit({"a": Counter({(1, 3): 1})})
    for shard in shards:
        assert shard.downgrade_since(later) == done - 1
    finish(machine)
    for shard in shards:
        # Nothing was written to it after that.
        assert shard.downgrade_since(later) == upper_of(shard) - 1
    machine.close()
    world.close()


def test_inputs_wait_for_a_view_that_stands_still(world: World) -> None:
    """Whoever steps it next begins with the first time that it has not done."""
    world.create("view", "joined")
    machine = world.machine("view")
    finish(machine)
    world.commit({"a": Counter({(1, 1): 1}), "b": Counter({(1, 2): 1})})
    with pytest.raises(failpoints.FailpointError):
        failpoints.arm(f"{FP_BEFORE_APPEND}=error@2")
        try:
            finish(machine)
            world.commit({"a": Counter({(1, 3): 1})})
            finish(machine)
        finally:
            failpoints.arm("")
    done = upper_of(machine.shard)
    for name in ("a", "b"):
        shard = world.environment.open_shard(world.table(name).shard)
        world.environment.txns.apply_until(shard.id, world.history[-1][0])
        assert shard.downgrade_since(done + 1000) == done - 1
    finish(machine)
    judge(world, "joined", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_a_time_at_which_nothing_came_of_a_change_is_done(world: World) -> None:
    """Or another life would work it out again."""
    world.create("view", "filtered")
    machine = world.machine("view")
    finish(machine)
    at = world.commit({"a": Counter({(1, 0): 1})})
    finish(machine)
    assert upper_of(machine.shard) > at
    machine.close()
    world.close()


def test_an_error_stays_until_its_cause_is_gone_over_restarts(world: World) -> None:
    world.create("view", "filtered")
    machine = world.machine("view")
    world.commit({"a": Counter({(1, 5): 1})})
    finish(machine)
    bad = world.commit({"a": Counter({(2, BAD): 1})})
    world.commit({"a": Counter({(3, 7): 1})})
    assert machine.health.error is None
    finish(machine)
    assert machine.health == ViewHealth(BAD_TEXT, bad)
    assert held(machine.shard, bad, machine.readable) == BAD_TEXT
    assert held(machine.shard, bad - 1, machine.readable) == Counter({(1, 6): 1})
    machine.close()
    world.reopen()
    machine = world.machine("view")
    finish(machine)
    assert machine.health == ViewHealth(BAD_TEXT, bad)
    assert held(machine.shard, machine.readable - 1, machine.readable) == BAD_TEXT
    good = world.commit({"a": Counter({(2, BAD): -1})})
    finish(machine)
    assert machine.health.error is None
    assert held(machine.shard, good, machine.readable) == Counter({(1, 6): 1, (3, 8): 1})
    judge(world, "filtered", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_a_follower_goes_on_behind_an_error(world: World) -> None:
    """The one that met it, with all that has changed meanwhile."""
    world.leaps = True
    world.create("view", "summed")
    machine = world.machine("view")
    finish(machine)
    for _ in range(2):
        bad = world.commit({"a": Counter({(2, BAD): 1})})
        finish(machine)
        assert machine.health == ViewHealth(BAD_TEXT, bad)
        world.commit({"a": Counter({(3, 7): 1, (2, BAD): 1})})
        finish(machine)
        assert machine.health == ViewHealth(BAD_TEXT, bad)
        world.commit({"a": Counter({(2, BAD): -2}), "b": Counter({(3, 1): 1})})
        world.commit({"b": Counter({(4, 1): 1})})
        finish(machine)
        assert machine.health.error is None
        judge(world, "summed", machine.shard, machine.readable)
    assert len(_program(machine).followed) == 1
    machine.close()
    world.close()


def test_an_error_of_the_follower_alone_is_none_of_the_view(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may evaluate in another order than the query, from the beginning or while there is a real error."""

    def fails(_: LeapingQuery, at: int) -> bool:
        return any(v == 99 for _, v in world.contents(at)["a"])

    monkeypatch.setattr(LeapingQuery, "fails", fails)
    world.leaps = True
    world.create("view", "summed")
    machine = world.machine("view")
    finish(machine)
    for rows in ({(1, 99): 1}, {(1, 99): -1}, {(1, BAD): 1}, {(1, BAD): -1, (2, 99): 1}, {(2, 99): -1}):
        world.commit({"a": Counter(rows)})
        finish(machine)
        judge(world, "summed", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_the_error_is_that_of_the_latest_evaluation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(tables: Mapping[str, Rows]) -> Rows:
        worst = max((v for _, v in tables["a"]), default=0)
        if worst > 10:
            raise NoAnswer(f"no answer for {worst}")
        return tables["a"]

    monkeypatch.setitem(QUERIES, "named", (named, ("a",)))
    world.create("view", "named")
    machine = world.machine("view")
    finish(machine)
    first = world.commit({"a": Counter({(1, 14): 1, (1, 12): 1})})
    world.commit({"a": Counter({(1, 11): 1})})
    finish(machine)
    assert machine.health == ViewHealth("no answer for 14", first)
    second = world.commit({"a": Counter({(1, 14): -1})})
    finish(machine)
    assert machine.health == ViewHealth("no answer for 12", second)
    world.commit({"a": Counter({(1, 12): -1, (1, 11): -1, (1, 1): 1})})
    finish(machine)
    assert machine.health.error is None
    judge(world, "named", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_a_view_with_an_error_catches_up_without_waiting(world: World) -> None:
    world.create("view", "filtered")
    machine = world.machine("view")
    finish(machine)
    for n in range(12):
        world.commit({"a": Counter({(n, BAD): 1})})
    until = machine.program.now()
    while machine.step():
        pass
    assert machine.readable >= until
    judge(world, "filtered", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_a_view_that_begins_with_an_error(world: World) -> None:
    world.commit({"a": Counter({(2, BAD): 1})})
    item = world.create("view", "filtered")
    machine = world.machine("view")
    finish(machine)
    assert machine.health == ViewHealth(BAD_TEXT, item.created)
    assert held(machine.shard, item.created, machine.readable) == BAD_TEXT
    world.commit({"a": Counter({(2, BAD): -1, (1, 2): 1})})
    finish(machine)
    judge(world, "filtered", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_nothing_is_done_before_queries_can_run(world: World) -> None:
    world.create("view", "filtered")
    machine = world.machine("view")
    _program(machine).ready = False
    assert not machine.step() and not machine.hydrated and machine.readable == 0
    machine.close()
    world.close()


# -- the judge is judged


def _drop_one(spans: Sequence[Span]) -> list[Span]:
    return [Span(s.updates.slice(1), s.upper, s.errors) for s in spans]


def _repeat_one(spans: Sequence[Span]) -> list[Span]:
    return [Span(pa.concat_tables([s.updates, s.updates.slice(0, 1)]), s.upper, s.errors) for s in spans]


def _shift(spans: Sequence[Span]) -> list[Span]:
    moved: list[Span] = []
    for s in spans:
        at = s.updates.schema.get_field_index(TIME_COLUMN)
        times = pc.add(s.updates.column(at), 1)
        moved.append(Span(s.updates.set_column(at, TIME_COLUMN, times), s.upper + 1, s.errors))
    return moved


def _no_errors(spans: Sequence[Span]) -> list[Span]:
    return [Span(s.updates, s.upper) for s in spans]


@pytest.mark.parametrize("bug", [_drop_one, _repeat_one, _shift, _no_errors])
def test_planted_bugs_are_seen(
    world: World, bug: Callable[[Sequence[Span]], list[Span]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("view", "filtered")
    machine = world.machine("view")
    finish(machine)
    right = ViewMachine._commit  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(ViewMachine, "_commit", lambda self, spans: right(self, bug(spans)))
    world.commit({"a": Counter({(1, 5): 1, (2, 6): 1})})
    finish(machine)
    world.commit({"a": Counter({(1, BAD): 1})})
    finish(machine)
    with pytest.raises(AssertionError):
        judge(world, "filtered", machine.shard, machine.readable)
    machine.close()
    world.close()


def test_a_view_that_recomputes_with_what_is_now_is_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer before is the view's own, not the query's of another time."""
    world.create("view", "summed")
    machine = world.machine("view")
    world.commit({"a": Counter({(1, 1): 1})})
    finish(machine)
    machine.close()
    world.reopen()
    world.commit({"a": Counter({(1, 2): 1})})
    machine = world.machine("view")
    program = _program(machine)
    monkeypatch.setattr(ViewMachine, "_stored_rows", lambda self: program.answer(program.now() - 1))
    finish(machine)
    assert expected(world, "summed", machine.readable - 1)
    with pytest.raises(AssertionError):
        judge(world, "summed", machine.shard, machine.readable)
    machine.close()
    world.close()
