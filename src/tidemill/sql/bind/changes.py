"""The rows that UPDATE and DELETE change: a query over the table, joined to FROM or USING.

Rows have no identity: a table is a multiset. With a join, each copy of a row may match several rows of the
other side, but changes once. So the copies are numbered before the join, and one row per number is kept after
it. Which one is unspecified, as in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from tidemill.errors import Internal, UndefinedObject
from tidemill.sql.bind.coerce import assign
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import position_of
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.model import BoundQuery, NameResolver, SessionInfo
from tidemill.sql.bind.query import BoundParts
from tidemill.sql.bind.scope import Scope, Visible
from tidemill.sql.bind.statements import finished
from tidemill.sql.bind.tables import bind_from, columns_named
from tidemill.sql.plan.expressions import BoundNode, Const, Ref
from tidemill.sql.plan.operators import (
    Copies,
    Filter,
    FirstOfEach,
    Join,
    Named,
    Operator,
    Output,
    Project,
    Scan,
    inputs,
    outputs,
)
from tidemill.types.model import INT8, Column, SqlType

# The number of a row's copy. Users cannot have a column of this name (`types.names`).
_COPY = "mz_copy"


def bind_update(
    table: exp.Table,
    assignments: Mapping[str, exp.Expr | None],
    where: exp.Expr | None,
    names: NameResolver,
    *,
    session: SessionInfo,
    others: exp.Expr | None = None,
    defaults: Mapping[str, exp.Expr] | None = None,
    param_types: Sequence[SqlType | None] = (),
) -> BoundQuery:
    """The rows that an UPDATE changes: the table's old columns, followed by all new ones (None assigns the
    default). A DELETE is an UPDATE without assignments, and returns only the old columns. `others` is SELECT
    * FROM the items of FROM or USING."""
    ctx = BindContext(session, param_types)
    env = Env(ctx, names, {})
    select = exp.Select(expressions=[exp.Star()])
    select.set("from_", exp.From(this=table))
    if others is not None:
        select.set("joins", [exp.Join(this=_together(others))])
    source, scope = bind_from(env, select, None)
    target = scope.items[0].columns
    condition = Binder(env, scope, "WHERE").boolean(where, "WHERE") if where is not None else None
    old = [scope.use(v) for v in target]
    columns = [Column(v.name, n.type) for v, n in zip(target, old, strict=True)]
    new = _assigned(env, scope, target, assignments, defaults or {}) if assignments else []
    if others is not None:
        source = _numbered(source)
    if condition is not None:
        source = Filter(source, condition)
    listed = outputs((*old, *new))
    plan: Operator = Project(source, listed)
    if others is not None:
        # One match of each copy of a row.
        copy = Output("d0", Ref(INT8, _target(source).alias, _COPY))
        alias = ctx.alias()
        first = Named(FirstOfEach(Project(source, (*listed, copy)), (copy.name,)), alias)
        plan = Project(first, outputs(columns_named(alias, [o.node.type for o in listed])))
    return finished(ctx, BoundParts(plan, (*columns, *(columns if new else ()))))


def _assigned(
    env: Env,
    scope: Scope,
    target: Sequence[Visible],
    assignments: Mapping[str, exp.Expr | None],
    defaults: Mapping[str, exp.Expr],
) -> list[BoundNode]:
    known = {v.name for v in target}
    for name in assignments:
        if name not in known:
            raise UndefinedObject(f'column "{name}" of relation does not exist', sqlstate="42703")
    binder = Binder(env, scope, "UPDATE")
    new: list[BoundNode] = []
    for column in target:
        current = scope.use(column)
        if column.name not in assignments:
            new.append(current)
            continue
        value = assignments[column.name]
        value = defaults.get(column.name) if value is None else value
        if value is None:
            new.append(Const(current.type, None))
        else:
            new.append(assign(env.ctx, binder.bind(value), current.type, column.name, position_of(value)))
    return new


def _together(others: exp.Expr) -> exp.Subquery:
    """(a JOIN b ...). Joins among the items do not see the table that changes."""
    first = others.args["from_"].this.copy()
    first.set(
        "joins", [*(first.args.get("joins") or ()), *(j.copy() for j in others.args.get("joins") or ())]
    )
    return exp.Subquery(this=first)


def _numbered(source: Operator) -> Operator:
    """The table that changes, which is the leftmost, with a number for each copy of a row."""
    if isinstance(source, Join):
        return replace(source, left=_numbered(source.left))
    if not isinstance(source, Scan):
        raise Internal("a change of what is no table")
    return Copies(source, _COPY)


def _target(source: Operator) -> Scan:
    while not isinstance(source, Copies):
        source = inputs(source)[0]
    return source.input
