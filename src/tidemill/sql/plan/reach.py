"""What a changed row of an operator's input can change in its output.

An operator is *local to a key* if its answer is the union, over the values of the key, of its answers over
the rows with that value: then changes of rows can only change the answers of their keys. Linear operators
need no key: a row's answer depends on the row alone. Sums over all rows change by what is added. Everything
else has one answer for all rows.

`reaches` says it of each operator of a plan that is not linear, and for what reason one is not local either.
EXPLAIN shows this; which rules of maintenance are used for it is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemill.sql.plan.expressions import Aggregate, BoundNode, Op, Subquery, Window, children, walk
from tidemill.sql.plan.keyed import aliases, conjuncts, is_over
from tidemill.sql.plan.operators import (
    Distinct,
    Expand,
    Filter,
    FirstOfEach,
    Group,
    Join,
    Limit,
    Named,
    OneRow,
    Operator,
    Project,
    Recursive,
    SetOperation,
    Sort,
    Ties,
    expressions,
    inputs,
    keeps_all,
    reads,
)
from tidemill.types.model import Kind


@dataclass(frozen=True, slots=True)
class Reach:
    """`what` is the operator in the words of SQL. With a `key`, one expression per column over the
    operator's input (for a join and a subquery: pairs of equal ones), or with `row`, the whole row as the
    key, it is local. With `sums` its one row follows from sums and counts. Otherwise a change can change
    everything, for the reason in `because`."""

    what: str
    key: tuple[tuple[BoundNode, ...], ...] = ()
    row: bool = False
    sums: bool = False
    because: str = ""


def reaches(plan: Operator) -> list[Reach]:
    """Of the plan's operators that are not linear, from the outside in."""
    return list(dict.fromkeys(_visit(plan)))


def _visit(operator: Operator) -> Iterator[Reach]:
    yield from _own(operator)
    yield from _windows(operator)
    for part in _conditions(operator):
        yield from _subqueries(part, operator)
    if not isinstance(operator, Join | Filter):
        for source in inputs(operator):
            yield from _source(source, ())


def _own(operator: Operator) -> Iterator[Reach]:
    if isinstance(operator, Group):
        yield from _group(operator)
    elif isinstance(operator, Distinct):
        yield Reach("DISTINCT", row=True)
    elif isinstance(operator, FirstOfEach):
        yield Reach("DISTINCT ON", tuple((node,) for node in _of_each(operator)))
    elif isinstance(operator, SetOperation):
        if operator.distinct or operator.kind != "UNION":
            yield Reach(operator.kind + ("" if operator.distinct else " ALL"), row=True)
    elif isinstance(operator, Limit):
        if not keeps_all(operator):
            word = "LIMIT" if operator.count is not None else "OFFSET"
            yield Reach(word, because="it takes its rows from the order of all")
    elif isinstance(operator, Ties):
        yield Reach("WITH TIES", because="it takes its rows from the order of all")
    elif isinstance(operator, Recursive):
        yield Reach("WITH RECURSIVE", because="a round depends on all rows of the round before")


def _of_each(operator: FirstOfEach) -> list[BoundNode]:
    given = {o.name: o.node for o in operator.input.outputs} if isinstance(operator.input, Project) else {}
    nodes = [given[name] for name in operator.keys if name in given]
    return [n.args[0] if isinstance(n, Op) and n.key == "comparable" else n for n in nodes]


# --- groups and windows


def _group(operator: Group) -> Iterator[Reach]:
    for keys in operator.sets:
        rest = [call.fn.name for call in operator.aggregates if not _adds_up(call)]
        if keys:
            yield Reach("GROUP BY", tuple((key,) for key in keys))
        elif rest:
            yield Reach("an aggregate", because=f"{rest[0]}() does not follow from sums of what changed")
        else:
            yield Reach("an aggregate", sums=True)


# Aggregates whose value follows from sums and counts, which changes are added to.
_SUMS = frozenset({"count", "sum", "avg", "bool_and", "bool_or", "every"})


def _adds_up(call: Aggregate) -> bool:
    """Sums of floats depend on the order of the additions."""
    inexact = any(a.type.kind in (Kind.FLOAT4, Kind.FLOAT8) for a in call.args)
    return call.fn.name in _SUMS and not call.distinct and (call.fn.name == "count" or not inexact)


def _windows(operator: Operator) -> Iterator[Reach]:
    found = [n for node in expressions(operator) for n in walk(node) if isinstance(n, Window)]
    for partition in dict.fromkeys(w.partition for w in found):
        if partition:
            yield Reach("a window function", tuple((node,) for node in partition))
        else:
            yield Reach("a window function", because="it has no PARTITION BY")


