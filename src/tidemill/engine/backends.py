"""SELECT pg_cancel_backend(pid) and SELECT pg_terminate_backend(pid): what other sessions run, or the
sessions themselves, are ended.

Called by `planner` for every query: one whose select list has such a call is answered here, all others go
on to `select`. The calls do something, so they are no functions like the others: planning or describing them
must not, and inside an expression or a condition nobody could say how often they are called. In the select
list of a query over system relations it is once for each of its rows. Who may is as in PostgreSQL: whoever
has the rights of the session's role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.privileges import PermissionDenied
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Outcome, Rows
from tidemill.engine.catalog_query import CatalogQueryPlan, plan_catalog_query
from tidemill.engine.local_rows import stream
from tidemill.engine.plan import Plan, Value
from tidemill.engine.select import plan_query as plan_other
from tidemill.errors import Notice, Unavailable, UndefinedObject, Unsupported
from tidemill.sql import ast
from tidemill.types.model import BOOL, Column, SqlType

if TYPE_CHECKING:
    from tidemill.engine.session import EngineSession

_NAMES = ("pg_cancel_backend", "pg_terminate_backend")
# What a query with such calls may have beside its select list: with these its rows are what they seem.
_ALLOWED = ("expressions", "kind", "from_", "joins", "where", "order", "limit", "offset", "with_")


@dataclass(slots=True)
class BackendCalls:
    """`query` has the process ids in the places of the calls; `calls` says which call by the column."""

    query: CatalogQueryPlan
    calls: Mapping[int, str]

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.query.param_types

    @property
    def columns(self) -> tuple[Column, ...]:
        shown = self.query.columns
        return tuple(Column(c.name, BOOL) if n in self.calls else c for n, c in enumerate(shown))

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        table = await self.query.table(session, params)
        for at, name in self.calls.items():
            ids: list[int | None] = table.column(at).to_pylist()
            done = [None if i is None else _call(session, name, i) for i in ids]
            table = table.set_column(at, table.schema.names[at], pa.array(done, pa.bool_()))
        return Rows(self.columns, stream(table))


def plan_query(
    s: EngineSession, query: ast.Query, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    tree = query.tree
    calls = _calls(tree) if isinstance(tree, exp.Select) else {}
    if not calls:
        try:
            return plan_other(s, query, types, catalog)
        except UndefinedObject as e:
            name = next((n for f in tree.find_all(exp.Func) if (n := _name(f)) in _NAMES), None)
            if e.sqlstate == "42883" and name is not None:
                raise _misplaced(name) from None
            raise
    first = next(iter(calls.values()))
    if query.as_of is not None or any(v for k, v in tree.args.items() if k not in _ALLOWED):
        raise _misplaced(first)
    found = tree.copy()
    for at, name in calls.items():
        _take_argument(found, at, name)
    plan = plan_catalog_query(s, replace(query, tree=found), types, catalog)
    if plan is None:
        raise _misplaced(first)
    return BackendCalls(plan, calls)


def _calls(tree: exp.Select) -> dict[int, str]:
    named = ((n, _name(e.this if isinstance(e, exp.Alias) else e)) for n, e in enumerate(tree.expressions))
    return {n: name for n, name in named if name in _NAMES}


def _name(node: object) -> str:
    return str(node.meta.get("function", node.name)) if isinstance(node, exp.Func) else ""


def _take_argument(tree: exp.Expr, at: int, name: str) -> None:
    item = tree.expressions[at]
    call = item.this if isinstance(item, exp.Alias) else item
    if len(call.expressions) != 1:
        raise _misplaced(name)
    number = exp.Cast(this=call.expressions[0].copy(), to=exp.DataType(this=exp.DType.INT))
    called = item.args["alias"] if isinstance(item, exp.Alias) else exp.to_identifier(name)
    item.replace(exp.Alias(this=number, alias=called))


def _misplaced(name: str) -> Unsupported:
    return Unsupported(
        f"{name}() in this place is not supported",
        hint=f"Write SELECT {name}(pid) FROM pg_stat_activity WHERE ..., or with the number of one session.",
    )


def _call(s: EngineSession, name: str, process_id: int) -> bool:
    target = s.engine.session(process_id)
    if target is None:
        s.notice(Notice(f"PID {process_id} is not a PostgreSQL backend process", "WARNING"))
        return False
    catalog = s.engine.catalog.state
    mine = s.privileges(catalog)
    cancels = name == "pg_cancel_backend"
    theirs = catalog.find_role(target.role)
    if not mine.superuser and (theirs is None or theirs.superuser or not mine.acts_as(theirs.id)):
        what = "cancel query" if cancels else "terminate process"
        raise PermissionDenied(
            f"permission denied to {what}",
            detail="Only roles with privileges of the role whose session it is may do so.",
        )
    if cancels:
        target.cancel()
        return True
    return target.terminate(
        Unavailable("terminating connection due to administrator command", sqlstate="57P01")
    )
