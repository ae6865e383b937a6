"""The query of a view is replaced while tables change, steps die and the process starts again: at every time
the view holds the answer of the query that it had then, and whoever follows it sees the same. The service is
stepped by hand, one view at a time, so that each example is one order of steps."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from views_world import BAD, BAD_TEXT, DESC, QUERIES, PyProgram, Rows, World, expected, held, rows_of

from support.shards import memory_folder
from tidemill import failpoints
from tidemill.catalog.items import MaterializedView, Reference
from tidemill.catalog.materialized_ops import EndReplacement, ReplaceQuery, SwitchQuery
from tidemill.catalog.ops import DropOp, Op
from tidemill.catalog.state import CatalogState
from tidemill.errors import InvalidValue, Unavailable
from tidemill.ingest.status import RunState
from tidemill.query.multiset import SourceError, add_up, check_errors
from tidemill.types.arrow import TIME_COLUMN, shard_schema
from tidemill.views import difference, service
from tidemill.views.difference import FP_PART
from tidemill.views.machine import FP_APPENDED
from tidemill.views.machine import FP_PART as FP_VIEW_PART
from tidemill.views.replacing import FP_DIFFERENCE, FP_MEETING, FP_RESUMED, FP_SWITCHED, GAP_TEXT
from tidemill.views.service import Views

PLACES = (
    FP_MEETING,
    "catalog.before_put",
    "catalog.put",
    FP_SWITCHED,
    FP_PART,
    FP_DIFFERENCE,
    FP_RESUMED,
    FP_VIEW_PART,
    FP_APPENDED,
)


class ByHand(World):
    """With a service that nothing steps but `step`. Queries in `broken` fail, for ever or for a while."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.broken: dict[str, Exception] = {}
        # Rows are written while a query is evaluated: it never catches up.
        self.busy = False
        # From when on the view has which query, and where it has none.
        self.queries: list[tuple[int, str]] = []
        self.gaps: list[tuple[int, int]] = []
        self.serve()

    def serve(self) -> Views:
        self.catalog.on_change(self._look)
        self.service = Views(
            self.environment, self.catalog, self._bind, on_moved=lambda _: None, on_lost=self._lost
        )
        return self.service

    def _look(self, old: CatalogState, new: CatalogState) -> None:
        for view in new.materialized_views():
            before = old.items.get(view.id)
            if view.switched is None or view.name != "view":
                continue
            if isinstance(before, MaterializedView) and before.switched != view.switched:
                self.queries.append((view.switched.at, view.sql))
                if view.switched.gap_from is not None:
                    self.gaps.append((view.switched.gap_from, view.switched.at))

    def _lost(self, error: Exception) -> None:
        raise error

    def _bind(self, state: CatalogState, item: MaterializedView) -> PyProgram:
        program = self.program(state, item)
        answer = program.answer

        def asked(at: int) -> pa.Table:
            if item.sql in self.broken:
                raise self.broken[item.sql]
            if self.busy:
                for n in range(3):
                    self.commit({"a": Counter({(n, 4): 1})})
            return answer(at)

        program.answer = asked
        return program

    def start(self, query: str) -> None:
        self.create("view", query)
        self.queries.append((0, query))

    def replace(self, query: str, view: str = "view") -> str:
        names = QUERIES[query][1]
        references = tuple(Reference((n,), self.table(n).id) for n in names)
        new = self.catalog.transact([ReplaceQuery(self.view(view).id, query, DESC, references)])
        found = new.get(self.view(view).id, MaterializedView).replacement
        assert found is not None
        return found.id

    def step(self, number: int | None = None) -> None:
        """All views, or one of them. Time goes on."""
        assert self.service is not None
        self.environment.oracle.complete(self.environment.oracle.write_ts())
        each = sorted(self.service._all.items())  # pyright: ignore[reportPrivateUsage]
        for i, (_, view) in enumerate(each):
            if number is None or number % len(each) == i:
                self.service._take(view)  # pyright: ignore[reportPrivateUsage]

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(200):
            if condition():
                return
            self.step()
        raise AssertionError("it does not come")

    def settle(self) -> None:
        """Nothing is beside the view, and it is complete at a time that is handed out now."""
        at = self.environment.oracle.read_ts()
        views = self.service
        assert views is not None
        self.until(lambda: self.view("view").replacement is None)
        self.until(lambda: all(views.readable(v) > at for v in self.catalog.state.materialized_views()))

    def again(self) -> None:
        self.reopen()
        self.serve()

    def wanted(self, at: int) -> Rows | str:
        if any(since <= at < until for since, until in self.gaps):
            return GAP_TEXT.partition("\n")[0]
        return expected(self, [query for since, query in self.queries if since <= at][-1], at)

    def times(self, since: int, readable: int) -> list[int]:
        around = [at for at, _ in [*self.history, *self.queries]]
        times = {since, readable - 1, *(at + d for at in around for d in (-1, 0, 1))}
        return sorted(t for t in times if since <= t < readable)

    def judge(self) -> int:
        view, views = self.view("view"), self.service
        assert views is not None
        shard, readable = views.shard(view), views.readable(view)
        times = self.times(shard.since, readable)
        for at in times:
            assert held(shard, at, readable) == self.wanted(at), f"at {at} of {self.queries}"
        return len(times)


