"""Repeatable plans: queries whose result over the same rows is the same however often it is computed.

A reader of a durable subscription continues after a restart with changes that are computed again, against a
result that is computed again. They join what it was sent before only if the query does not depend on the
order in which rows come: LIMIT may choose others, a sum of floats may differ in its last digit. Everything
that is not known to be repeatable is reported by name. (Linear queries need no earlier result; they are
always repeatable.)
"""

from __future__ import annotations

from tidemill.sql.plan.expressions import Aggregate, BoundNode, Window, walk
from tidemill.sql.plan.operators import (
    Copies,
    Distinct,
    Expand,
    Filter,
    Group,
    Join,
    Limit,
    Named,
    OneRow,
    Operator,
    Project,
    Rows,
    Scan,
    Series,
    SetOperation,
    Sort,
    TableFunction,
    Ties,
    expressions,
    keeps_all,
    walk_plan,
)
from tidemill.types.model import Kind, SqlType

_OPERATORS = (
    *(OneRow, Scan, Rows, Series, TableFunction, Named, Copies, Join, Filter, Project, Group, Expand),
    *(Distinct, SetOperation, Sort, Ties),
)
_NAMES = {"FirstOfEach": "DISTINCT ON", "Recursive": "WITH RECURSIVE", "PreviousRound": "WITH RECURSIVE"}
# Aggregates whose result does not depend on the order of rows, for the types that have one value per text.
_AGGREGATES = frozenset(
    ("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor")
)
# Equal values of these may have several texts (0 and -0, 1 month and 30 days), or sums that depend on
# the order.
_SEVERAL = frozenset({Kind.FLOAT4, Kind.FLOAT8, Kind.INTERVAL, Kind.JSONB})


def why_not_repeatable(plan: Operator) -> str | None:
    """The part of the query that may give something else the next time; None if there is none."""
    for operator in walk_plan(plan):
        found = _operator(operator)
        if found is not None:
            return found
        for node in expressions(operator):
            for part in walk(node):
                if (found := _expression(part)) is not None:
                    return found
    return None


def _operator(operator: Operator) -> str | None:
    if isinstance(operator, Limit):
        return None if keeps_all(operator) else "LIMIT"
    if not isinstance(operator, _OPERATORS):
        name = type(operator).__name__
        return _NAMES.get(name, name)
    if isinstance(operator, Group) and any(_ambiguous(key.type) for key in operator.keys):
        return "GROUP BY of floats, intervals or jsonb"
    if isinstance(operator, Distinct) or (
        isinstance(operator, SetOperation) and (operator.distinct or operator.kind != "UNION")
    ):
        found = _outputs(operator)
        if found is None or any(_ambiguous(node.type) for node in found):
            return "DISTINCT of floats, intervals or jsonb"
    return None


def _expression(node: BoundNode) -> str | None:
    if isinstance(node, Window):
        return "a window function"
    if isinstance(node, Aggregate):
        name = node.fn.name
        if name not in _AGGREGATES:
            return name
        if name != "count" and any(_ambiguous(arg.type) for arg in node.args):
            return f"{name} of floats, intervals or jsonb"
    return None


def _outputs(operator: Operator) -> tuple[BoundNode, ...] | None:
    """The columns of a query's operator; None if they are not known here."""
    match operator:
        case Project():
            return tuple(output.node for output in operator.outputs)
        case SetOperation():
            return _outputs(operator.left)
        case Distinct() | Sort() | Limit() | Ties() | Filter():
            return _outputs(operator.input)
        case Rows():
            return None if any(map(_ambiguous, operator.types)) else ()
        case _:
            return None


def _ambiguous(t: SqlType) -> bool:
    parts = (*(() if t.element is None else (t.element,)), *(f.type for f in t.fields))
    return t.kind in _SEVERAL or any(map(_ambiguous, parts))
