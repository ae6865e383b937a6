"""Projections and filters with window functions or subqueries: local to the PARTITION BY of the windows and
to the equalities of the subqueries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.sql.plan.expressions import BoundNode, Ref, Subquery, rewrite, walk
from tidemill.sql.plan.keyed import Pair, columns_of, conjuncts, correlation, harmless, read_subqueries
from tidemill.sql.plan.operators import Filter, Operator, Output, Project, inputs, reads, windows
from tidemill.sql.plan.stages.model import CannotPush, Key

if TYPE_CHECKING:
    from tidemill.sql.plan.stages.planner import Planner


def demands(op: Project | Filter) -> bool:
    return any(True for _ in windows(op)) or any(True for _ in read_subqueries(op))


def demands_in(node: BoundNode) -> bool:
    return any(isinstance(part, Subquery) and reads(part.plan) for part in walk(node))


def names_of(op: Operator) -> str:
    return "a window function" if any(True for _ in windows(op)) else "a subquery"


def common(op: Project | Filter) -> list[BoundNode]:
    """The expressions over the operator's input that are a key of all its windows and subqueries."""
    wanted: list[list[BoundNode]] = [list(w.partition) for w in windows(op)]
    for subquery in read_subqueries(op):
        wanted.append([outer for outer, _ in _subquery_pairs(op, subquery)])
    first, *others = wanted
    return [node for node in dict.fromkeys(first) if all(node in other for other in others)]


def check_common(op: Project | Filter, key: Key) -> None:
    shared = common(op)
    if not all(part in shared for part in key):
        raise CannotPush("a window function or subquery has another key")


def below(p: Planner, op: Project | Filter, key: Key) -> Operator:
    """The operator, local to the key over its input."""
    for window in windows(op):
        if not all(part in window.partition for part in key):
            raise CannotPush("a window function has another PARTITION BY")
    given = tuple(harmless(op.condition)) if isinstance(op, Filter) else ()
    pushed = {id(s): _subquery(p, op, s, key) for s in read_subqueries(op)}
    source = p.source(op.input, key, given)

    def change(node: BoundNode) -> BoundNode | None:
        return pushed.get(id(node))

    if isinstance(op, Filter):
        return Filter(source, rewrite(op.condition, change))
    listed = tuple(Output(o.name, rewrite(o.node, change)) for o in op.outputs)
    return Project(source, listed)


def _subquery(p: Planner, op: Operator, node: Subquery, key: Key) -> Subquery:
    pairs = _subquery_pairs(op, node)
    inner = tuple(partner(part, pairs) for part in key)
    if node.kind == "in":
        return replace(node, plan=p.query_rows(node.plan, inner))
    outer = frozenset(ref.table for ref in node.outer)
    return replace(node, plan=correlated(p, node.plan, inner, correlation(node.plan, outer)[0]))


def correlated(p: Planner, plan: Operator, key: Key, base: Filter | None) -> Operator:
    """A query whose rows all come from rows of the input of `base` with this key."""
    if any(True for _ in read_subqueries(plan)):
        raise CannotPush("a subquery is inside another one")
    if isinstance(plan, Filter) and plan is base:
        return replace(plan, input=p.source(plan.input, key, tuple(harmless(plan.condition))))
    return replace(plan, input=correlated(p, inputs(plan)[0], key, base))


def _subquery_pairs(op: Operator, node: Subquery) -> list[Pair]:
    """The key of a subquery: expressions over the rows around it, and over its own."""
    if node.kind == "in" and not node.outer:
        alone = isinstance(op, Filter) and any(part is node for part in conjuncts(op.condition))
        if alone:
            return [
                (operand, Ref(t, "", name))
                for operand, (name, t) in zip(node.operands, columns_of(node.plan), strict=False)
                if operand.type.kind is t.kind
            ]
        return []
    if node.kind == "in" or not node.outer:
        return []
    return correlation(node.plan, frozenset(ref.table for ref in node.outer))[1]


def partner(part: BoundNode, pairs: Sequence[Pair]) -> BoundNode:
    for outer, inner in pairs:
        if outer == part:
            return inner
    raise CannotPush("a subquery has another key")
