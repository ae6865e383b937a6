"""LIMIT and OFFSET as Spark clauses.

Spark requires small literal numbers, so a parameter leaves a marker that `bind.substitute` resolves when its
value is known.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.plan.expressions import BoundNode, Const

# Spark's LIMIT and OFFSET are INT; a larger number means all rows.
_MOST = 2**31 - 1
_META = "tidemill_limit"


class InvalidRowCount(TidemillError):
    """2201W for LIMIT, 2201X for OFFSET."""

    sqlstate = "2201W"


def row_count(clause: str, value: pa.Scalar | None) -> int | None:
    """The number of rows of `limit` or `offset`; None for NULL."""
    number = None if value is None else value.as_py()
    if number is not None and number < 0:
        state = "2201W" if clause == "limit" else "2201X"
        raise InvalidRowCount(f"{clause.upper()} must not be negative", sqlstate=state)
    return number


def limit_clause(clause: str, node: BoundNode | None) -> exp.Expr | None:
    """The clause `limit` or `offset`; None if it keeps all rows."""
    if node is None:
        return None
    holder = exp.Limit if clause == "limit" else exp.Offset
    if not isinstance(node, Const):
        marker = holder(expression=exp.Placeholder(this="tm_limit"))
        marker.meta[_META] = node
        return marker
    number = row_count(clause, node.value)
    if number is None or (clause == "limit" and number > _MOST):
        return None
    # An offset beyond Spark's range skips every possible row.
    return holder(expression=exp.Literal.number(min(number, _MOST)))


def resolve_limits(tree: exp.Expr, value: Callable[[str, BoundNode], Const]) -> None:
    """Replace markers. `value` returns the value of a clause's node."""
    for select in list(tree.find_all(exp.Select)):
        for clause in ("limit", "offset"):
            holder = select.args.get(clause)
            if holder is not None and _META in holder.meta:
                select.set(clause, limit_clause(clause, value(clause, holder.meta[_META])))
