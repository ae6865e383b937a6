"""Aggregate calls: DISTINCT, FILTER, ORDER BY inside the parentheses, WITHIN GROUP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.bind.coerce import settle, to_type
from tidemill.sql.bind.digits import result_type
from tidemill.sql.bind.errors import GroupingError, InvalidColumnReference
from tidemill.sql.bind.ir import Aggregate, BoundNode, SortKey, Window, lower, walk
from tidemill.sql.bind.json_calls import aggregate_arguments
from tidemill.sql.functions.collected import FINISHERS, Finisher
from tidemill.sql.functions.comparison import check_grouped, check_sorted, sortable
from tidemill.sql.functions.resolve import resolve_function
from tidemill.sql.functions.tree import (
    Tree,
    call,
    case,
    field,
    gt,
    if_,
    integer,
    lambda_pair,
    lt,
    string,
    variable,
)
from tidemill.sql.names import words
from tidemill.types.model import Kind

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


def bind_aggregate(b: Binder, call_: FunctionCall, where: exp.Expr | None, position: int | None) -> BoundNode:
    if not b.aggregates:
        raise GroupingError(f"aggregate functions are not allowed in {b.clause}", position=position)
    if b.in_aggregate:
        raise GroupingError("aggregate function calls cannot be nested", position=position)
    b.in_aggregate = True
    try:
        documents = aggregate_arguments(b, call_.name, call_.args)
        args = documents if documents is not None else b.bind_all(call_.args)
        condition = b.boolean(where, "FILTER") if where is not None else None
        order = tuple(sort_key(b, o) for o in call_.order)
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
    check_no_windows([*coerced, *(k.node for k in order)], position)
    # For these, the result over all values is the same.
    distinct = call_.distinct and call_.name not in _ANY_NUMBER
    if distinct:
        for arg in coerced:
            check_grouped(arg.type, "DISTINCT")
    if call_.distinct and any(k.node not in (*args, *coerced) for k in order):
        raise InvalidColumnReference(
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
            position=position,
        )
    result = result_type(found.fn.name, found.fn.result, found.result, coerced)
    return Aggregate(result, found.fn, coerced, distinct, condition, order)


# Aggregates that ignore repeated values.
_ANY_NUMBER = frozenset({"min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or"})


def check_no_windows(nodes: Sequence[BoundNode], position: int | None) -> None:
    if any(isinstance(n, Window) for node in nodes for n in walk(node)):
        raise GroupingError(
            "aggregate function calls cannot contain window function calls", position=position
        )


def sort_key(b: Binder, node: exp.Ordered) -> SortKey:
    """One item of an ORDER BY inside an aggregate or window (no output names or ordinals there)."""
    value = settle(b.ctx, b.bind(node.this))
    check_sorted(value.type, "ORDER BY")
    return SortKey(value, *sort_direction(node))


def sort_direction(node: exp.Ordered) -> tuple[bool, bool]:
    """(descending, nulls first): NULL sorts as larger than all values by default; the parser gives the
    order."""
    return bool(node.args.get("desc")), bool(node.args.get("nulls_first"))


def ordered(key: SortKey, value: Tree | None = None) -> exp.Ordered:
    """The Spark form of an ORDER BY item."""
    tree = value if value is not None else lower(key.node)
    return exp.Ordered(this=sortable(tree, key.node.type), desc=key.descending, nulls_first=key.nulls_first)


# --- the Spark form


def lower_aggregate(node: Aggregate) -> Tree:
    args = [lower(a) for a in node.args]
    types = [a.type for a in node.args]
    if node.direct is not None or node.fn.name == "mode":
        from tidemill.sql.bind.ordered_sets import lower_ordered_set

        return lower_ordered_set(node, args)
    finisher = finisher_of(node.fn.name, types[0].kind if types else None)
    if finisher is not None:
        rows = sorted_rows(node, args)
        return finisher(rows, types)
    tree = node.fn.builder(types)(args)
    if node.distinct:
        tree = _distinct_inside(tree)
    return tree if node.where is None else filter_inside(tree, lower(node.where))


_EXACT = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.NUMERIC})


def finisher_of(name: str, kind: Kind | None) -> Finisher | None:
    """The function that computes an aggregate's result from all its rows; None for those that Spark computes
    incrementally."""
    if kind is Kind.BYTEA and name == "string_agg":
        return FINISHERS["string_agg bytea"]
    if kind in _EXACT and f"{name} numeric" in FINISHERS:
        return FINISHERS[f"{name} numeric"]
    return FINISHERS.get(name)


def rows_of(fields: Sequence[tuple[str, Tree]]) -> Tree:
    """An aggregate that collects all rows of the group, as structs."""
    parts = [part for name, tree in fields for part in (string(name), tree)]
    return call("collect_list", call("named_struct", *parts))


def argument_fields(args: Sequence[Tree], types: Sequence[Kind]) -> list[tuple[str, Tree]]:
    """The arguments, under the names that a finisher uses; exact numbers in one form."""
    from tidemill.sql.functions.tree import cast

    return [
        (f"a{i}", cast(tree, "DECIMAL(38,18)") if kind in _EXACT and len(args) == 1 else tree)
        for i, (tree, kind) in enumerate(zip(args, types, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class TreeKey:
    """A sort key for rows, in Spark's form."""

    tree: Tree
    descending: bool
    nulls_first: bool


