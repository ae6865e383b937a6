"""SELECT: select list, WHERE, GROUP BY, HAVING, DISTINCT, ORDER BY, LIMIT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidemill.errors import LimitExceeded, SyntaxError_
from tidemill.sql.bind.coerce import settle
from tidemill.sql.bind.colname import column_name
from tidemill.sql.bind.distinct import distinct_key, with_ties
from tidemill.sql.bind.errors import (
    GroupingError,
    InvalidColumnReference,
    missing_from,
    position_of,
    unsupported,
)
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.grouping import Grouping, group_sets, is_grouped
from tidemill.sql.bind.limits import limited, ties
from tidemill.sql.bind.ordering import OrderKey, OutputColumn, find_output, order_output
from tidemill.sql.bind.query import BoundParts, constants_of
from tidemill.sql.bind.scope import Scope
from tidemill.sql.bind.stages import expand, has_groups, has_rows, number_groups
from tidemill.sql.bind.tables import bind_from, columns_named, star_columns
from tidemill.sql.functions.comparison import check_grouped
from tidemill.sql.plan.expressions import GROUPING, Aggregate, BoundNode, Op, Window, walk
from tidemill.sql.plan.operators import (
    Distinct,
    Filter,
    FirstOfEach,
    Named,
    OneRow,
    Operator,
    Project,
    Sort,
)
from tidemill.sql.plan.operators import outputs as outputs_of
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
    plan = source if where is None else Filter(source, where)
    grouped = group is not None or having is not None or any(is_grouped(n) for n in everything)
    if on:
        _check_distinct_on(query, outputs, order_nodes, on)
    if grouped:
        grouping = Grouping(env.ctx, scope, sets)
        for node in everything:
            grouping.collect(node)
        plan = grouping.source(plan)
        finish = grouping.finish
        if having is not None:
            plan = Filter(plan, finish(having))
        outputs = [replace(o, node=finish(o.node)) for o in outputs]
        on = [finish(n) for n in on]
    constant = isinstance(plan, OneRow) and not any(
        query.args.get(k) for k in ("order", "limit", "offset", "distinct")
    )
    made = _assemble(env, scope, query, _Parts(plan, outputs, on), order_nodes, finish)
    return BoundParts(
        made if ties(query) is not None else limited(env, made, query),
        tuple(Column(o.name, o.node.type) for o in outputs),
        tuple(scope.outer),
        constants_of([o.node for o in outputs]) if constant else None,
        tuple(node for _, node in raw) if not grouped else tuple(o.node for o in outputs),
    )


@dataclass(slots=True)
class _Parts:
    """The parts of a SELECT: FROM with WHERE (or the groups with HAVING), the outputs, and the expressions of
    DISTINCT ON."""

    source: Operator
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


# --- the plan


def _assemble(
    env: Env,
    scope: Scope,
    query: exp.Select,
    parts: _Parts,
    order_nodes: dict[int, BoundNode],
    finish: _Finish,
) -> Operator:
    order = query.args.get("order")
    keys: list[OrderKey] = []
    if order is not None:
        keys = order_output(order, parts.outputs, lambda n: finish(order_nodes[id(n)]), "ORDER BY")
    hidden = [k.hidden for k in keys if k.hidden is not None]
    nodes = [*(o.node for o in parts.outputs), *hidden, *parts.on]
    source = parts.source
    if any(map(has_groups, nodes)):
        source, numbered = number_groups(env.ctx, scope, nodes, source)
        nodes = [numbered(n) for n in nodes]
    if any(map(has_rows, nodes)):
        source, expanded = expand(env.ctx, scope, nodes, source)
        nodes = [expanded(n) for n in nodes]
    count = len(parts.outputs)
    values, extra, on = nodes[:count], nodes[count : count + len(hidden)], nodes[count + len(hidden) :]
    listed = (
        *outputs_of(values),
        *outputs_of(extra, "h"),
        *outputs_of(map(distinct_key, on), "d"),
    )
    plan: Operator = Project(source, listed)
    if query.args.get("distinct") is not None and not on:
        for output in parts.outputs:
            check_grouped(output.node.type, "DISTINCT")
        if hidden:
            raise InvalidColumnReference(
                "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
                position=position_of(order),
            )
        plan = Distinct(plan)
    sort = tuple(k.key for k in keys)
    if on:
        plan = FirstOfEach(plan, tuple(f"d{i}" for i in range(len(on))), sort)
    limit = ties(query)
    if limit is not None:
        plan = with_ties(env, plan, sort, query, limit)
    if not (extra or on or limit is not None):
        return Sort(plan, sort) if sort else plan
    # What is computed only for the order is left out again.
    alias = env.ctx.alias()
    plan = Named(plan, alias)
    if sort:
        plan = Sort(plan, sort)
    return Project(plan, outputs_of(columns_named(alias, [v.type for v in values])))
