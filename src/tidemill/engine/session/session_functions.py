"""Functions with side effects: pg_cancel_backend, pg_terminate_backend, set_config, pg_sleep.

`planner` calls this module for every query. A query whose select list has such a call is planned here; all
others continue to `select`. These calls differ from other functions: planning or describing them must have no
effect, and inside an expression or a condition the number of calls would be undefined. In the select list of
a query over system relations, or over none, a call runs once for each row.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidemill.engine.api import Outcome, Rows
from tidemill.engine.read.catalog_query import CatalogQueryPlan, plan_catalog_query
from tidemill.engine.read.local_rows import stream
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.select import QueryPlan
from tidemill.engine.read.select import plan_query as plan_other
from tidemill.engine.session.backends import Backends
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.plan import Plan, Value
from tidemill.engine.session.settings import SessionSettings
from tidemill.errors import InvalidValue, Unsupported
from tidemill.sql import ast
from tidemill.sql.functions.signature import statement_call
from tidemill.types.arrow import arrow_type
from tidemill.types.model import BOOL, TEXT, VOID, Column, SqlType

# The clauses that a query with such calls may have beside its select list: they keep the number of calls
# defined.
_ALLOWED = ("expressions", "kind", "from_", "joins", "where", "order", "limit", "offset", "with_")


@dataclass(frozen=True, slots=True)
class CallTargets:
    """What the functions of a session act on."""

    interrupt: Interrupt
    settings: SessionSettings
    backends: Backends


@dataclass(frozen=True, slots=True)
class SideEffectFunction:
    """One function. `call` takes what it acts on and a value for each of `args`, None for NULL; its result
    may be an awaitable."""

    args: tuple[exp.DType, ...]
    result: SqlType
    call: Callable[..., Any]
    hint: str


async def _sleep(on: CallTargets, seconds: float | None) -> str | None:
    """A cancel and the statement's time-out end the sleep; it uses no thread."""
    if seconds is None:
        return None
    if seconds > 0:  # not of NaN
        await on.interrupt.guard(asyncio.sleep(seconds))
    return ""


async def _sleep_for(on: CallTargets, span: Mapping[str, int] | None) -> str | None:
    """An interval as seconds; months have 30 days."""
    if span is None:
        return None
    days = timedelta(days=30 * span["months"] + span["days"], microseconds=span["micros"])
    return await _sleep(on, days.total_seconds())


async def _sleep_until(on: CallTargets, end: datetime | None) -> str | None:
    return await _sleep(on, None if end is None else (end - datetime.now(UTC)).total_seconds())


def _set_config(on: CallTargets, name: str | None, value: str | None, local: bool | None) -> str:
    if name is None:
        raise InvalidValue("SET requires parameter name", sqlstate="22004")
    return on.settings.set(name, value, local=bool(local))


_OF_ONE = "Write SELECT {}(pid) FROM pg_stat_activity WHERE ..., or with the number of one session."
_ALONE = (
    "Write SELECT {}, without a relation of your own: nobody can say how often another query would sleep."
)
_FUNCTIONS: Mapping[str, SideEffectFunction] = {
    "pg_cancel_backend": SideEffectFunction(
        (exp.DType.INT,), BOOL, lambda on, pid: on.backends.cancel(pid), _OF_ONE.format("pg_cancel_backend")
    ),
    "pg_terminate_backend": SideEffectFunction(
        (exp.DType.INT,),
        BOOL,
        lambda on, pid: on.backends.terminate(pid),
        _OF_ONE.format("pg_terminate_backend"),
    ),
    "set_config": SideEffectFunction(
        (exp.DType.TEXT, exp.DType.TEXT, exp.DType.BOOLEAN),
        TEXT,
        _set_config,
        "Write SELECT set_config(name, value, is_local), without a relation of your own.",
    ),
    "pg_sleep": SideEffectFunction((exp.DType.DOUBLE,), VOID, _sleep, _ALONE.format("pg_sleep(seconds)")),
    "pg_sleep_for": SideEffectFunction(
        (exp.DType.INTERVAL,), VOID, _sleep_for, _ALONE.format("pg_sleep_for(interval)")
    ),
    "pg_sleep_until": SideEffectFunction(
        (exp.DType.TIMESTAMPTZ,), VOID, _sleep_until, _ALONE.format("pg_sleep_until(time)")
    ),
}
for _function, _acting in _FUNCTIONS.items():
    statement_call(_function, _acting.hint)


@dataclass(frozen=True, slots=True)
class SessionCall:
    """One call in a select list: the position of its value, and the query columns that are its arguments."""

    at: int
    function: SideEffectFunction
    args: tuple[int, ...]


