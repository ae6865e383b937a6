"""Aggregate calls: DISTINCT, FILTER, ORDER BY inside the parentheses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.bind.coerce import settle, to_type
from tidemill.sql.bind.errors import GroupingError, unsupported
from tidemill.sql.bind.ir import Aggregate, Node, SortKey, Window, lower, walk
from tidemill.sql.functions.comparison import check_grouped, check_ordered, comparable
from tidemill.sql.functions.resolve import resolve_function
from tidemill.sql.functions.tree import Tree, call, field, lambda_, string, variable
from tidemill.sql.names import words

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder

# Aggregates whose answer depends on the order of their input.
_ORDER_MATTERS = frozenset({"array_agg", "string_agg"})


def bind_aggregate(b: Binder, call_: FunctionCall, where: exp.Expr | None, position: int | None) -> Node:
    if not b.aggregates:
        raise GroupingError(f"aggregate functions are not allowed in {b.clause}", position=position)
    if b.in_aggregate:
        raise GroupingError("aggregate function calls cannot be nested", position=position)
    b.in_aggregate = True
    try:
        args = b.bind_all(call_.args)
        condition = b.boolean(where, "FILTER") if where is not None else None
        order = tuple(sort_key(b, o) for o in call_.order) if call_.name in _ORDER_MATTERS else ()
    finally:
        b.in_aggregate = False
    if call_.star and call_.name != "count":
        raise b.no_function(call_.name, args, position)
    if not args and not call_.star:
        raise TidemillError(
            f"{call_.name}(*) must be used to call a parameterless aggregate function",
            sqlstate="42809",
            position=position,
        )
    found = resolve_function(call_.name, [a.type for a in args])
    if found is None or not found.fn.aggregate:
        raise b.no_function(call_.name, args, position)
    coerced = tuple(to_type(b.ctx, a, t, position=position) for a, t in zip(args, found.args, strict=True))
    if any(isinstance(n, Window) for a in coerced for n in walk(a)):
        raise GroupingError(
            "aggregate function calls cannot contain window function calls", position=position
        )
    if call_.distinct:
        for arg in coerced:
            check_grouped(arg.type, "DISTINCT")
        if call_.name == "array_agg" or (order and order[0].node != coerced[0]):
            raise unsupported(f"{call_.name}(DISTINCT ...) with this ORDER BY", position)
    return Aggregate(found.result, found.fn, coerced, call_.distinct, condition, order)


def sort_key(b: Binder, node: exp.Ordered) -> SortKey:
    """One item of an ORDER BY inside an aggregate or window (no output names or ordinals there)."""
    value = settle(b.ctx, b.bind(node.this))
    check_ordered(value.type, "ORDER BY")
    return SortKey(value, *sort_direction(node))


def sort_direction(node: exp.Ordered) -> tuple[bool, bool]:
    """(descending, nulls first): NULL sorts as larger than all values unless told otherwise; the parser
    says which."""
    return bool(node.args.get("desc")), bool(node.args.get("nulls_first"))


def ordered(key: SortKey, value: Tree | None = None) -> exp.Ordered:
    """A Spark ORDER BY item."""
    tree = value if value is not None else lower(key.node)
    return exp.Ordered(this=comparable(tree, key.node.type), desc=key.descending, nulls_first=key.nulls_first)


def lower_aggregate(node: Aggregate) -> Tree:
    args = [lower(a) for a in node.args]
    if node.order and node.fn.name == "array_agg":
        return _filtered(node, _sorted_array(node, args[0]))
    if node.fn.name == "string_agg":
        return _filtered_listagg(node, args)
    tree = node.fn.build(args)
    if node.distinct:
        tree = _distinct_inside(tree)
    return tree if node.where is None else _filter_inside(tree, lower(node.where))


def _distinct_inside(tree: Tree) -> Tree:
    """DISTINCT belongs to Spark's aggregate calls (two of them for avg), around the whole of their
    argument."""
    copy = tree.copy()
    for found in copy.walk():
        if is_spark_aggregate(found) and isinstance(found, exp.Anonymous):
            found.set("expressions", [exp.Distinct(expressions=[e]) for e in found.expressions])
    return copy


def _filter_inside(tree: Tree, condition: Tree) -> Tree:
    """FILTER belongs to Spark's aggregate calls, which may stand inside casts and quotients."""
    copy = tree.copy()
    holder = exp.Paren(this=copy)
    for found in list(holder.walk()):
        if is_spark_aggregate(found):
            found.replace(exp.Filter(this=found.copy(), expression=exp.Where(this=condition.copy())))
    return holder.this


_SPARK_AGGREGATES = words(
    """
    sum avg count min max every some bit_and bit_or bit_xor stddev stddev_samp stddev_pop variance
    var_samp var_pop collect_list listagg any_value min_by max_by
    """
)


def is_spark_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Count):
        return True
    return isinstance(node, exp.Anonymous) and str(node.this) in _SPARK_AGGREGATES


def _filtered(node: Aggregate, tree: Tree) -> Tree:
    return tree if node.where is None else _filter_inside(tree, lower(node.where))


def _filtered_listagg(node: Aggregate, args: list[Tree]) -> Tree:
    value: Tree = exp.Distinct(expressions=[args[0]]) if node.distinct else args[0]
    tree: Tree = call("listagg", value, args[1])
    if node.order:
        tree = exp.WithinGroup(this=tree, expression=exp.Order(expressions=[ordered(k) for k in node.order]))
    if node.where is not None:
        tree = exp.Filter(this=tree, expression=exp.Where(this=lower(node.where)))
    return tree


def _sorted_array(node: Aggregate, value: Tree) -> Tree:
    """Collect (keys, value) structs, sort them by the keys, keep the values. Each key becomes two fields,
    so that one ascending sort does all directions: whether it is NULL, and the key itself. Descending needs
    a key that can be negated or compared backwards, which Spark has for none but by sorting twice: so all
    keys must go the same way."""
    directions = {k.descending for k in node.order}
    if len(directions) > 1:
        raise unsupported("array_agg with ORDER BY items of both directions")
    descending = directions.pop()
    parts: list[Tree] = []
    for i, key in enumerate(node.order):
        tree = comparable(lower(key.node), key.node.type)
        # In the sort order, NULLs come first where the flag is the smaller (or, descending, the larger) one.
        null_first = key.nulls_first != descending
        flag = call("if", call("isnull", tree), _flag(0 if null_first else 1), _flag(1 if null_first else 0))
        parts += [string(f"n{i}"), flag, string(f"k{i}"), tree]
    rows = call("collect_list", call("named_struct", *parts, string("v"), value))
    ordered_rows = call("sort_array", rows, exp.Boolean(this=not descending))
    values = call("transform", ordered_rows, lambda_("r", field(variable("r"), "v")))
    return call("nullif", values, call("array"))


def _flag(value: int) -> Tree:
    return exp.Cast(
        this=exp.Literal.number(value), to=exp.DataType(this=exp.DType.USERDEFINED, kind="TINYINT")
    )
