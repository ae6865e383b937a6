"""DISTINCT ON and FETCH FIRST ... WITH TIES: rows are kept by their place in an order."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.errors import SyntaxError_
from tidemill.sql.bind.errors import position_of
from tidemill.sql.bind.expr import Env
from tidemill.sql.bind.limits import TiesClause, known_limit
from tidemill.sql.functions.comparison import comparable
from tidemill.sql.plan.expressions import BoundNode, Op, SortKey
from tidemill.sql.plan.operators import Operator, Ties


def distinct_key(node: BoundNode) -> BoundNode:
    """The node in the form that equal values share."""
    return Op(node.type, "comparable", (node,), lambda a: comparable(a[0], node.type))


def with_ties(
    env: Env, plan: Operator, order: Sequence[SortKey], query: exp.Expr, limit: TiesClause
) -> Operator:
    if not order:
        raise SyntaxError_(
            "WITH TIES cannot be specified without ORDER BY clause", position=position_of(query)
        )
    count = known_limit(env, "limit", limit.count)
    return Ties(plan, tuple(order), count, known_limit(env, "offset", limit.offset) or 0)
