"""Queries that return rows: SELECT, COPY ... TO STDOUT, cursors, EXPLAIN."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.items import MaterializedView, Table
from tidemill.engine.api import Bound, Complete, CopyOut, Outcome, PreparedStatement, Rows
from tidemill.engine.dml.copy_options import copy_options
from tidemill.engine.read import reading
from tidemill.engine.read.catalog_query import CatalogQueryPlan, plan_catalog_query
from tidemill.engine.read.local_rows import AtHand, text_columns, text_rows
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.reading import AsOfTime
from tidemill.engine.read.time_expressions import evaluate_time, with_times
from tidemill.engine.read.timelines import latest_on
from tidemill.engine.read.waiting import Readiness
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.cursors import SqlCursor
from tidemill.engine.session.durations import timeout_ms
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.plan import Action, ActionOf, Plan, Value
from tidemill.engine.session.portals import BoundPortal, Portal, Portals, cannot_run
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
    view: CatalogView
    reader: Reader
    tag: str = "SELECT"

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.bound.param_types

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.bound.columns

    async def rows(self, params: Sequence[Value]) -> AsyncIterator[pa.RecordBatch]:
        if self.bound.inputs:
            self.reader.transactions.current.will_read()
        as_of = None if self.as_of is None else await self.as_of_time(params)
        return await reading.answer(self.reader, self.view.state, self.bound, as_of, params)

    @property
    def reads(self) -> bool:
        return bool(self.bound.inputs)

    async def table(self, params: Sequence[Value]) -> pa.Table:
        return pa.Table.from_batches([batch async for batch in await self.rows(params)])

    async def as_of_time(self, params: Sequence[Value] = ()) -> AsOfTime | None:
        if self.as_of is None:
            return None
        time = await evaluate_time(self.reader, self.view, self.as_of.time, params)
        return AsOfTime(time, self.as_of.at_least)

    async def run(self, params: Sequence[Value]) -> Outcome:
        return Rows(self.columns, await self.rows(params), tag=self.tag)


def plan_query(
    view: CatalogView, reader: Reader, query: ast.Query, types: Sequence[SqlType | None]
) -> QueryPlan | CatalogQueryPlan:
    """Plans a query. Queries over system relations are answered without Spark where possible; Spark runs all
    others."""
    if query.tree.find(exp.Table) is not None:
        here = plan_catalog_query(view, reader, query, types)
        if here is not None:
            return here
        return _spark_query(view, reader, query, types)
    try:
        return _spark_query(view, reader, query, types)
    except (UndefinedObject, Unsupported):
        # No relation, but a value that only the catalog has: SELECT 't'::regclass.
        here = plan_catalog_query(view, reader, query, types)
        if here is None:
            raise
        return here


def _spark_query(
    view: CatalogView, reader: Reader, query: ast.Query, types: Sequence[SqlType | None]
) -> QueryPlan:
    if query.as_of is not None:
        types = with_times(view, types, [query.as_of.time], query)
    bound = bind_query(query.tree, view.resolver(), param_types=types, session=view.info())
    check_timelines(view.state, bound)
    return QueryPlan(bound, query.as_of, view, reader)


def plan_relation(
    view: CatalogView, reader: Reader, name: ast.Name, as_of: ast.AsOf | None, types: Sequence[SqlType | None]
) -> QueryPlan:
    """SELECT * FROM name [AS OF time]."""
    return _spark_query(view, reader, replace(table_query(name), as_of=as_of), types)


class Readable(Protocol):
    """The plan inside COPY, DECLARE or EXPLAIN: a query or a subscription."""

    @property
    def bound(self) -> BoundQuery: ...

    @property
    def param_types(self) -> tuple[SqlType, ...]: ...

    @property
    def columns(self) -> tuple[Column, ...]: ...

    async def rows(self, params: Sequence[Value]) -> AsyncIterator[pa.RecordBatch]: ...


def _readable(
    view: CatalogView,
    reader: Reader,
    statement: ast.Query | ast.Subscribe,
    types: Sequence[SqlType | None],
) -> Readable:
    if isinstance(statement, ast.Query):
        return plan_query(view, reader, statement, types)
    from tidemill.engine.subscribe.statement import plan_subscribe

    return plan_subscribe(view, reader, statement, types)


# -- COPY ... TO STDOUT ----------------------------------------------------------------------------


def plan_copy_to(
    view: CatalogView,
    reader: Reader,
    statement: ast.CopyTo,
    types: Sequence[SqlType | None],
) -> Plan:
    source = statement.source
    if isinstance(source, ast.Name):
        _check_once(statement.columns)
        source = table_query(source, statement.columns)
    query = _readable(view, reader, source, types)
    options, shared = copy_options(statement.options, query.columns), isinstance(source, ast.Subscribe)

    async def act(params: Sequence[Value]) -> Outcome:
        return CopyOut(query.columns, await query.rows(params), options, shared)

    return ActionOf(act, query.param_types)


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


def plan_declare(
    view: CatalogView,
    reader: Reader,
    portals: Portals,
    statement: ast.Declare,
    types: Sequence[SqlType | None],
    text: str | None,
) -> Plan:
    query = _readable(view, reader, statement.query, types)
    endless = isinstance(statement.query, ast.Subscribe)
    name, transactions = statement.name.value, reader.transactions

    async def act(params: Sequence[Value]) -> Outcome:
        if not transactions.in_block and not statement.hold:
            raise InvalidTransactionState(
                "DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01"
            )
        portals.check_new(name)
        rows = await query.rows(params)
        portal = Portal(query.columns, text)
        portal.hold, portal.binary = statement.hold, statement.binary
        portal.cursor = SqlCursor(rows, reader.execution.interrupt, endless=endless)
        if not transactions.in_block:
            # Its transaction ends with the statement.
            try:
                await portal.cursor.keep()
            except BaseException:
                portal.close()
                raise
        portals.add(name, portal)
        return Complete("DECLARE CURSOR")

    return ActionOf(act, query.param_types)


# Runs a prepared statement within the running one.
RunPrepared = Callable[[PreparedStatement, Bound], Awaitable[Outcome]]


def no_such_cursor(name: str) -> TidemillError:
    return TidemillError(f'cursor "{name}" does not exist', sqlstate="34000")


async def _cursor(
    portals: Portals, interrupt: Interrupt, run: RunPrepared, name: str
) -> tuple[Portal, SqlCursor, tuple[Column, ...]]:
    """The portal, its remaining rows, and their columns. A portal of Bind that has not started is started."""
    portal = portals.find(name)
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
            outcome = await run(portal.prepared, portal.params)
            if not isinstance(outcome, Rows):
                raise cannot_run(name)
            endless, rows = outcome.endless, outcome.batches
            portal.tag, portal.counted = outcome.tag, outcome.counted
        portal.cursor = SqlCursor(rows or AtHand(iter(())), interrupt, endless=endless)
        portal.cursor.on_row = on_row
    return portal, portal.cursor, portal.columns


def plan_fetch(portals: Portals, interrupt: Interrupt, run: RunPrepared, statement: ast.Fetch) -> Plan:
    name = statement.cursor.value
    # A cursor that does not exist now may exist when the statement runs.
    known = portals.find(name)
    timeout = timeout_ms(statement.timeout)
    if statement.count is not None and statement.count < 0:
        raise Unsupported(
            "FETCH backward is not supported", hint="A cursor only goes forward.", sqlstate="55000"
        )

    async def act() -> Outcome:
        portal, cursor, columns = await _cursor(portals, interrupt, run, name)
        if statement.count == 0:
            # A portal of Bind never moves backward.
            current = None if isinstance(portal, BoundPortal) or not cursor.on_row else cursor.current
            if statement.move:
                return Complete(f"MOVE {int(cursor.on_row)}")
            if cursor.on_row and current is None:
                raise InvalidTransactionState("cursor can only scan forward", sqlstate="55000")
            again = AtHand(iter([] if current is None else [current]))
            return Rows(columns, again, tag="FETCH", binary=portal.binary)
        rows = cursor.fetch(statement.count, None if timeout is None else timeout / 1000)
        if statement.move:
            return Complete(f"MOVE {sum([b.num_rows async for b in rows])}")
        return Rows(columns, rows, tag="FETCH", binary=portal.binary)

    return Action(act, None if statement.move or known is None else known.columns)


async def close_cursor(portals: Portals, statement: ast.Close) -> Outcome:
    if statement.cursor is None:
        portals.clear()
        return Complete("CLOSE CURSOR ALL")
    if not portals.drop(statement.cursor.value):
        raise no_such_cursor(statement.cursor.value)
    return Complete("CLOSE CURSOR")


# -- EXPLAIN ---------------------------------------------------------------------------------------


def plan_explain(
    view: CatalogView,
    reader: Reader,
    statement: ast.Explain,
    types: Sequence[SqlType | None],
) -> Plan:
    from tidemill.engine.subscribe.statement import SubscribePlan

    if statement.options:
        name = statement.options[0][0]
        raise Unsupported(f"EXPLAIN option {name} is not supported", hint="Use plain EXPLAIN.")
    plan = _readable(view, reader, statement.statement, types)
    columns = text_columns("QUERY PLAN")

    def lines() -> list[str]:
        if isinstance(plan, SubscribePlan) and plan.collection is not None:
            return [f"Followed by SUBSCRIBE: fed from the new parts of {plan.label}; no Spark job"]
        bound = plan.bound
        said = bound.describe().splitlines()
        if bound.inputs and bound.determinism.within_session:
            how, *more = described(view.state, bound)
            said += [f"Followed by SUBSCRIBE: {how}", *more]
        return said

    async def act() -> Outcome:
        return text_rows(
            ["QUERY PLAN"], [(line,) for line in await reader.execution.blocking(lines)], tag="EXPLAIN"
        )

    return Action(act, columns, plan.param_types)


def _frontiers(ready: Readiness, item: Table | MaterializedView) -> tuple[int, int]:
    if isinstance(item, MaterializedView):
        return ready.views.shard(item).since, ready.views.readable(item)
    return ready.collections.shard(item).since, ready.collections.table_upper(item)


def plan_explain_timestamp(view: CatalogView, reader: Reader, statement: ast.ExplainTimestamp) -> Plan:
    plan = _spark_query(view, reader, statement.query, ())
    columns = text_columns("Timestamp")

    async def act() -> Outcome:
        as_of = await plan.as_of_time()
        ts = as_of.time if as_of is not None and not as_of.at_least else await reader.now()
        inputs = [
            view.state.relation(i) for i in plan.bound.inputs.values() if i not in SYSTEM_RELATIONS_BY_ID
        ]
        if timeline_of(inputs) is not None and (as_of is None or as_of.at_least):
            ts = latest_on(reader.readiness.ingestion, inputs)
        if as_of is not None and as_of.at_least:
            ts = max(ts, as_of.time)
        latest = await reader.now()
        lines = [
            f"                query timestamp: {show_time(ts, timeline_of(inputs))}",
            f"          oracle read timestamp: {show_time(latest)}",
            f"                      isolation: {reader.transactions.current.isolation}",
        ]
        for item in (
            *reading.table_inputs(view.state, plan.bound),
            *reading.view_inputs(view.state, plan.bound),
        ):
            since, upper = await reader.execution.blocking(_frontiers, reader.readiness, item)
            name = ".".join(quote_ident(p) for p in view.state.full_name(item))
            lines += [
                f"source {name}:",
                f"                  read frontier: {show_time_of(item, since)}",
                f"                 write frontier: {show_time_of(item, upper)}",
            ]
        return text_rows(["Timestamp"], [(line,) for line in lines], tag="EXPLAIN")

    return Action(act, columns)
