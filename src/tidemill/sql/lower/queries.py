"""Relational operators as Spark SQL queries.

Neighbouring operators become one SELECT where SQL has a clause for each: joins, WHERE, the select list,
DISTINCT, ORDER BY and LIMIT. Trees are made anew at each call and may be changed by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from tidemill.errors import Internal
from tidemill.sql.functions.comparison import sortable
from tidemill.sql.functions.tree import Tree, and_, bigint, boolean, call, column, eq, gt, integer, le
from tidemill.sql.functions.tree import field as field_of
from tidemill.sql.lower.expressions import lower, lower_filter
from tidemill.sql.lower.grouping import lower_group
from tidemill.sql.lower.limits import limit_clause
from tidemill.sql.lower.rows import lower_rows, lower_series, lower_table_function
from tidemill.sql.lower.select import aliased, select_from, subquery_as
from tidemill.sql.plan.expressions import BoundNode, Op, Ref, SortKey
from tidemill.sql.plan.operators import (
    Copies,
    Distinct,
    Expand,
    Filter,
    FirstOfEach,
    Group,
    Join,
    Limit,
    Named,
    OneRow,
    Operator,
    PreviousRound,
    Project,
    Recursive,
    Rows,
    Scan,
    Series,
    SetOperation,
    Sort,
    TableFunction,
    Ties,
)
from tidemill.types.model import BOOL

# Aliases of queries that are only made here. The plan's aliases begin with another letter; none of these is
# named outside its own query, so they may repeat.
_INNER, _OUTER = "s1", "s2"


def lower_query(operator: Operator) -> exp.Expr:
    """The operator's rows as a query."""
    found = _QUERIES.get(type(operator))
    if found is None:
        raise Internal(f"{type(operator).__name__} is no query")
    return found(operator)


@dataclass(slots=True)
class Source:
    """FROM with its joins, WHERE and ORDER BY of one SELECT."""

    tree: exp.Expr | None
    joins: list[exp.Expr] = field(default_factory=list[exp.Expr])
    where: BoundNode | None = None
    order: Sequence[SortKey] = ()

    def whole(self) -> exp.Expr:
        """The FROM item; a join is in parentheses."""
        if self.tree is None or self.where is not None or self.order:
            raise Internal("no item of FROM")
        if not self.joins:
            return self.tree
        self.tree.set("joins", self.joins)
        return exp.Subquery(this=self.tree)

    def select(self, columns: Sequence[exp.Expr]) -> exp.Select:
        select = exp.Select(expressions=list(columns))
        if self.tree is not None:
            select.set("from_", exp.From(this=self.tree))
        if self.joins:
            select.set("joins", self.joins)
        if self.where is not None:
            select.set("where", exp.Where(this=lower_filter(self.where)))
        return _sorted(select, self.order)


def lower_source(operator: Operator) -> Source:
    """The operator's rows as FROM and WHERE."""
    if isinstance(operator, Filter):
        source = lower_source(operator.input)
        above, below = operator.condition, source.where
        source.where = above if below is None else Op(BOOL, "and", (below, above), lambda a: and_(*a))
        return source
    if isinstance(operator, Sort):
        source = lower_source(operator.input)
        source.order = operator.keys
        return source
    if isinstance(operator, Join):
        source = lower_source(operator.left)
        source.joins.append(_join(operator))
        return source
    return Source(_item(operator))


def _item(operator: Operator) -> exp.Expr | None:
    if isinstance(operator, OneRow):
        return None
    if isinstance(operator, Scan):
        return _table(operator.placeholder, operator.alias)
    if isinstance(operator, PreviousRound):
        return exp.Table(this=exp.to_identifier(operator.alias, quoted=True))
    if isinstance(operator, Copies):
        inner = exp.Table(this=exp.to_identifier(operator.input.placeholder, quoted=True))
        number = aliased(call("monotonically_increasing_id"), operator.number)
        select = exp.Select(expressions=[exp.Star(), number], from_=exp.From(this=inner))
        return subquery_as(select, operator.input.alias)
    if isinstance(operator, Named):
        query = lower_query(operator.input)
        if not operator.lateral:
            return subquery_as(query, operator.alias)
        alias = exp.TableAlias(this=exp.to_identifier(operator.alias, quoted=True))
        return exp.Lateral(this=exp.Subquery(this=query), alias=alias)
    raise Internal(f"{type(operator).__name__} is no item of FROM")


def _table(name: str, alias: str) -> exp.Table:
    named = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
    return exp.Table(this=exp.to_identifier(name, quoted=True), alias=named)


def _join(join: Join) -> exp.Join:
    tree = exp.Join(this=lower_source(join.right).whole())
    if join.condition is not None:
        tree.set("on", lower_filter(join.condition))
    if join.side:
        tree.set("side", join.side)
        if join.condition is None:
            tree.set("on", exp.true())
    else:
        tree.set("kind", "CROSS" if join.condition is None else "INNER")
    return tree


# --- one SELECT


def _project(operator: Project) -> exp.Expr:
    columns = [aliased(lower(o.node), o.name) for o in operator.outputs]
    return lower_source(operator.input).select(columns)


def _distinct(operator: Distinct) -> exp.Expr:
    select = _plain_select(operator.input)
    select.set("distinct", exp.Distinct())
    return select


def _sort(operator: Sort) -> exp.Expr:
    return _sorted(_plain_select(operator.input), operator.keys)


def _plain_select(operator: Operator) -> exp.Select:
    """The operator as a SELECT without ORDER BY and LIMIT."""
    query = lower_query(operator)
    if not isinstance(query, exp.Select) or any(query.args.get(k) for k in ("order", "limit", "offset")):
        raise Internal(f"{type(operator).__name__} below a clause that needs a plain SELECT")
    return query