class ReplacingModel(RuleBasedStateMachine):
    @initialize(query=st.sampled_from(sorted(QUERIES)), passes=st.booleans())
    def begin(self, query: str, passes: bool) -> None:
        self.folder = tempfile.mkdtemp(dir=memory_folder())
        difference.PASS_BYTES = 40 if passes else 256 << 20
        self.world = ByHand(Path(self.folder) / "data")
        self.world.commit({"a": Counter({(1, 2): 1, (2, 4): 2}), "b": Counter({(1, 5): 1})})
        self.world.start(query)
        # Reads the view all the time, from its first rows on.
        self.frontier = 0
        self.told: list[pa.Table] = []
        self.seen: dict[int, Rows | str] = {}

    @rule(
        a=st.dictionaries(
            st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 3, BAD])), st.integers(1, 2), max_size=3
        ),
        b=st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 3)), st.integers(1, 2), max_size=3),
        take=st.booleans(),
    )
    def write(self, a: dict[tuple[int, int], int], b: dict[tuple[int, int], int], take: bool) -> None:
        now = self.world.contents(self.world.history[-1][0])
        writes: dict[str, Rows] = {"a": Counter(a), "b": Counter(b)}
        if take:
            for name, rows in now.items():
                for row in sorted(rows)[::2]:
                    writes[name][row] -= 1
        writes = {n: Counter({r: d for r, d in rows.items() if d}) for n, rows in writes.items()}
        if any(writes.values()):
            self.world.commit(writes)

    @rule(query=st.sampled_from(sorted(QUERIES)))
    def replace(self, query: str) -> None:
        if not self.world.view("view").switching:
            self.world.replace(query)

    @rule()
    def cancel(self) -> None:
        view = self.world.view("view")
        if view.replacement is not None and not view.switching:
            self.world.catalog.transact([EndReplacement(view.id, view.replacement.id, done=False)])

    @rule(number=st.integers(0, 2))
    def step(self, number: int) -> None:
        self.world.step(number)

    @rule()
    def all_step(self) -> None:
        self.world.step()

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule(place=st.sampled_from(PLACES), dies=st.booleans())
    def fail(self, place: str, dies: bool) -> None:
        """In one of the next steps; the process may end with it."""
        failpoints.arm(f"{place}=error")
        try:
            for _ in range(3):
                self.world.step()
        finally:
            failpoints.arm("")
        if dies:
            self.world.again()

    @rule()
    def restart(self) -> None:
        self.world.again()

    @rule()
    def forget(self) -> None:
        """No table keeps history that nobody holds."""
        views = self.world.service
        assert views is not None
        unheld, now = views.unheld(), self.world.environment.oracle.now()
        for name in ("a", "b"):
            if self.world.table(name).id not in unheld:
                self.world.environment.open_shard(self.world.table(name).shard).downgrade_since(
                    now, record=True
                )

    @invariant()
    def holds_the_answer(self) -> None:
        if not hasattr(self, "world"):
            return
        view, views = self.world.view("view"), self.world.service
        assert views is not None
        readable = views.readable(view)
        if not readable:
            return
        shard = views.shard(view)
        self.world.judge()
        for at, found in self.seen.items():
            if shard.since <= at < readable:
                assert held(shard, at, readable) == found
        self.seen[readable - 1] = held(shard, readable - 1, readable)
        self._follow(views, view)

    def _follow(self, views: Views, view: MaterializedView) -> None:
        """The fold of all updates, each read once, over restarts too."""
        shard = views.shard(view)
        if not self.frontier:
            self.frontier = shard.since
        listen = shard.listen(self.frontier)
        try:
            while (got := listen.next(timeout=0)) is not None and got[1] is not None:
                self.told.append(got[0])
                self.frontier = got[1]
        finally:
            listen.close()
        if self.frontier > shard.since:
            at = self.frontier - 1
            told = pa.concat_tables([*self.told, shard_schema(shard.desc).empty_table()])
            try:
                rows = check_errors(add_up([told.drop_columns([TIME_COLUMN])]))
                found: Rows | str = rows_of(rows)
            except SourceError as e:
                found = e.primary
            assert found == held(shard, at, max(views.readable(view), self.frontier))

    def teardown(self) -> None:
        difference.PASS_BYTES = 256 << 20
        if hasattr(self, "world"):
            self.world.settle()
            self.world.judge()
            self.world.close()
            shutil.rmtree(self.folder)