# --- FROM

_JOINS = {"": "a join", "LEFT": "a left join", "RIGHT": "a right join", "FULL": "a full join"}


def _source(source: Operator, given: tuple[BoundNode, ...]) -> Iterator[Reach]:
    """`given` are conditions of which only rows that satisfy them matter: those of WHERE count for the inner
    joins below it."""
    if isinstance(source, Filter):
        yield from _visit(source)
        yield from _source(source.input, (*given, *conjuncts(source.condition)))
    elif isinstance(source, Join):
        yield from _visit(source)
        yield from _join(source, given)
    else:
        yield from _visit(source)


def _join(join: Join, given: tuple[BoundNode, ...]) -> Iterator[Reach]:
    own = tuple(conjuncts(join.condition))
    inner = not join.side
    conditions = (*given, *own) if inner else own
    what = _JOINS[join.side]
    left, right = aliases(join.left), aliases(join.right)
    lateral = isinstance(join.right, Named) and join.right.lateral
    if lateral:
        yield from _correlated("LATERAL", join.right, left)
    elif reads(join.left if join.side == "RIGHT" else join.right) or join.side == "FULL":
        pairs = tuple(_equalities(conditions, left, right))
        because = "" if pairs else "no column of one side has to equal one of the other"
        yield Reach(what, pairs, because=because)
    yield from _source(join.left, conditions if inner else given if join.side == "LEFT" else ())
    if not lateral:
        yield from _source(join.right, conditions if inner else given if join.side == "RIGHT" else ())


def _equalities(
    conditions: Iterable[BoundNode], left: frozenset[str], right: frozenset[str]
) -> Iterator[tuple[BoundNode, BoundNode]]:
    """The pairs of the equalities, the expression over `left` first."""
    for part in conditions:
        if not isinstance(part, Op) or not part.key.startswith("=(") or len(part.args) != 2:
            continue
        a, b = part.args
        if is_over(a, left) and is_over(b, right):
            yield a, b
        elif is_over(a, right) and is_over(b, left):
            yield b, a


# --- subqueries


def _conditions(operator: Operator) -> Iterator[BoundNode]:
    """The operator's expressions; a condition in parts that must all be true."""
    for node in expressions(operator):
        if isinstance(operator, Filter):
            yield from conjuncts(node)
        else:
            yield node


def _subqueries(node: BoundNode, operator: Operator) -> Iterator[Reach]:
    """`node` is one of `_conditions`. Only there, in WHERE, IN has no third answer."""
    if isinstance(node, Subquery):
        if node.kind != "in":
            yield from _subquery(node)
        elif isinstance(operator, Filter):
            yield Reach("IN", tuple((operand,) for operand in node.operands))
        else:
            yield Reach("IN as a value", because="a NULL in the subquery concerns all rows")
        if not node.outer:
            yield from _visit(node.plan)
    for child in children(node):
        yield from _inside(child)


def _inside(node: BoundNode) -> Iterator[Reach]:
    """Subqueries in an expression, where IN is a value."""
    yield from _subqueries(node, OneRow())


def _subquery(node: Subquery) -> Iterator[Reach]:
    what = "EXISTS" if node.kind == "exists" else "a subquery"
    if node.outer:
        yield from _correlated(what, node.plan, frozenset(ref.table for ref in node.outer))
    elif reads(node.plan):
        yield Reach(what, because="it has one answer for all rows")


def _correlated(what: str, plan: Operator, outer: frozenset[str]) -> Iterator[Reach]:
    """A query that is asked for each row of the one around it. One that reads nothing is a function of that
    row."""
    relations = reads(plan)
    if relations == 0:
        return
    if relations > 1:
        yield Reach(what, because="it is correlated and reads more than one relation")
        return
    pairs = tuple(_correlation(plan, outer))
    because = "" if pairs else "no column of it has to equal one of the query around it"
    yield Reach(what, pairs, because=because)


def _correlation(plan: Operator, outer: frozenset[str]) -> Iterator[tuple[BoundNode, BoundNode]]:
    """The equalities that all rows of the query satisfy, the outer expression first."""
    while isinstance(plan, _ONE_INPUT):
        if isinstance(plan, Filter):
            yield from _equalities(conjuncts(plan.condition), outer, aliases(plan.input))
        plan = plan.input


_ONE_INPUT = (Project, Named, Group, Filter, Limit, Sort, Distinct, FirstOfEach, Ties, Expand)