def sorted_rows(node: Aggregate, args: Sequence[Tree]) -> Tree:
    """The rows in the requested order. DISTINCT sorts them by the arguments, after the requested keys, as
    PostgreSQL's sort does."""
    keys = list(node.order)
    if node.distinct:
        named = {k.node for k in keys}
        keys += [SortKey(a, False, False) for a in node.args if a not in named and _is_sorted(a)]
    finished = f"{node.fn.name} numeric" in FINISHERS
    kinds = [a.type.kind if finished else Kind.TEXT for a in node.args]
    trees = [TreeKey(sortable(lower(k.node), k.node.type), k.descending, k.nulls_first) for k in keys]
    rows = ordered_rows(trees, argument_fields(args, kinds), node.where)
    return call("array_distinct", rows) if node.distinct else rows


def ordered_rows(
    keys: Sequence[TreeKey], fields: Sequence[tuple[str, Tree]], where: BoundNode | None = None
) -> Tree:
    """All rows of the group, as structs of the fields (and of the keys), in order."""
    rows = rows_of([*_key_fields(keys), *fields])
    if where is not None:
        rows = filter_inside(rows, lower(where))
    return _in_order(rows, [k.descending for k in keys]) if keys else rows


def _is_sorted(node: BoundNode) -> bool:
    return node.type.kind not in (Kind.MAP, Kind.RECORD)


def _key_fields(keys: Sequence[TreeKey]) -> list[tuple[str, Tree]]:
    """Two fields for each key: a number for NULL that sorts at the requested end, and the key itself."""
    fields: list[tuple[str, Tree]] = []
    for i, key in enumerate(keys):
        # In the sort order, NULLs come first where the flag is the smaller (or, descending, the larger) one.
        first = key.nulls_first != key.descending
        flag = call("if", call("isnull", key.tree), _flag(0 if first else 1), _flag(1 if first else 0))
        fields += [(f"n{i}", flag), (f"k{i}", key.tree.copy())]
    return fields


def _in_order(rows: Tree, descending: Sequence[bool]) -> Tree:
    if len(set(descending)) == 1:
        return call("sort_array", rows, exp.Boolean(this=not descending[0]))
    left, right = variable("l"), variable("r")
    branches: list[tuple[Tree, Tree]] = []
    for i, down in enumerate(descending):
        for name in (f"n{i}", f"k{i}"):
            a, b = field(left.copy(), name), field(right.copy(), name)
            before, after = (gt, lt) if down else (lt, gt)
            branches += [(before(a, b), integer(-1)), (after(a.copy(), b.copy()), integer(1))]
    return call("array_sort", rows, lambda_pair("l", "r", case(*branches, otherwise=integer(0))))


def _flag(value: int) -> Tree:
    return exp.Cast(
        this=exp.Literal.number(value), to=exp.DataType(this=exp.DType.USERDEFINED, kind="TINYINT")
    )


def _distinct_inside(tree: Tree) -> Tree:
    """Puts DISTINCT inside Spark's aggregate calls (two of them for avg), around the whole argument."""
    copy = tree.copy()
    for found in copy.walk():
        if is_spark_aggregate(found) and isinstance(found, exp.Anonymous):
            found.set("expressions", [exp.Distinct(expressions=[e]) for e in found.expressions])
    return copy


def filter_inside(tree: Tree, condition: Tree) -> Tree:
    """Puts FILTER on Spark's aggregate calls, which may be nested in casts and quotients."""
    holder = exp.Paren(this=tree.copy())
    for found in list(holder.walk()):
        if is_spark_aggregate(found):
            found.replace(exp.Filter(this=found.copy(), expression=exp.Where(this=condition.copy())))
    return holder.this


def filter_arguments(tree: Tree, condition: Tree) -> Tree:
    """FILTER in a window, where Spark does not support it: the arguments of other rows become NULL, which all
    aggregates ignore."""
    holder = exp.Paren(this=tree.copy())
    for found in list(holder.walk()):
        if isinstance(found, exp.Count) and isinstance(found.this, exp.Star):
            found.set("this", if_(condition.copy(), integer(1), exp.null()))
        elif is_spark_aggregate(found):
            args: list[Tree] = [a.copy() for a in found.expressions]
            at = 1 if str(found.this).endswith("_by") else 0
            args[at] = if_(condition.copy(), args[at], exp.null())
            found.set("expressions", args)
    return holder.this


_SPARK_AGGREGATES = words(
    """
    sum avg count min max every some bit_and bit_or bit_xor stddev stddev_samp stddev_pop variance
    var_samp var_pop collect_list any_value min_by max_by corr covar_pop covar_samp regr_slope regr_intercept
    regr_r2 regr_avgx regr_avgy regr_sxx regr_sxy regr_syy regr_count
    """
)


def is_spark_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Count):
        return True
    return isinstance(node, exp.Anonymous) and str(node.this) in _SPARK_AGGREGATES