def _sorted(select: exp.Select, keys: Sequence[SortKey]) -> exp.Select:
    if keys:
        select.set("order", exp.Order(expressions=_order(keys)))
    return select


def _order(keys: Sequence[SortKey]) -> list[exp.Expr]:
    """Items of ORDER BY. The keys are columns, which Spark finds without their alias: in the outputs, else in
    FROM."""
    items: list[exp.Expr] = []
    for key in keys:
        if not isinstance(key.node, Ref):
            raise Internal("a sort key that is no column")
        value = sortable(exp.column(key.node.name, quoted=True), key.node.type)
        items.append(exp.Ordered(this=value, desc=key.descending, nulls_first=key.nulls_first))
    return items


def _limit(operator: Limit) -> exp.Expr:
    query = lower_query(operator.input)
    if not isinstance(query, exp.Select) or query.args.get("limit") or query.args.get("offset"):
        query = exp.Select(expressions=[exp.Star()], from_=exp.From(this=subquery_as(query, _INNER)))
    query.set("offset", limit_clause("offset", operator.skipped))
    query.set("limit", limit_clause("limit", operator.count))
    return query


# --- queries over queries


def _set_operation(operator: SetOperation) -> exp.Expr:
    kind = {"UNION": exp.Union, "INTERSECT": exp.Intersect, "EXCEPT": exp.Except}[operator.kind]
    sides = lower_query(operator.left), lower_query(operator.right)
    return kind(this=sides[0], expression=sides[1], distinct=operator.distinct)


def _group(operator: Group) -> exp.Expr:
    return lower_group(operator, lambda columns: lower_source(operator.input).select(columns))


def _expand(operator: Expand) -> exp.Expr:
    source = lower_source(operator.input)
    columns = [aliased(lower(ref), ref.name) for ref in operator.kept]
    arrays = operator.arrays
    if len(arrays) == 1:
        return source.select([*columns, aliased(call("explode", lower(arrays[0])), "e0")])
    zipped = aliased(call("explode", call("arrays_zip", *map(lower, arrays))), "z")
    outer = [aliased(column(_INNER, ref.name), ref.name) for ref in operator.kept]
    outer += [
        aliased(field_of(column(_INNER, "z"), ref.name), f"e{i}") for i, ref in enumerate(operator.arrays)
    ]
    return Source(subquery_as(source.select([*columns, zipped]), _INNER)).select(outer)


def _first_of_each(operator: FirstOfEach) -> exp.Expr:
    names: list[exp.Expr] = [exp.column(name, quoted=True) for name in operator.keys]
    # Without an order any row will do, but Spark needs one for row_number().
    order = _order(operator.order) or [exp.Ordered(this=names[0].copy(), nulls_first=False)]
    number = aliased(_ranked("row_number", order, names), "rn")
    return _kept(lower_query(operator.input), [number], eq(column(_OUTER, "rn"), integer(1)))


def _ties(operator: Ties) -> exp.Expr:
    """The rank of a row is the position of the first row that is equal to it."""
    place, rank = (_ranked(name, _order(operator.order), []) for name in ("row_number", "rank"))
    condition = gt(column(_OUTER, "rn"), bigint(operator.skipped))
    if operator.count == 0:
        condition = boolean(False)
    elif operator.count is not None:
        last = bigint(operator.skipped + operator.count)
        condition = and_(condition, le(column(_OUTER, "rk"), last))
    return _kept(lower_query(operator.input), [aliased(place, "rn"), aliased(rank, "rk")], condition)


def _ranked(name: str, order: Sequence[exp.Expr], partition: Sequence[exp.Expr]) -> exp.Expr:
    return exp.Window(
        this=call(name),
        partition_by=list(partition),
        order=exp.Order(expressions=list(order)),
        over="OVER",
    )


def _kept(query: exp.Expr, numbers: Sequence[exp.Alias], condition: Tree) -> exp.Select:
    """The numbered rows of the query that satisfy the condition, with their numbers."""
    numbered = exp.Select(expressions=[exp.Star(), *numbers])
    numbered.set("from_", exp.From(this=subquery_as(query, _INNER)))
    kept = exp.Select(expressions=[exp.Star()])
    kept.set("from_", exp.From(this=subquery_as(numbered, _OUTER)))
    kept.set("where", exp.Where(this=condition))
    return kept


def _recursive(operator: Recursive) -> exp.Expr:
    names = [f"c{i}" for i in range(operator.width)]
    table = exp.Table(this=exp.to_identifier(operator.alias, quoted=True))
    whole = select_from(table, [column(operator.alias, name) for name in names])
    idents = [exp.to_identifier(name, quoted=True) for name in names]
    cte = exp.CTE(
        this=exp.Union(
            this=lower_query(operator.first), expression=lower_query(operator.step), distinct=False
        ),
        alias=exp.TableAlias(this=exp.to_identifier(operator.alias, quoted=True), columns=idents),
    )
    whole.set("with_", exp.With(expressions=[cte], recursive=True))
    return whole


_QUERIES: dict[type[Operator], Callable[[Any], exp.Expr]] = {
    Project: _project,
    Distinct: _distinct,
    Sort: _sort,
    Limit: _limit,
    SetOperation: _set_operation,
    Group: _group,
    Expand: _expand,
    FirstOfEach: _first_of_each,
    Ties: _ties,
    Recursive: _recursive,
    Rows: lower_rows,
    Series: lower_series,
    TableFunction: lower_table_function,
}
