"""Aggregate calls as Spark SQL trees: DISTINCT, FILTER, ORDER BY inside the parentheses, ordered sets."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.collected import FINISHERS, Finisher, mode, percentile
from tidemill.sql.functions.comparison import sortable
from tidemill.sql.functions.tree import (
    Tree,
    call,
    case,
    cast,
    field,
    gt,
    if_,
    integer,
    is_null,
    lambda_,
    lambda_pair,
    lt,
    not_,
    string,
    variable,
)
from tidemill.sql.lower.expressions import lower
from tidemill.sql.names import words
from tidemill.sql.plan.expressions import Aggregate, BoundNode, SortKey
from tidemill.types.model import Kind


def lower_aggregate(node: Aggregate) -> Tree:
    args = [lower(a) for a in node.args]
    types = [a.type for a in node.args]
    if node.direct is not None or node.fn.name == "mode":
        return _lower_ordered_set(node, args)
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
    return [
        (f"a{i}", cast(tree, "DECIMAL(38,18)") if kind in _EXACT and len(args) == 1 else tree)
        for i, (tree, kind) in enumerate(zip(args, types, strict=True))
    ]


def sorted_rows(node: Aggregate, args: Sequence[Tree]) -> Tree:
    """The rows in the requested order. DISTINCT sorts them by the arguments, after the requested keys, as
    PostgreSQL's sort does."""
    keys = list(node.order)
    if node.distinct:
        named = {k.node for k in keys}
        keys += [SortKey(a, False, False) for a in node.args if a not in named and _is_sorted(a)]
    finished = f"{node.fn.name} numeric" in FINISHERS
    kinds = [a.type.kind if finished else Kind.TEXT for a in node.args]
    rows = rows_of([*_key_fields(keys), *argument_fields(args, kinds)])
    if node.where is not None:
        rows = filter_inside(rows, lower(node.where))
    if keys:
        rows = _in_order(rows, [k.descending for k in keys])
    return call("array_distinct", rows) if node.distinct else rows


def _is_sorted(node: BoundNode) -> bool:
    return node.type.kind not in (Kind.MAP, Kind.RECORD)


def _key_fields(keys: Sequence[SortKey]) -> list[tuple[str, Tree]]:
    """Two fields for each key: a number for NULL that sorts at the requested end, and the key itself."""
    fields: list[tuple[str, Tree]] = []
    for i, key in enumerate(keys):
        # In the sort order, NULLs come first where the flag is the smaller (or, descending, the larger) one.
        first = key.nulls_first != key.descending
        value = sortable(lower(key.node), key.node.type)
        flag = call("if", call("isnull", value), _flag(0 if first else 1), _flag(1 if first else 0))
        fields += [(f"n{i}", flag), (f"k{i}", value.copy())]
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


def ordered(key: SortKey, value: Tree | None = None) -> exp.Ordered:
    """The Spark form of an ORDER BY item."""
    tree = value if value is not None else lower(key.node)
    return exp.Ordered(this=sortable(tree, key.node.type), desc=key.descending, nulls_first=key.nulls_first)


def _lower_ordered_set(node: Aggregate, args: Sequence[Tree]) -> Tree:
    rows = sorted_rows(node, args)
    there = call("filter", rows, lambda_("r", not_(is_null(field(variable("r"), "a0")))))
    values = call("transform", there, lambda_("r", field(variable("r"), "a0")))
    if node.direct is None:
        return mode(values, node.args[0].type, node.type)
    return percentile(
        values,
        lower(node.direct),
        node.type,
        continuous=node.fn.name == "percentile_cont",
        several=node.direct.type.kind is Kind.ARRAY,
    )
