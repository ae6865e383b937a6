"""Queries that return rows: SELECT, COPY ... TO STDOUT, cursors, EXPLAIN."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.items import MaterializedView, Table
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, CopyOptions, CopyOut, Outcome, Rows
from tidemill.engine.dml.copy_options import copy_options
from tidemill.engine.read import reading
from tidemill.engine.read.catalog_query import CatalogQueryPlan, plan_catalog_query
from tidemill.engine.read.local_rows import AtHand, text_columns, text_rows
from tidemill.engine.read.reading import AsOfTime
from tidemill.engine.read.time_expressions import evaluate_time, with_times
from tidemill.engine.read.timelines import latest_on
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.engine.session.cursors import SqlCursor
from tidemill.engine.session.durations import timeout_ms
from tidemill.engine.session.plan import Action, Plan, Value
from tidemill.engine.session.portals import BoundPortal, Portal, cannot_run
from tidemill.engine.session.session import EngineSession
from tidemill.errors import (
    DuplicateObject,
    InvalidTransactionState,
    TidemillError,
    UndefinedObject,
    Unsupported,
)
from tidemill.inputs.queries import described
from tidemill.inputs.timelines import check_timelines, show_time_of, timeline_of
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_query
from tidemill.sql.names import quote_ident
from tidemill.time.shown import show_time
from tidemill.types.model import Column, SqlType


@dataclass(slots=True)
class QueryPlan:
    """SELECT, VALUES, TABLE and WITH, perhaps AS OF a time."""

    bound: BoundQuery
    as_of: ast.AsOf | None
    catalog: CatalogState
    tag: str = "SELECT"

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.bound.param_types

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.bound.columns

    async def rows(self, session: EngineSession, params: Sequence[Value]) -> AsyncIterator[pa.RecordBatch]:
        if self.bound.inputs:
            session.current.will_read()
        as_of = None if self.as_of is None else await self.as_of_time(session, params)
        return await reading.answer(session, self.catalog, self.bound, as_of, params)

    async def as_of_time(self, session: EngineSession, params: Sequence[Value] = ()) -> AsOfTime | None:
        if self.as_of is None:
            return None
        time = await evaluate_time(session, self.as_of.time, self.catalog, params)
        return AsOfTime(time, self.as_of.at_least)

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        return Rows(self.columns, await self.rows(session, params), tag=self.tag)


def plan_query(
    session: EngineSession, query: ast.Query, types: Sequence[SqlType | None], catalog: CatalogState
) -> QueryPlan | CatalogQueryPlan:
    """Plans a query. Queries over system relations are answered without Spark where possible; Spark runs all
    others."""
    if query.tree.find(exp.Table) is not None:
        here = plan_catalog_query(session, query, types, catalog)
        if here is not None:
            return here
        return _spark_query(session, query, types, catalog)
    try:
        return _spark_query(session, query, types, catalog)
    except (UndefinedObject, Unsupported):
        # No relation, but a value that only the catalog has: SELECT 't'::regclass.
        here = plan_catalog_query(session, query, types, catalog)
        if here is None:
            raise
        return here


def _spark_query(
    session: EngineSession, query: ast.Query, types: Sequence[SqlType | None], catalog: CatalogState
) -> QueryPlan:
    if query.as_of is not None:
        types = with_times(session, types, [query.as_of.time], query, catalog)
    bound = bind_query(query.tree, session.resolver(catalog), param_types=types, session=session.info())
    check_timelines(catalog, bound)
    return QueryPlan(bound, query.as_of, catalog)


class Readable(Protocol):
    """The plan inside COPY, DECLARE or EXPLAIN: a query or a subscription."""

    @property
    def bound(self) -> BoundQuery: ...

    @property
    def param_types(self) -> tuple[SqlType, ...]: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    async def rows(
        self, session: EngineSession, params: Sequence[Value]
    ) -> AsyncIterator[pa.RecordBatch]: ...


def _readable(
    session: EngineSession,
    statement: ast.Query | ast.Subscribe,
    types: Sequence[SqlType | None],
    catalog: CatalogState,
) -> Readable:
    if isinstance(statement, ast.Query):
        return plan_query(session, statement, types, catalog)
    from tidemill.engine.subscribe.statement import plan_subscribe

    return plan_subscribe(session, statement, types, catalog)


# -- COPY ... TO STDOUT ----------------------------------------------------------------------------


@dataclass(slots=True)
class CopyToPlan:
    query: Readable
    options: CopyOptions
    shared: bool

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.query.param_types

    @property
    def columns(self) -> None:
        return None

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        rows = await self.query.rows(session, params)
        return CopyOut(self.query.columns, rows, self.options, self.shared)


def plan_copy_to(
    session: EngineSession, statement: ast.CopyTo, types: Sequence[SqlType | None], catalog: CatalogState
) -> CopyToPlan:
    source = statement.source
    if isinstance(source, ast.Name):
        _check_once(statement.columns)
        source = table_query(source, statement.columns)
    query = _readable(session, source, types, catalog)
    return CopyToPlan(
        query, copy_options(statement.options, query.columns), isinstance(source, ast.Subscribe)
    )


def _check_once(columns: Sequence[ast.Ident]) -> None:
    named: set[str] = set()
    for column in columns:
        if column.value in named:
            raise DuplicateObject(
                f'column "{column.value}" specified more than once',
                sqlstate="42701",
                position=column.offset + 1,
            )
        named.add(column.value)


def table_query(name: ast.Name, columns: Sequence[ast.Ident] = ()) -> ast.Query:
    """SELECT columns FROM name."""
    items = [exp.column(exp.to_identifier(c.value, quoted=True)) for c in columns] or [exp.Star()]
    return ast.Query(exp.Select(expressions=items, from_=exp.From(this=table_tree(name))), offset=name.offset)


def table_tree(name: ast.Name, alias: ast.Ident | None = None) -> exp.Table:
    parts = [exp.to_identifier(p, quoted=True) for p in name.parts]
    tree = exp.Table(
        this=parts[-1],
        db=parts[-2] if len(parts) > 1 else None,
        catalog=parts[-3] if len(parts) > 2 else None,
    )
    if alias is not None:
        tree.set("alias", exp.TableAlias(this=exp.to_identifier(alias.value, quoted=True)))
    return tree


# -- cursors ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class DeclarePlan:
    name: str
    query: Readable
    endless: bool
    hold: bool
    binary: bool
    text: str | None

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.query.param_types

    @property
    def columns(self) -> None:
        return None

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        if not session.in_block and not self.hold:
            raise InvalidTransactionState(
                "DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01"
            )
        session.portals.check_new(self.name)
        rows = await self.query.rows(session, params)
        portal = Portal(self.query.columns, self.text)
        portal.hold, portal.binary = self.hold, self.binary
        portal.cursor = SqlCursor(rows, session.interrupt, endless=self.endless)
        if not session.in_block:
            # Its transaction ends with the statement.
            try:
                await portal.cursor.keep()
            except BaseException:
                portal.close()
                raise
        session.portals.add(self.name, portal)
        return Complete("DECLARE CURSOR")


def plan_declare(
    session: EngineSession,
    statement: ast.Declare,
    types: Sequence[SqlType | None],
    catalog: CatalogState,
    text: str | None,
) -> Plan:
    query = _readable(session, statement.query, types, catalog)
    endless = isinstance(statement.query, ast.Subscribe)
    return DeclarePlan(statement.name.value, query, endless, statement.hold, statement.binary, text)


def no_such_cursor(name: str) -> TidemillError:
    return TidemillError(f'cursor "{name}" does not exist', sqlstate="34000")


async def _cursor(session: EngineSession, name: str) -> tuple[Portal, SqlCursor, tuple[Column, ...]]:
    """The portal, its remaining rows, and their columns. A portal of Bind that has not started is started."""
    portal = session.portals.find(name)
    if portal is None:
        raise no_such_cursor(name)
    if portal.active or portal.failed or portal.columns is None:
        raise cannot_run(name)
    if portal.cursor is None:
        assert isinstance(portal, BoundPortal)
        endless, rows = False, portal.unsent()
        on_row = rows is not None
        if rows is None and not portal.started:
            portal.started = True
            outcome = await session.run(portal.prepared, portal.params)
            if not isinstance(outcome, Rows):
                raise cannot_run(name)
            endless, rows = outcome.endless, outcome.batches
            portal.tag, portal.counted = outcome.tag, outcome.counted
        portal.cursor = SqlCursor(rows or AtHand(iter(())), session.interrupt, endless=endless)
        portal.cursor.on_row = on_row
    return portal, portal.cursor, portal.columns


def plan_fetch(session: EngineSession, statement: ast.Fetch) -> Plan:
    name = statement.cursor.value
    # A cursor that does not exist now may exist when the statement runs.
    known = session.portals.find(name)
    timeout = timeout_ms(statement.timeout)
    if statement.count is not None and statement.count < 0:
        raise Unsupported(
            "FETCH backward is not supported", hint="A cursor only goes forward.", sqlstate="55000"
        )

    async def act(s: EngineSession) -> Outcome:
        portal, cursor, columns = await _cursor(s, name)
        if statement.count == 0:
            # A portal of Bind never moves backward.
            current = None if isinstance(portal, BoundPortal) or not cursor.on_row else cursor.current
            if statement.move:
                return Complete(f"MOVE {int(cursor.on_row)}")
            if cursor.on_row and current is None:
                raise InvalidTransactionState("cursor can only scan forward", sqlstate="55000")
            return Rows(columns, AtHand(iter([] if current is None else [current])), tag="FETCH")
        rows = cursor.fetch(statement.count, None if timeout is None else timeout / 1000)
        if statement.move:
            return Complete(f"MOVE {sum([b.num_rows async for b in rows])}")
        return Rows(columns, rows, tag="FETCH", binary=portal.binary)

    return Action(act, None if statement.move or known is None else known.columns)


def plan_close(session: EngineSession, statement: ast.Close) -> Plan:
    del session

    async def act(s: EngineSession) -> Outcome:
        if statement.cursor is None:
            s.portals.clear()
            return Complete("CLOSE CURSOR ALL")
        if not s.portals.drop(statement.cursor.value):
            raise no_such_cursor(statement.cursor.value)
        return Complete("CLOSE CURSOR")

    return Action(act)


# -- EXPLAIN ---------------------------------------------------------------------------------------


def plan_explain(
    session: EngineSession, statement: ast.Explain, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    from tidemill.engine.subscribe.statement import SubscribePlan

    if statement.options:
        name = statement.options[0][0]
        raise Unsupported(f"EXPLAIN option {name} is not supported", hint="Use plain EXPLAIN.")
    plan = _readable(session, statement.statement, types, catalog)
    columns = text_columns("QUERY PLAN")

    def lines() -> list[str]:
        if isinstance(plan, SubscribePlan) and plan.collection is not None:
            return [f"Followed by SUBSCRIBE: fed from the new parts of {plan.label}; no Spark job"]
        bound = plan.bound
        said = bound.describe().splitlines()
        if bound.inputs and bound.determinism.within_session:
            said.append(f"Followed by SUBSCRIBE: {described(catalog, bound)}")
        return said

    async def act(s: EngineSession) -> Outcome:
        return text_rows(["QUERY PLAN"], [(line,) for line in await s.blocking(lines)], tag="EXPLAIN")

    return Action(act, columns, plan.param_types)


def _frontiers(session: EngineSession, item: Table | MaterializedView) -> tuple[int, int]:
    engine = session.engine
    if isinstance(item, MaterializedView):
        return engine.views.shard(item).since, engine.views.readable(item)
    upper = engine.environment.txns.readable_upper(item.shard)
    return engine.environment.open_shard(item.shard).since, upper


def plan_explain_timestamp(
    session: EngineSession, statement: ast.ExplainTimestamp, catalog: CatalogState
) -> Plan:
    plan = _spark_query(session, statement.query, (), catalog)
    columns = text_columns("Timestamp")

    async def act(s: EngineSession) -> Outcome:
        as_of = await plan.as_of_time(s)
        ts = (
            as_of.time
            if as_of is not None and not as_of.at_least
            else await s.blocking(s.engine.oracle.read_ts)
        )
        inputs = [catalog.relation(i) for i in plan.bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID]
        if timeline_of(inputs) is not None and (as_of is None or as_of.at_least):
            ts = latest_on(s, inputs)
        if as_of is not None and as_of.at_least:
            ts = max(ts, as_of.time)
        latest = await s.blocking(s.engine.oracle.read_ts)
        lines = [
            f"                query timestamp: {show_time(ts, timeline_of(inputs))}",
            f"          oracle read timestamp: {show_time(latest)}",
            f"                      isolation: {s.current.isolation}",
        ]
        for item in (
            *reading.table_inputs(catalog, plan.bound),
            *reading.view_inputs(catalog, plan.bound),
        ):
            since, upper = await s.blocking(_frontiers, s, item)
            name = ".".join(quote_ident(p) for p in catalog.full_name(item))
            lines += [
                f"source {name}:",
                f"                  read frontier: {show_time_of(item, since)}",
                f"                 write frontier: {show_time_of(item, upper)}",
            ]
        return text_rows(["Timestamp"], [(line,) for line in lines], tag="EXPLAIN")

    return Action(act, columns)
