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
from tidemill.engine.read.local_rows import text_columns, text_rows
from tidemill.engine.read.reading import AsOfTime
from tidemill.engine.read.time_expressions import evaluate_time, with_times
from tidemill.engine.read.timelines import latest_on
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.engine.session.cursors import Cursor
from tidemill.engine.session.durations import timeout_ms
from tidemill.engine.session.plan import Action, Plan, Value
from tidemill.engine.session.session import MAX_CURSORS, EngineSession
from tidemill.errors import (
    DuplicateObject,
    InvalidTransactionState,
    LimitExceeded,
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
    """SELECT and its kin, perhaps AS OF a time."""

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
        as_of = await self.as_of_time(session, params)
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
    """The system's relations are answered here where that is possible, everything else by Spark."""
    if query.tree.find(exp.Table) is not None:
        here = plan_catalog_query(session, query, types, catalog)
        if here is not None:
            return here
        return _spark_query(session, query, types, catalog)
    try:
        return _spark_query(session, query, types, catalog)
    except (UndefinedObject, Unsupported):
        # No relation, and something that only the catalog knows: SELECT 't'::regclass.
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
    """The plan of what COPY, DECLARE and EXPLAIN hold: a query, or a subscription."""

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

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.query.param_types

    @property
    def columns(self) -> None:
        return None

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        if not session.current.explicit and not self.hold:
            raise InvalidTransactionState(
                "DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01"
            )
        if self.name in session.cursors:
            raise DuplicateObject(f'cursor "{self.name}" already exists', sqlstate="42P03")
        if len(session.cursors) >= MAX_CURSORS:
            raise LimitExceeded(f"too many open cursors (limit {MAX_CURSORS})", hint="CLOSE some.")
        rows = await self.query.rows(session, params)
        cursor = Cursor(self.query.columns, rows, endless=self.endless, hold=self.hold, binary=self.binary)
        if not session.current.explicit:
            # Its transaction ends with the statement.
            try:
                await cursor.keep(session)
            except BaseException:
                cursor.close()
                raise
        session.cursors[self.name] = cursor
        return Complete("DECLARE CURSOR")


def plan_declare(
    session: EngineSession, statement: ast.Declare, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    query = _readable(session, statement.query, types, catalog)
    endless = isinstance(statement.query, ast.Subscribe)
    return DeclarePlan(statement.name.value, query, endless, statement.hold, statement.binary)


def find_cursor(session: EngineSession, name: str) -> Cursor:
    cursor = session.cursors.get(name)
    if cursor is None:
        raise TidemillError(f'cursor "{name}" does not exist', sqlstate="34000")
    return cursor


def plan_fetch(session: EngineSession, statement: ast.Fetch) -> Plan:
    cursor = find_cursor(session, statement.cursor.value)
    timeout = timeout_ms(statement.timeout)
    if statement.count is not None and statement.count < 0:
        raise Unsupported(
            "FETCH backward is not supported", hint="A cursor only goes forward.", sqlstate="55000"
        )

    async def act(s: EngineSession) -> Outcome:
        now = find_cursor(s, statement.cursor.value)
        seconds = None if timeout is None else timeout / 1000
        if statement.move:
            passed = [b.num_rows async for b in now.fetch(s, statement.count, seconds)]
            return Complete(f"MOVE {sum(passed)}")
        rows = now.fetch(s, statement.count, seconds)
        return Rows(now.columns, rows, tag="FETCH", binary=now.binary)

    return Action(act, None if statement.move else cursor.columns)


def plan_close(session: EngineSession, statement: ast.Close) -> Plan:
    del session

    async def act(s: EngineSession) -> Outcome:
        names = list(s.cursors) if statement.cursor is None else [statement.cursor.value]
        for name in names:
            find_cursor(s, name).close()
            del s.cursors[name]
        return Complete("CLOSE CURSOR ALL" if statement.cursor is None else "CLOSE CURSOR")

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
