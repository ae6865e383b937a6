"""Temporal filters of a plan: conditions that compare mz_now() with something of a row.

`mz_now() <= e`, `<`, `>=`, `>` and `=`, with mz_now() on either side, in WHERE, ANDed with anything; e does
not use mz_now(). For each row such a condition is true from one time to another, and both follow from the row
alone. So the result of a query changes at times that its rows tell, and at no others. `bind.temporal` makes
queries of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from tidemill.sql.functions.markers import Fixed
from tidemill.sql.plan.expressions import (
    Aggregate,
    BoundNode,
    Convert,
    FromRows,
    Op,
    Ref,
    SessionValue,
    Subquery,
    Window,
    walk,
)
from tidemill.sql.plan.linear import flattened
from tidemill.sql.plan.operators import (
    Filter,
    Join,
    Named,
    Operator,
    Project,
    Recursive,
    Scan,
    Sort,
    expressions,
    inputs,
    outputs,
    walk_plan,
)
from tidemill.types.model import Kind

# How a comparison reads from its other side.
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_KINDS = frozenset({Kind.MZ_TIMESTAMP, Kind.INT8, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.DATE})
# The alias of the relation in a query that is evaluated on changes.
_ALIAS = "r"


class NotTemporal(Exception):
    """mz_now() is used in another way."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """`mz_now() symbol node`."""

    symbol: str
    node: BoundNode


@dataclass(frozen=True, slots=True)
class Bounded:
    """A plan without mz_now(), whose last outputs are the nodes of the thresholds, in this order. Each of its
    rows belongs to the result while all of them hold."""

    plan: Project
    thresholds: tuple[Threshold, ...]


def uses_now(plan: Operator) -> bool:
    return any(_now_in(node) for part in walk_plan(plan) for node in expressions(part))


def _now_in(node: BoundNode) -> bool:
    return any(
        (isinstance(n, SessionValue) and n.which is Fixed.MZ_NOW)
        or (isinstance(n, Subquery) and uses_now(n.plan))
        for n in walk(node)
    )


def conjuncts(condition: BoundNode) -> Iterator[BoundNode]:
    if isinstance(condition, Op) and condition.key == "and":
        for part in condition.args:
            yield from conjuncts(part)
    else:
        yield condition


def threshold(condition: BoundNode) -> Threshold | None:
    if not isinstance(condition, Op) or len(condition.args) != 2:
        return None
    symbol, (left, right) = condition.key.partition("(")[0], condition.args
    if symbol not in _TURNED:
        return None
    if _is_now(right):
        symbol, left, right = _TURNED[symbol], right, left
    if not _is_now(left) or right.type.kind not in _KINDS:
        return None
    alone = not any(isinstance(n, Subquery | Window | Aggregate | FromRows) for n in walk(right))
    return Threshold(symbol, right) if alone and not _now_in(right) else None


def _is_now(node: BoundNode) -> bool:
    if isinstance(node, Convert) and node.type.kind in _KINDS - {Kind.DATE}:
        node = node.arg
    return isinstance(node, SessionValue) and node.which is Fixed.MZ_NOW


# -- the query itself on changes -------------------------------------------------------------------------


def bounded(plan: Operator) -> Bounded | None:
    """The query with its thresholds in the place of its temporal filters, if it is filters and a projection
    of one relation."""
    while isinstance(plan, Sort):
        plan = plan.input
    flat = flattened(plan, _ALIAS)
    if flat is None:
        return None
    parts = [part for condition in flat.conditions for part in conjuncts(condition)]
    found = [(part, threshold(part) if _now_in(part) else None) for part in parts]
    if any(t is None and _now_in(part) for part, t in found) or any(map(_now_in, flat.outputs)):
        return None
    thresholds = tuple(t for _, t in found if t is not None)
    source = plan
    while not isinstance(source, Scan):
        source = inputs(source)[0]
    rest: Operator = Scan(source.placeholder, _ALIAS)
    for part, t in found:
        if t is None:
            rest = Filter(rest, part)
    return Bounded(Project(rest, outputs([*flat.outputs, *(t.node for t in thresholds)])), thresholds)


# -- when any query changes by itself --------------------------------------------------------------------


def due(plan: Operator) -> list[Bounded]:
    """One plan per temporal filter of the query: its rows come and leave when the filter's answer changes.
    They may be more than the rows that the filter sees. Raises NotTemporal."""
    found: list[Bounded] = []
    seen: set[int] = set()
    for source in _filters(plan, seen):
        parts = list(conjuncts(source.condition))
        for part in parts:
            if _now_in(part):
                found.append(_due(source, part, [p for p in parts if not _now_in(p)]))
    return found


def _filters(operator: Operator, seen: set[int], hidden: bool = False) -> Iterator[Filter]:
    """The operators with a temporal filter. `hidden`: in a place whose rows depend on others."""
    if id(operator) in seen:
        return
    seen.add(id(operator))
    if any(map(_now_in, expressions(operator))):
        if hidden or not isinstance(operator, Filter):
            raise NotTemporal
        yield operator
    hidden = hidden or isinstance(operator, Recursive)
    for under in inputs(operator):
        yield from _filters(under, seen, hidden or (isinstance(under, Named) and under.lateral))


def _due(source: Filter, condition: BoundNode, others: Sequence[BoundNode]) -> Bounded:
    found = threshold(condition)
    if found is None:
        raise NotTemporal
    aliases = {n.table for n in walk(found.node) if isinstance(n, Ref)}
    below = _named(source.input, aliases)
    if below is None or (isinstance(below, Named) and below.lateral):
        raise NotTemporal
    rows = without_filters(below)
    for other in others:
        if all(_is_of(n, aliases) for n in walk(other)):
            rows = Filter(rows, other)
    return Bounded(Project(rows, outputs([found.node])), (found,))


def _is_of(node: BoundNode, aliases: set[str]) -> bool:
    if isinstance(node, Ref):
        return node.table in aliases
    return not isinstance(node, Subquery | Window | Aggregate)


def _named(operator: Operator, aliases: set[str]) -> Operator | None:
    """What stands in FROM under the one alias; without any, what stands there alone."""
    if isinstance(operator, Scan | Named):
        return operator if aliases <= {operator.alias} else None
    if isinstance(operator, Filter):
        return _named(operator.input, aliases)
    if isinstance(operator, Join) and aliases:
        return _named(operator.left, aliases) or _named(operator.right, aliases)
    return None


def without_filters(plan: Operator) -> Operator:
    """The plan as if every temporal filter were true."""
    changed = replace(
        plan,
        **{
            f.name: without_filters(value)
            for f in fields(plan)
            if isinstance(value := getattr(plan, f.name), Operator)
        },
    )
    if not isinstance(changed, Filter) or not _now_in(changed.condition):
        return changed
    rows = changed.input
    for part in conjuncts(changed.condition):
        if not _now_in(part):
            rows = Filter(rows, part)
    return rows
