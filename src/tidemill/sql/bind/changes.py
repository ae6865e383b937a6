"""The rows that UPDATE and DELETE change: a query over the table, joined to FROM or USING.

Rows have no identity: a table is a multiset. With a join, each copy of a row may match several rows of the
other side, but changes once. So the copies are numbered before the join, and one row per number is kept after
it. Which one is unspecified, as in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from tidemill.errors import Internal, UndefinedObject
from tidemill.sql.bind.coerce import assign
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import position_of
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.ir import BoundNode, Const, lower, lower_filter
from tidemill.sql.bind.model import BoundQuery, NameResolver, SessionInfo
from tidemill.sql.bind.query import BoundParts
from tidemill.sql.bind.scope import Scope, Visible
from tidemill.sql.bind.statements import finished
from tidemill.sql.bind.tables import From, aliased, bind_from, select_from, subquery_as
from tidemill.sql.functions.tree import call
from tidemill.types.model import Column, SqlType

# The number of a row's copy, and the number of a match of this copy. Users cannot have columns of these names
# (`types.names`).
_COPY, _PLACE = "mz_copy", "mz_place"


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
    if source is None:
        raise Internal("an UPDATE without a table")
    target = scope.items[0].columns
    condition = Binder(env, scope, "WHERE").boolean(where, "WHERE") if where is not None else None
    old = [scope.use(v) for v in target]
    columns = [Column(v.name, n.type) for v, n in zip(target, old, strict=True)]
    new = _assigned(env, scope, target, assignments, defaults or {}) if assignments else []
    outputs = [lower(n) for n in (*old, *new)]
    if others is None:
        tree = select_from(source.tree, outputs)
    else:
        tree = select_from(_numbered(source), outputs)
        tree.set("joins", [j.copy() for j in source.joins])
    if condition is not None:
        tree.set("where", exp.Where(this=lower_filter(condition)))
    if others is not None:
        tree = _once(ctx, tree, source.tree.alias, len(outputs))
    return finished(ctx, BoundParts(tree, (*columns, *(columns if new else ()))))


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


def _numbered(source: From) -> exp.Subquery:
    """The table that changes, under its alias, with a number for each copy of a row."""
    inner = source.tree.copy()
    alias = inner.alias
    inner.set("alias", None)
    number = aliased(call("monotonically_increasing_id"), _COPY)
    select = exp.Select(expressions=[exp.Star(), number], from_=exp.From(this=inner))
    return subquery_as(select, alias)


def _once(ctx: BindContext, tree: exp.Select, target: str, width: int) -> exp.Select:
    """`tree` with one row for each copy of a row of `target`."""
    copy = exp.column(_COPY, table=target, quoted=True)
    place = exp.Window(
        this=call("row_number"),
        partition_by=[copy],
        order=exp.Order(expressions=[exp.Ordered(this=copy.copy(), desc=False, nulls_first=True)]),
        over="OVER",
    )
    tree.set("expressions", [*tree.expressions, aliased(place, _PLACE)])
    alias = ctx.alias()
    columns = [exp.column(f"c{i}", table=alias, quoted=True) for i in range(width)]
    outer = select_from(subquery_as(tree, alias), columns)
    first = exp.EQ(this=exp.column(_PLACE, table=alias, quoted=True), expression=exp.Literal.number(1))
    outer.set("where", exp.Where(this=first))
    return outer