TestReplacingModel = ReplacingModel.TestCase
TestReplacingModel.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ByHand]:
    world = ByHand(tmp_path / "data")
    world.commit({"a": Counter({(1, 2): 1, (2, 4): 2}), "b": Counter({(1, 5): 1})})
    yield world
    world.close()


def test_the_old_query_goes_on_until_the_new_one_is_there(world: ByHand) -> None:
    world.start("filtered")
    world.settle()
    views, view = world.service, world.view("view")
    assert views is not None
    world.broken["summed"] = Unavailable("Spark has ended")
    world.replace("summed")
    for n in range(3):
        at = world.commit({"a": Counter({(n, 7): 1})})
        world.until(lambda at=at: views.readable(view) > at)
        assert world.view("view").sql == "filtered"
    status = views.replacements()[view.id]
    assert (status.state, status.error) == (RunState.STALLED, "Spark has ended")
    assert [item.name for item, _, _ in views.all()] == ["view"]
    del world.broken["summed"]
    world.settle()
    now = world.view("view")
    assert (now.id, now.shard, now.sql, now.created) == (view.id, view.shard, "summed", view.created)
    assert len(world.queries) == 2 and world.judge() > 10
    assert views.replacements() == {}


def test_it_is_switched_under_more_changes_than_it_can_follow(
    world: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "JUMP_SECONDS", 0.05)
    monkeypatch.setattr(service, "CATCH_UP_SECONDS", 0.05)
    world.start("filtered")
    world.settle()
    world.busy = True
    world.replace("summed")
    world.until(lambda: world.view("view").replacement is None)
    world.busy = False
    world.settle()
    assert [query for _, query in world.queries] == ["filtered", "summed"] and world.judge() > 10


