"""DISTINCT ON and FETCH FIRST ... WITH TIES: rows are kept by their rank in an order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.errors import SyntaxError_
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import position_of
from tidemill.sql.bind.expr import Env
from tidemill.sql.bind.ir import BoundNode, lower
from tidemill.sql.bind.limits import Ties, known_limit
from tidemill.sql.bind.tables import aliased, subquery_as
from tidemill.sql.functions.comparison import comparable
from tidemill.sql.functions.tree import Tree, and_, bigint, boolean, call, column, eq, gt, integer, le


def first_of_each(
    ctx: BindContext, select: exp.Select, on: Sequence[BoundNode], order: Sequence[exp.Ordered]
) -> exp.Select:
    """For each value of `on`, the first row in the order. The names of the select's columns do not change."""
    made = select.copy()
    keys = [aliased(comparable(lower(node), node.type), f"d{i}") for i, node in enumerate(on)]
    made.set("expressions", [*made.expressions, *keys])
    names = [exp.column(f"d{i}", quoted=True) for i in range(len(on))]
    # Without ORDER BY any row is valid, but Spark needs an order for row_number().
    items = [item.copy() for item in order] or [exp.Ordered(this=names[0].copy(), nulls_first=False)]
    number = _numbered("row_number", items, names)
    return _kept(ctx, made, [aliased(number, "rn")], lambda a: eq(column(a, "rn"), integer(1)))


def with_ties(
    env: Env, select: exp.Select, order: Sequence[exp.Ordered], query: exp.Expr, limit: Ties
) -> exp.Select:
    """The first rows, and the rows that are equal to the last of them. The rank of a row is the position of
    the first row that is equal to it."""
    if not order:
        raise SyntaxError_(
            "WITH TIES cannot be specified without ORDER BY clause", position=position_of(query)
        )
    count = known_limit(env, "limit", limit.count)
    skipped = known_limit(env, "offset", limit.offset) or 0
    number, rank = (_numbered(name, [i.copy() for i in order], []) for name in ("row_number", "rank"))

    def keep(alias: str) -> Tree:
        if count == 0:
            return boolean(False)
        behind = gt(column(alias, "rn"), bigint(skipped))
        if count is None:
            return behind
        return and_(behind, le(column(alias, "rk"), bigint(skipped + count)))

    return _kept(env.ctx, select, [aliased(number, "rn"), aliased(rank, "rk")], keep)


def _numbered(name: str, order: Sequence[exp.Ordered], partition: Sequence[exp.Expr]) -> exp.Expr:
    return exp.Window(
        this=call(name),
        partition_by=list(partition),
        order=exp.Order(expressions=list(order)),
        over="OVER",
    )


def _kept(
    ctx: BindContext, select: exp.Select, numbers: Sequence[exp.Alias], keep: Callable[[str], Tree]
) -> exp.Select:
    """The numbered rows of `select` that satisfy the condition."""
    inner, outer = ctx.alias(), ctx.alias()
    numbered = exp.Select(expressions=[exp.Star(), *numbers])
    numbered.set("from_", exp.From(this=subquery_as(select, inner)))
    kept = exp.Select(expressions=[exp.Star()])
    kept.set("from_", exp.From(this=subquery_as(numbered, outer)))
    kept.set("where", exp.Where(this=keep(outer)))
    return kept
