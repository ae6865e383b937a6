"""Window function calls as Spark SQL trees."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.comparison import comparable
from tidemill.sql.functions.tree import Tree, null
from tidemill.sql.lower.aggregate import filter_arguments, is_spark_aggregate, ordered
from tidemill.sql.lower.expressions import lower
from tidemill.sql.plan.expressions import BoundNode, SortKey, Window

_PENDING = "tidemill_over"
# Spark requires an order for these.
_IN_ORDER = frozenset(
    {"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"}
)


def over_call(tree: Tree) -> Tree:
    """Marks the Spark call to which the OVER clause belongs."""
    tree.meta[_PENDING] = True
    return tree


def over_inside(tree: Tree) -> Tree:
    for found in tree.walk():
        if is_spark_aggregate(found):
            found.meta[_PENDING] = True
    return tree


def lower_window(node: Window) -> Tree:
    tree = node.build([lower(a) for a in node.args])
    if node.where is not None:
        tree = filter_arguments(tree, lower(node.where))
    holder = exp.Paren(this=tree.copy())
    for found in list(holder.walk()):
        if found.meta.pop(_PENDING, False):
            found.replace(over(found.copy(), node.partition, node.order, node.frame))
    return holder.this


def over(
    function: Tree, partition: Sequence[BoundNode], order: Sequence[SortKey], frame: exp.Expr | None
) -> Tree:
    """function OVER (...)."""
    keys = exp.Order(expressions=[ordered(k) for k in order]) if order else None
    if keys is None and isinstance(function, exp.Anonymous) and str(function.this) in _IN_ORDER:
        # Without an order, all rows are peers.
        keys = exp.Order(expressions=[exp.Ordered(this=null())])
    return exp.Window(
        this=function,
        partition_by=[comparable(lower(p), p.type) for p in partition],
        order=keys,
        spec=frame.copy() if frame is not None else None,
        over="OVER",
    )
