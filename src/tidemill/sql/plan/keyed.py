"""Parts that the rules of maintenance share: aliases, equalities, and which values can be keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.sql.plan.expressions import BoundNode, Const, Convert, Op, Ref, Subquery, walk
from tidemill.sql.plan.operators import (
    Copies,
    Distinct,
    Expand,
    Filter,
    FirstOfEach,
    Group,
    Join,
    Limit,
    Named,
    Operator,
    PreviousRound,
    Project,
    Scan,
    SetOperation,
    Sort,
    Ties,
    expressions,
    inputs,
    reads,
)
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Kind, SqlType

# Kinds of which equal values have equal hashes, and whose equality is that of SQL and of rows alike.
# Intervals and padded texts have several forms of one value.
_KEYS = frozenset(
    {
        *(Kind.BOOL, Kind.INT2, Kind.INT4, Kind.INT8, Kind.UINT2, Kind.UINT4, Kind.UINT8, Kind.OID),
        *(Kind.NUMERIC, Kind.FLOAT4, Kind.FLOAT8, Kind.TEXT, Kind.VARCHAR, Kind.NAME, Kind.BYTEA, Kind.UUID),
        *(Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.MZ_TIMESTAMP),
    }
)

Pair = tuple[BoundNode, BoundNode]


def can_be_key(t: SqlType) -> bool:
    return t.kind in _KEYS


def aliases(source: Operator) -> frozenset[str]:
    """Of what stands in FROM."""
    if isinstance(source, Scan | Named | PreviousRound):
        return frozenset({source.alias})
    if isinstance(source, Copies):
        return frozenset({source.input.alias})
    if isinstance(source, Join | Filter | Sort):
        return frozenset[str]().union(*map(aliases, inputs(source)))
    return frozenset()


def conjuncts(condition: BoundNode | None) -> Iterator[BoundNode]:
    if isinstance(condition, Op) and condition.key == "and":
        for arg in condition.args:
            yield from conjuncts(arg)
    elif condition is not None:
        yield condition


def equalities(condition: BoundNode | None) -> Iterator[Pair]:
    """The pairs that are equal where the condition is true, of values of one type."""
    for part in conjuncts(condition):
        if isinstance(part, Op) and part.key.startswith("=(") and len(part.args) == 2:
            a, b = part.args
            if can_be_key(a.type) and can_be_key(b.type) and arrow_type(a.type) == arrow_type(b.type):
                yield a, b


_COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})


def harmless(condition: BoundNode | None) -> Iterator[BoundNode]:
    """The parts of a condition that cannot fail for any row: comparisons of columns and constants."""
    for part in conjuncts(condition):
        if not isinstance(part, Op) or part.key.partition("(")[0] not in _COMPARISONS:
            continue
        if all(_cannot_fail(n) for arg in part.args for n in walk(arg)):
            yield part


def _cannot_fail(node: BoundNode) -> bool:
    converted = isinstance(node, Convert) and not node.explicit and node.type.kind in _WIDER
    return converted or isinstance(node, Ref | Const)


# What the binder converts numbers to without being asked cannot overflow in these types.
_WIDER = frozenset({Kind.INT4, Kind.INT8, Kind.NUMERIC, Kind.TEXT})


def pairs_of(conditions: Iterable[BoundNode]) -> list[Pair]:
    return [pair for condition in conditions for pair in equalities(condition)]


def facts(source: Operator) -> Iterator[Pair]:
    """The pairs that are equal in all rows of what stands in FROM."""
    if isinstance(source, Filter):
        yield from equalities(source.condition)
        yield from facts(source.input)
    elif isinstance(source, Sort):
        yield from facts(source.input)
    elif isinstance(source, Join):
        if not source.side:
            yield from equalities(source.condition)
        if source.side in ("", "LEFT"):
            yield from facts(source.left)
        if source.side in ("", "RIGHT"):
            yield from facts(source.right)


def is_over(node: BoundNode, names: frozenset[str]) -> bool:
    """Whether the value follows from columns of these items, and from nothing else."""
    parts = list(walk(node))
    tables = {part.table for part in parts if isinstance(part, Ref)}
    return bool(tables) and tables <= names and not any(isinstance(part, Subquery) for part in parts)


def equal_to(node: BoundNode, pairs: Sequence[Pair]) -> list[BoundNode]:
    """The node, and all that follows from the pairs to equal it."""
    known = [node]
    for found in known:
        for a, b in pairs:
            for one, other in ((a, b), (b, a)):
                if one == found and other not in known:
                    known.append(other)
    return known


def equal_over(node: BoundNode, names: frozenset[str], pairs: Sequence[Pair]) -> BoundNode | None:
    """An expression over these items that equals `node`; a column, if there is one."""
    over = [n for n in equal_to(node, pairs) if is_over(n, names)]
    return next((n for n in over if isinstance(n, Ref)), over[0] if over else None)


def columns_of(query: Operator) -> list[tuple[str, SqlType]]:
    """The names and types of a query's outputs."""
    if isinstance(query, Project):
        return [(o.name, o.node.type) for o in query.outputs]
    if isinstance(query, Group):
        named = [(f"g{i}", k.type) for i, k in enumerate(query.keys)]
        return named + [(f"a{i}", a.type) for i, a in enumerate(query.aggregates)]
    if isinstance(query, SetOperation):
        return columns_of(query.left)
    if isinstance(query, Expand):
        return [(ref.name, ref.type) for ref in query.kept]
    below = inputs(query)
    return columns_of(below[0]) if len(below) == 1 else []


def references(operators: Iterable[Operator]) -> Iterator[Ref]:
    for operator in operators:
        for node in expressions(operator):
            for part in walk(node):
                if isinstance(part, Ref):
                    yield part


# -- subqueries

_ONE_INPUT = (Project, Named, Group, Filter, Limit, Sort, Distinct, FirstOfEach, Ties, Expand)


def read_subqueries(operator: Operator) -> list[Subquery]:
    """The subqueries in the operator's expressions that read relations."""
    found = [n for node in expressions(operator) for n in walk(node) if isinstance(n, Subquery)]
    return [n for n in found if reads(n.plan)]


def correlation(plan: Operator, outer: frozenset[str]) -> tuple[Filter | None, list[Pair]]:
    """The filter in which a query, asked for each row of the one around it, names columns of that row in
    equalities, and these, the outer expression first. All the query's rows come from rows that satisfy
    them."""
    while isinstance(plan, _ONE_INPUT):
        if isinstance(plan, Filter):
            own = aliases(plan.input)
            found: list[Pair] = []
            for a, b in equalities(plan.condition):
                for one, other in ((a, b), (b, a)):
                    if is_over(one, outer) and is_over(other, own):
                        found.append((one, other))
            if found:
                return plan, found
        if isinstance(plan, Named) and plan.lateral:
            break
        plan = plan.input
    return None, []
