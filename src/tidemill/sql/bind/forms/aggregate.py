"""Aggregate calls: DISTINCT, FILTER, ORDER BY inside the parentheses, WITHIN GROUP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.bind.coerce import settle, to_type
from tidemill.sql.bind.digits import result_type
from tidemill.sql.bind.errors import GroupingError, InvalidColumnReference
from tidemill.sql.bind.forms.json_calls import aggregate_arguments
from tidemill.sql.functions.comparison import check_grouped, check_sorted
from tidemill.sql.functions.resolve import resolve_function
from tidemill.sql.plan.expressions import Aggregate, BoundNode, SortKey, Window, walk

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