@dataclass(slots=True)
class ActingQuery:
    """In `query` the first argument of each call replaces the call, and the other arguments are at the
    end."""

    on: CallTargets
    query: CatalogQueryPlan | QueryPlan
    calls: Sequence[SessionCall]
    width: int

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.query.param_types

    @property
    def columns(self) -> tuple[Column, ...]:
        shown = list(self.query.columns[: self.width])
        for call in self.calls:
            shown[call.at] = Column(shown[call.at].name, call.function.result)
        return tuple(shown)

    async def run(self, params: Sequence[Value]) -> Outcome:
        if not self.query.reads:
            return await self._in_order(params)
        table = await self.query.table(params)
        values: list[list[Any]] = [[] for _ in self.calls]
        given = [[table.column(n).to_pylist() for n in call.args] for call in self.calls]
        for row in range(table.num_rows):
            for call, columns, made in zip(self.calls, given, values, strict=True):
                made.append(await _called(call, self.on, [column[row] for column in columns]))
        shown = table.select(range(self.width))
        for call, made in zip(self.calls, values, strict=True):
            array = pa.array(made, arrow_type(call.function.result))
            shown = shown.set_column(call.at, shown.schema.names[call.at], array)
        return Rows(self.columns, stream(shown))

    async def _in_order(self, params: Sequence[Value]) -> Outcome:
        """For a query without relations: columns after a call see its effects."""
        table = await self.query.table(params)
        calls = {call.at: call for call in self.calls}
        shown: list[pa.Array] = []
        for at in range(self.width):
            call = calls.get(at)
            if call is None:
                shown.append(table.column(at))
                continue
            given = zip(*(table.column(n).to_pylist() for n in call.args), strict=True)
            made = [await _called(call, self.on, row) for row in given]
            shown.append(pa.array(made, arrow_type(call.function.result)))
            if at + 1 < self.width:
                table = await self.query.table(params)
        return Rows(self.columns, stream(pa.Table.from_arrays(shown, names=table.schema.names[: self.width])))


async def _called(call: SessionCall, on: CallTargets, args: Sequence[Any]) -> Any:
    made = call.function.call(on, *args)
    return await made if inspect.isawaitable(made) else made


def plan_query(
    view: CatalogView,
    reader: Reader,
    on: CallTargets,
    query: ast.Query,
    types: Sequence[SqlType | None],
) -> Plan:
    tree = query.tree
    named = _named(tree) if isinstance(tree, exp.Select) else {}
    if not named:
        return plan_other(view, reader, query, types)
    first = next(iter(named.values()))
    if query.as_of is not None or any(v for k, v in tree.args.items() if k not in _ALLOWED):
        raise _misplaced(first)
    found = tree.copy()
    width = len(found.expressions)
    calls = [_taken(found, at, name) for at, name in named.items()]
    asked = replace(query, tree=found)
    plan: CatalogQueryPlan | QueryPlan | None = plan_catalog_query(view, reader, asked, types)
    if plan is None and found.args.get("from_") is None:
        plan = plan_other(view, reader, asked, types)
    if plan is None or len(plan.columns) != len(found.expressions):
        raise _misplaced(first)
    return ActingQuery(on, plan, calls, width)


def _named(tree: exp.Select) -> dict[int, str]:
    named = ((n, _name(_bare(e))) for n, e in enumerate(tree.expressions))
    return {n: name for n, name in named if name in _FUNCTIONS}


def _bare(item: exp.Expr) -> exp.Expr:
    """The call without its alias, and without the schema of built-in functions."""
    found = item.this if isinstance(item, exp.Alias) else item
    if isinstance(found, exp.Dot) and found.this.name == "pg_catalog":
        return found.expression
    return found


def _name(node: object) -> str:
    return str(node.meta.get("function", node.name)) if isinstance(node, exp.Func) else ""


def _taken(tree: exp.Expr, at: int, name: str) -> SessionCall:
    """The call with its arguments assigned to the columns that they are read from."""
    item = tree.expressions[at]
    function = _FUNCTIONS[name]
    given = [e.copy() for e in _bare(item).expressions]
    if len(given) != len(function.args):
        raise _misplaced(name)
    cast = [exp.Cast(this=e, to=exp.DataType(this=t)) for e, t in zip(given, function.args, strict=True)]
    called = item.args["alias"] if isinstance(item, exp.Alias) else exp.to_identifier(name)
    item.replace(exp.Alias(this=cast[0], alias=called))
    behind = len(tree.expressions)
    for argument in cast[1:]:
        tree.append("expressions", argument)
    return SessionCall(at, function, (at, *range(behind, behind + len(cast) - 1)))


def _misplaced(name: str) -> Unsupported:
    return Unsupported(f"{name}() in this place is not supported", hint=_FUNCTIONS[name].hint)