def test_its_new_inputs_are_held_until_it_continues(world: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their history may be released at any moment, up to where somebody holds it."""
    world.start("filtered")
    world.settle()
    transact = world.catalog.transact

    def forgetting(ops: list[Op], **more: Any) -> CatalogState:
        if isinstance(ops[0], SwitchQuery):
            world.commit({"b": Counter({(7, 7): 1})})
            now = world.environment.oracle.now()
            for name in ("a", "b"):
                shard = world.environment.open_shard(world.table(name).shard)
                world.environment.txns.apply_until(shard.id, now)
                shard.downgrade_since(now, record=True)
        return transact(ops, **more)

    monkeypatch.setattr(world.catalog, "transact", forgetting)
    world.replace("joined")
    world.settle()
    assert world.view("view").sql == "joined" and world.judge()


@pytest.mark.parametrize("place", PLACES)
def test_it_is_the_old_or_the_new_one_wherever_the_process_ends(world: ByHand, place: str) -> None:
    world.start("filtered")
    world.settle()
    world.replace("joined")
    failpoints.arm(f"{place}=error")
    try:
        for _ in range(20):
            world.step()
            if not failpoints._armed:  # pyright: ignore[reportPrivateUsage]
                break
        else:
            raise AssertionError("the place is not visited")
    finally:
        failpoints.arm("")
    world.again()
    world.commit({"a": Counter({(1, 9): 1})})
    world.settle()
    assert [query for _, query in world.queries] == ["filtered", "joined"]
    assert world.judge() > 5
    # What was beside it is gone.
    assert [c.shard for c in world.catalog.state.collections() if c.item.name == "view"] == [
        world.view("view").shard
    ]


def test_a_query_without_an_answer_replaces_nothing(world: ByHand) -> None:
    world.start("summed")
    world.settle()
    world.commit({"a": Counter({(1, BAD): 1})})
    world.settle()
    world.broken["filtered"] = InvalidValue("a limit", sqlstate="54000")
    new = world.replace("filtered")
    world.settle()
    assert world.service is not None
    why = world.service.why_given_up(new)
    assert why is not None and (why.primary, why.sqlstate) == ("a limit", "54000")
    world.broken.clear()
    new = world.replace("filtered")
    world.settle()
    why = world.service.why_given_up(new)
    assert why is not None and why.primary == BAD_TEXT
    assert world.view("view").sql == "summed" and world.view("view").depends_on == tuple(
        world.table(n).id for n in ("a", "b")
    )
    world.judge()
    # Without the row that has none it does.
    world.commit({"a": Counter({(1, BAD): -1})})
    world.replace("filtered")
    world.settle()
    assert world.view("view").sql == "filtered" and world.judge()


def test_a_view_whose_query_fails_for_ever_can_be_replaced(world: ByHand) -> None:
    """Its times until then are an error, and nothing else."""
    world.start("summed")
    world.settle()
    world.broken["summed"] = InvalidValue("a limit", sqlstate="54000")
    world.commit({"a": Counter({(5, 5): 1})})
    for _ in range(5):
        world.step()
    world.replace("filtered")
    world.settle()
    assert world.gaps and world.judge() > 5


def test_a_view_without_rows_can_be_replaced(world: ByHand) -> None:
    world.broken["summed"] = InvalidValue("a limit", sqlstate="54000")
    world.start("summed")
    for _ in range(5):
        world.step()
    world.replace("filtered")
    world.settle()
    assert not world.gaps and world.judge()
    assert world.view("view").sql == "filtered"


def test_views_over_it_see_the_difference(world: ByHand) -> None:
    world.start("filtered")
    world.create("over", "filtered", over="view")
    world.settle()
    world.replace("summed")
    world.settle()
    world.commit({"a": Counter({(3, 9): 1})})
    world.settle()
    assert world.service is not None
    over = world.view("over")
    shard, readable = world.service.shard(over), world.service.readable(over)
    for at in world.times(shard.since, readable):
        rows = world.wanted(at)
        assert not isinstance(rows, str)
        assert held(shard, at, readable) == QUERIES["filtered"][0]({"a": rows})
    with pytest.raises(InvalidValue, match="would depend on itself"):
        references = (Reference(("a",), over.id),)
        world.catalog.transact([ReplaceQuery(world.view("view").id, "filtered", DESC, references)])


def test_it_is_dropped_while_its_query_is_replaced(world: ByHand) -> None:
    world.start("filtered")
    world.settle()
    world.broken["summed"] = Unavailable("Spark has ended")
    world.replace("summed")
    world.step()
    world.catalog.transact([DropOp(world.view("view").id)])
    world.step()
    assert world.catalog.state.materialized_views() == []
    assert all(c.item.name in ("a", "b") for c in world.catalog.state.collections())
