"""Materialized views without Spark: tables of a real data directory, queries in Python, and a model.

A query is a function from the tables' rows to rows; the model folds the history of commits and says what a
view must hold at a time, error or rows. `judge` compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidemill.catalog.items import ItemId, MaterializedView, Reference, Table
from tidemill.catalog.materialized_ops import CreateMaterializedViewOp
from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import InvalidValue
from tidemill.inputs.followers import QueryFollower
from tidemill.persist.environment import Environment
from tidemill.persist.holds import Hold
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.query.multiset import SourceError, add_up, check_errors
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import CollectionFollower, Follower
from tidemill.subscribe.leaping import CannotLeap, StillFailing
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import INT4, Column, RelationDesc
from tidemill.views.error_follower import stamped
from tidemill.views.machine import ViewMachine
from tidemill.views.service import Views

DESC = RelationDesc((Column("k", INT4), Column("v", INT4)))
NAMES = ["k", "v"]
TABLES = ("a", "b")
# A row with this value has no answer in any query.
BAD = 13
BAD_TEXT = "no answer for 13"

Row = tuple[int, int]
Rows = Counter[Row]
Query = Callable[[Mapping[str, Rows]], Rows]


class NoAnswer(InvalidValue):
    sqlstate = "22012"


def _refuse(rows: Rows) -> Rows:
    if any(v == BAD for _, v in rows):
        raise NoAnswer(BAD_TEXT)
    return rows


def filtered(tables: Mapping[str, Rows]) -> Rows:
    rows = _refuse(tables["a"])
    return Counter({(k, v + 1): n for (k, v), n in rows.items() if v > 1})


def summed(tables: Mapping[str, Rows]) -> Rows:
    sums: dict[int, int] = {}
    for (k, v), n in (_refuse(tables["a"]) + tables["b"]).items():
        sums[k] = sums.get(k, 0) + v * n
    return Counter(dict.fromkeys(sums.items(), 1))


def joined(tables: Mapping[str, Rows]) -> Rows:
    found: Rows = Counter()
    for (k, v), n in _refuse(tables["a"]).items():
        for (other, w), m in tables["b"].items():
            if k == other:
                found[(v, w)] += n * m
    return found


QUERIES: dict[str, tuple[Query, tuple[str, ...]]] = {
    "filtered": (filtered, ("a",)),
    "summed": (summed, ("a", "b")),
    "joined": (joined, ("a", "b")),
}


def table_of(rows: Rows) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([k for k, _ in rows], pa.int32()),
            "v": pa.array([v for _, v in rows], pa.int32()),
            DIFF_COLUMN: pa.array(list(rows.values()), pa.int64()),
        }
    )


def rows_of(table: pa.Table) -> Rows:
    columns = [table.column(name).to_pylist() for name in (*NAMES, DIFF_COLUMN)]
    return Counter({(k, v): n for k, v, n in zip(*columns, strict=True)})


@dataclass
class PyInput:
    world: World
    item: Table | MaterializedView

    @property
    def shard(self) -> Shard:
        if isinstance(self.item, Table):
            return self.world.environment.open_shard(self.item.shard)
        return self.world.environment.open_ingested(self.item.shard)

    def complete(self) -> int:
        if isinstance(self.item, MaterializedView):
            return self.world.readable(self.item)
        ts = self.world.environment.oracle.read_ts()
        self.world.environment.txns.apply_until(self.item.shard, ts)
        self.world.said = ts + 1
        return ts + 1

    def first(self) -> int:
        return self.shard.since

    def hold(self, at: int) -> Hold:
        return self.shard.hold(at)

    def read(self, at: int) -> Rows:
        complete = self.complete()
        with self.shard.snapshot(at, readable=complete) as snapshot:
            return rows_of(check_errors(add_up([snapshot.read(NAMES)])))


class PyProgram:
    """`views.program.Program`, with a query in Python. How often it was asked is counted."""

    def __init__(self, world: World, query: Query, inputs: Mapping[str, Table | MaterializedView]) -> None:
        self.world = world
        self.query = query
        self._inputs = {name: PyInput(world, item) for name, item in inputs.items()}
        self.asked: list[int] = []
        # From where on it was followed.
        self.followed: list[int] = []
        self.ready = True

    @property
    def inputs(self) -> Sequence[PyInput]:
        return list(self._inputs.values())

    @property
    def views(self) -> Sequence[ItemId]:
        return [i.item.id for i in self.inputs if isinstance(i.item, MaterializedView)]

    def now(self) -> int:
        return self.world.environment.oracle.read_ts() + 1

    def answer(self, at: int) -> pa.Table:
        self.asked.append(at)
        return table_of(self.query({name: i.read(at) for name, i in self._inputs.items()}))

    def first(self, at: int, shard: Shard, job: str) -> pa.Table | Sequence[Part]:
        rows = self.answer(at)
        if not self.world.in_parts:
            return rows
        # Each row in a part of its own, as if each were another task's.
        table = stamped(rows, at)
        return [shard.write_part(table.slice(i, 1), job=job) for i in range(table.num_rows)]

    def due(self, from_: int) -> Sequence[Follower]:
        return []

    def follow(self, from_: int, before: Callable[[], pa.Table]) -> Follower:
        self.followed.append(from_)
        followers = [CollectionFollower(i.shard, NAMES, from_, i.complete) for i in self.inputs]
        kind = LeapingQuery if self.world.leaps else QueryFollower
        return kind(followers, self.answer, from_, before(), self.now)


class LeapingQuery(QueryFollower):
    """It can go on behind an error, but not for ever."""

    def __init__(
        self,
        inputs: Sequence[Follower],
        evaluate: Callable[[int], pa.Table],
        from_: int,
        before: pa.Table,
        now: Callable[[], int],
    ) -> None:
        super().__init__(inputs, evaluate, from_, before, now)
        self._failure: NoAnswer | None = None
        self._leapt = from_
        # The last time at which it was evaluated.
        self.failed_at = -1

    def advance(self) -> CollectionChanges | None:
        if self._failure is not None:
            raise self._failure
        try:
            return super().advance()
        except NoAnswer as e:
            at = self._leapt = self.failed_at
            self._failure = e
            if at == self.frontier:
                raise
            lower, self.frontier = self.frontier, at
            return CollectionChanges(stamped(self._before.slice(0, 0), lower), lower, at)

    def _at(self, at: int) -> CollectionChanges:
        self.failed_at = at
        if self.fails(at):
            raise NoAnswer("only here")
        return super()._at(at)

    def fails(self, at: int) -> bool:
        """Although the query does not."""
        return False

    def leap(self) -> CollectionChanges | StillFailing | None:
        if len(self._times) > 3:
            raise CannotLeap
        failure, self._failure = self._failure, None
        lower, self.frontier = self.frontier, max(self._leapt, self.frontier + 1)
        first = self.frontier
        try:
            found = super().advance()
        except NoAnswer as e:
            self._failure, self._leapt = e, self.failed_at + 1
            return StillFailing(self.failed_at, self._leapt, e)
        finally:
            upper, self.frontier = self.frontier, lower
        if found is not None and not found.updates.num_rows and upper - 1 != self.failed_at:
            # Time passes.
            self._failure, self._leapt = failure, upper
            return StillFailing(first, upper)
        if found is None:
            self._failure = failure
            return None
        self.frontier = upper
        return CollectionChanges(found.updates, lower, upper)


class World:
    """A data directory with the tables; its history is kept beside it."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = str(folder)
        self.history: list[tuple[int, dict[str, Rows]]] = []
        self.service: Views | None = None
        # Before which the tables were last said to be complete.
        self.said = 0
        # Followers leap.
        self.leaps = False
        # Views write their first rows as parts themselves.
        self.in_parts = False
        self._open()
        schema = next(s for s in self.catalog.state.schemas(self.catalog.state.databases()[0].id))
        self.schema = schema.id
        self.catalog.transact([CreateTableOp(schema.id, name, DESC) for name in TABLES])

    def _open(self) -> None:
        self.environment = Environment.open(self.folder)
        self.catalog = Catalog.open(self.environment)

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        if self.service is not None:
            self.service.stop()
            self.service = None
        self.environment.close()

    def table(self, name: str) -> Table:
        (found,) = [t for t in self.catalog.state.tables() if t.name == name]
        return found

    def view(self, name: str) -> MaterializedView:
        (found,) = [v for v in self.catalog.state.materialized_views() if v.name == name]
        return found

    def create(self, name: str, query: str, over: str | None = None) -> MaterializedView:
        """A view of one of `QUERIES`; with `over` it reads that view in the place of table a."""
        names = QUERIES[query][1]
        state = self.catalog.state
        items = [self.view(over).id if over and n == "a" else self.table(n).id for n in names]
        references = tuple(Reference((n,), i) for n, i in zip(names, items, strict=True))
        op = CreateMaterializedViewOp(self.schema, name, query, DESC, references)
        self.catalog.transact([op])
        assert state is not self.catalog.state
        return self.view(name)

    def program(self, state: CatalogState, item: MaterializedView) -> PyProgram:
        inputs: dict[str, Table | MaterializedView] = {}
        for reference in item.references:
            found = state.relation(reference.id)
            assert isinstance(found, Table | MaterializedView)
            inputs[reference.name[0]] = found
        return PyProgram(self, QUERIES[item.sql][0], inputs)

    def machine(self, name: str) -> ViewMachine:
        item = self.view(name)
        shard = self.environment.open_ingested(item.shard)
        return ViewMachine(item, shard, self.program(self.catalog.state, item), self.environment)

    def readable(self, item: MaterializedView) -> int:
        assert self.service is not None, "views over views need the service"
        return self.service.readable(item)

    def commit(self, writes: Mapping[str, Rows]) -> int:
        updates = {self.table(n).shard: table_of(rows) for n, rows in writes.items() if rows}
        for shard in updates:
            self.environment.open_shard(shard)
        at = self.environment.txns.commit(updates).result(timeout=120)
        self.history.append((at, {n: Counter(rows) for n, rows in writes.items()}))
        if self.service is not None:
            self.service.moved(updates.keys())
        return at

    def contents(self, at: int) -> dict[str, Rows]:
        found: dict[str, Rows] = {name: Counter() for name in TABLES}
        for time, writes in self.history:
            if time <= at:
                for name, rows in writes.items():
                    for row, n in rows.items():
                        found[name][row] += n
        return {name: Counter({r: n for r, n in rows.items() if n}) for name, rows in found.items()}


def expected(world: World, query: str, at: int) -> Rows | str:
    try:
        return +QUERIES[query][0](world.contents(at))
    except NoAnswer as e:
        return e.primary


def held(shard: Shard, at: int, readable: int) -> Rows | str:
    """What the view says at a time: rows, or an error."""
    with shard.snapshot(at, readable=readable) as snapshot:
        table = add_up([snapshot.read(NAMES)])
    try:
        rows = rows_of(check_errors(table))
    except SourceError as e:
        return e.primary
    assert all(n > 0 for n in rows.values()), rows
    return rows


def interesting(world: World, shard: Shard, readable: int) -> list[int]:
    """Times at which something may have changed, those around them, and the bounds."""
    times = {shard.since, readable - 1}
    for at, _ in world.history:
        times |= {at - 1, at, at + 1}
    return sorted(t for t in times if shard.since <= t < readable)


def judge(world: World, query: str, shard: Shard, readable: int) -> int:
    """At every time that is complete the view holds its query's answer; returns how many were looked at."""
    times = interesting(world, shard, readable)
    for at in times:
        found, wanted = held(shard, at, readable), expected(world, query, at)
        assert found == wanted, f"at {at}: {found}, not {wanted}"
    return len(times)
