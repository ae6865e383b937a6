"""SELECT: select list, WHERE, GROUP BY, HAVING, DISTINCT, ORDER BY, LIMIT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidemill.errors import LimitExceeded, SyntaxError_
from tidemill.sql.bind.coerce import settle
from tidemill.sql.bind.colname import column_name
from tidemill.sql.bind.distinct import first_of_each, with_ties
from tidemill.sql.bind.errors import (
    GroupingError,
    InvalidColumnReference,
    missing_from,
    position_of,
    unsupported,
)
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.grouping import Grouping, group_sets, is_grouped
from tidemill.sql.bind.ir import GROUPING, Aggregate, BoundNode, Op, Window, lower, lower_filter, walk
from tidemill.sql.bind.limits import apply_limits, ties
from tidemill.sql.bind.ordering import OrderKey, OutputColumn, find_output, order_output
from tidemill.sql.bind.query import BoundParts, constants_of
from tidemill.sql.bind.scope import Scope
from tidemill.sql.bind.stages import expand, has_groups, has_rows, number_groups
from tidemill.sql.bind.tables import aliased, bind_from, select_from, star_columns, subquery_as
from tidemill.sql.functions.comparison import check_grouped
from tidemill.types.model import Column

# PostgreSQL's limit. A table has at most 1,600 columns, so that `*` and some more fit.
MAX_OUTPUTS = 1664

_Finish = Callable[[BoundNode], BoundNode]


def bind_select(env: Env, query: exp.Select, parent: Scope | None) -> BoundParts:
    source, scope = bind_from(env, query, parent)
    where = _condition(env, scope, query.args.get("where"), "WHERE")
    binder = Binder(env, scope, "SELECT", aggregates=True)
    binder.windows = {w.name: w for w in query.args.get("windows") or ()}
    binder.rows_allowed = True
    raw = _select_list(binder, query)
    if not raw:
        raise unsupported("a SELECT without columns", position_of(query))
    outputs = [OutputColumn(name, settle(env.ctx, node)) for name, node in raw]
    group = query.args.get("group")
    sets = (
        group_sets(group.expressions, _group_key(env, scope, group, outputs)) if group is not None else [[]]
    )
    having_node = query.args.get("having")
    having_binder = Binder(env, scope, "HAVING", aggregates=True)
    having = having_binder.boolean(having_node.this, "HAVING") if having_node is not None else None
    order_nodes = _order_nodes(binder, query, outputs)
    on = _distinct_on(binder, query, outputs)
    everything = [
        *(o.node for o in outputs),
        *order_nodes.values(),
        *on,
        *([having] if having is not None else []),
    ]
    finish: _Finish = _unchanged
    tree_source = source.whole() if source is not None else None
    # A join at the top level needs no parentheses.
    joins: list[exp.Join] = []
    if source is not None and source.joins:
        tree_source, joins = source.tree, source.joins
    condition = where
    grouped = group is not None or having is not None or any(is_grouped(n) for n in everything)
    if on:
        _check_distinct_on(query, outputs, order_nodes, on)
    if grouped:
        grouping = Grouping(env.ctx, scope, sets)
        for node in everything:
            grouping.collect(node)
        tree_source, joins = grouping.source(tree_source, joins, where), []
        finish = grouping.finish
        condition = finish(having) if having is not None else None
        outputs = [replace(o, node=finish(o.node)) for o in outputs]
        on = [finish(n) for n in on]
    parts = _Parts(tree_source, joins, condition, outputs, on)
    select = _assemble(env, scope, query, parts, order_nodes, finish)
    plain = source is None and not grouped and condition is None
    tail = any(query.args.get(k) for k in ("order", "limit", "offset", "distinct"))
    constants = constants_of([o.node for o in outputs]) if plain and not tail else None
    limited = select
    if ties(query) is None:
        limited = apply_limits(env, select, query, ordered=query.args.get("order") is not None)
    return BoundParts(
        limited,
        tuple(Column(o.name, o.node.type) for o in outputs),
        tuple(scope.outer),
        query.args.get("order") is not None,
        constants,
        tuple(node for _, node in raw) if not grouped else tuple(o.node for o in outputs),
    )


@dataclass(slots=True)
class _Parts:
    """The parts of a SELECT: a FROM item with its joins, a condition, the outputs, and the expressions of
    DISTINCT ON."""

    source: exp.Expr | None
    joins: Sequence[exp.Join]
    condition: BoundNode | None
    outputs: Sequence[OutputColumn]
    on: Sequence[BoundNode]


def _unchanged(node: BoundNode) -> BoundNode:
    return node


def _condition(env: Env, scope: Scope, clause: exp.Expr | None, name: str) -> BoundNode | None:
    return None if clause is None else Binder(env, scope, name).boolean(clause.this, name)


def _select_list(binder: Binder, query: exp.Select) -> list[tuple[str, BoundNode]]:
    result: list[tuple[str, BoundNode]] = []
    _check_width(len(query.expressions))
    for item in query.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star):
            if query.args.get("from_") is None:
                raise SyntaxError_(
                    "SELECT * with no tables specified is not valid", position=position_of(item)
                )
            result += star_columns(binder.scope, binder.scope.columns)
        elif isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star):
            parts = [
                p.name
                for p in (inner.args.get("catalog"), inner.args.get("db"), inner.args.get("table"))
                if p
            ]
            found = binder.scope.item(parts, position_of(inner))
            if found is None:
                raise missing_from(parts[-1], position_of(inner))
            result += star_columns(binder.scope, found.columns)
        else:
            result.append((column_name(item), binder.bind(inner)))
    _check_width(len(result))
    return result


def _check_width(outputs: int) -> None:
    if outputs > MAX_OUTPUTS:
        raise LimitExceeded(f"target lists can have at most {MAX_OUTPUTS} entries", sqlstate="54011")


def _group_key(
    env: Env, scope: Scope, group: exp.Group, outputs: Sequence[OutputColumn]
) -> Callable[[exp.Expr], BoundNode]:
    """The meaning of an expression of GROUP BY: an output by its number or name, or an expression."""
    if any(group.args.get(k) for k in ("grouping_sets", "cube", "rollup", "all", "totals")):
        raise unsupported("this form of GROUP BY", position_of(group))
    binder = Binder(env, scope, "GROUP BY")

    def key_of(item: exp.Expr) -> BoundNode:
        inner = item
        while isinstance(inner, exp.Paren):
            inner = inner.this
        index = find_output(inner, outputs, "GROUP BY") if isinstance(inner, exp.Literal) else None
        if (
            index is None
            and isinstance(inner, exp.Column)
            and not inner.table
            and not _is_input(scope, inner)
        ):
            # An output name counts only if no input column has this name.
            named = [i for i, o in enumerate(outputs) if o.name == inner.name]
            index = named[0] if named else None
        key = outputs[index].node if index is not None else settle(env.ctx, binder.bind(inner))
        for part in walk(key):
            if isinstance(part, Aggregate):
                raise GroupingError(
                    "aggregate functions are not allowed in GROUP BY", position=position_of(item)
                )
            if isinstance(part, Window):
                raise GroupingError(
                    "window functions are not allowed in GROUP BY", position=position_of(item)
                )
            if isinstance(part, Op) and part.key == GROUPING:
                raise GroupingError(
                    "grouping operations are not allowed in GROUP BY", position=position_of(item)
                )
        if has_rows(key):
            raise unsupported("a set-returning function in GROUP BY", position_of(item))
        check_grouped(key.type, "GROUP BY")
        return key

    return key_of


def _is_input(scope: Scope, node: exp.Column) -> bool:
    return any(v.name == node.name for v in scope.columns)


def _order_nodes(binder: Binder, query: exp.Select, outputs: Sequence[OutputColumn]) -> dict[int, BoundNode]:
    """ORDER BY expressions that are neither output names nor ordinals, bound over the input, by the identity
    of their node."""
    order = query.args.get("order")
    found: dict[int, BoundNode] = {}
    for item in order.expressions if order is not None else ():
        if find_output(item.this, outputs, "ORDER BY") is None:
            binder.clause = "ORDER BY"
            found[id(item.this)] = settle(binder.ctx, binder.bind(item.this))
    return found


# --- DISTINCT ON


def _distinct_on(binder: Binder, query: exp.Select, outputs: Sequence[OutputColumn]) -> list[BoundNode]:
    """The expressions of DISTINCT ON, which may name outputs like ORDER BY."""
    distinct = query.args.get("distinct")
    on = distinct.args.get("on") if distinct is not None else None
    if on is None:
        return []
    items = list(on.expressions) if isinstance(on, exp.Tuple) else [on]
    nodes: list[BoundNode] = []
    for item in items:
        inner = item.this if isinstance(item, exp.Paren) else item
        clause = "DISTINCT ON" if isinstance(inner, exp.Literal) else "ORDER BY"
        index = find_output(inner, outputs, clause)
        binder.clause = "DISTINCT ON"
        node = outputs[index].node if index is not None else settle(binder.ctx, binder.bind(inner))
        check_grouped(node.type, "DISTINCT ON")
        if node not in nodes:
            nodes.append(node)
    return nodes


def _check_distinct_on(
    query: exp.Select,
    outputs: Sequence[OutputColumn],
    order_nodes: dict[int, BoundNode],
    on: Sequence[BoundNode],
) -> None:
    """ORDER BY must begin with these expressions, in any order."""
    order = query.args.get("order")
    left = set(on)
    for item in order.expressions if order is not None else ():
        index = find_output(item.this, outputs, "ORDER BY")
        node = outputs[index].node if index is not None else order_nodes[id(item.this)]
        if node in on:
            left.discard(node)
        elif left:
            raise InvalidColumnReference(
                "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
                position=position_of(item),
            )


# --- the Spark query


def _assemble(
    env: Env,
    scope: Scope,
    query: exp.Select,
    parts: _Parts,
    order_nodes: dict[int, BoundNode],
    finish: _Finish,
) -> exp.Select:
    order = query.args.get("order")
    keys: list[OrderKey] = []
    if order is not None:
        keys = order_output(order, parts.outputs, lambda n: finish(order_nodes[id(n)]), "ORDER BY")
    hidden = [k.hidden for k in keys if k.hidden is not None]
    nodes = [*(o.node for o in parts.outputs), *hidden, *parts.on]
    source, joins, condition = parts.source, parts.joins, parts.condition
    if any(map(has_groups, nodes)):
        source, numbered = number_groups(env.ctx, scope, nodes, source, joins, condition)
        joins, condition = [], None
        nodes = [numbered(n) for n in nodes]
    if any(map(has_rows, nodes)):
        source, expanded = expand(env.ctx, scope, nodes, source, joins, condition)
        joins, condition = [], None
        nodes = [expanded(n) for n in nodes]
    count = len(parts.outputs)
    values, extra, on = nodes[:count], nodes[count : count + len(hidden)], nodes[count + len(hidden) :]
    select = select_from(source, [lower(n) for n in values])
    if joins:
        select.set("joins", [j.copy() for j in joins])
    if condition is not None:
        select.set("where", exp.Where(this=lower_filter(condition)))
    distinct = query.args.get("distinct")
    if distinct is not None and not on:
        for output in parts.outputs:
            check_grouped(output.node.type, "DISTINCT")
        if hidden:
            raise InvalidColumnReference(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                position=position_of(order),
            )
        select.set("distinct", exp.Distinct())
    limit = ties(query)
    if extra or on or limit is not None:
        behind = [aliased(lower(node), f"h{i}") for i, node in enumerate(extra)]
        select.set("expressions", [*select.expressions, *behind])
        items = [k.tree for k in keys]
        if on:
            select = first_of_each(env.ctx, select, on, items)
        if limit is not None:
            select = with_ties(env, select, items, query, limit)
        alias = env.ctx.alias()
        columns = [exp.column(f"c{i}", table=alias, quoted=True) for i in range(count)]
        select = select_from(subquery_as(select, alias), columns)
    if keys:
        select.set("order", exp.Order(expressions=[k.tree for k in keys]))
    return select
