"""Linear plans: which queries can be followed on the changes of their inputs alone.

A query is linear if its result over a sum of two collections is the sum of its results. Filters, projections,
scalar functions, set-returning functions (in FROM, too) and UNION ALL are linear; operators that combine
several rows are not. A linear query is a sum of parts over one stored relation each. An operator that is not
known to be linear is reported by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.sql.plan.expressions import BoundNode, Ref, Subquery, Window, rewrite, walk
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
    Output,
    Project,
    Recursive,
    Rows,
    Scan,
    Series,
    SetOperation,
    Sort,
    TableFunction,
    Ties,
    expressions,
    inputs,
    keeps_all,
    reads,
)
from tidemill.types.model import INT8

# The column with the carried number of a row. No physical name and no name of the binder begins like this.
ROW = "mz_row"


@dataclass(frozen=True, slots=True)
class LinearPart:
    """The contribution of one relation to a query: the query's columns c0, c1, ... and, as `ROW`, the number
    of the relation's row that each row is made of. By this number the caller finds the time and the
    multiplicity of the change that a row belongs to."""

    placeholder: str
    plan: Project | Expand


class NotLinear(Exception):
    """`operator` is the first operator that is not linear, in the words of EXPLAIN."""

    def __init__(self, operator: str) -> None:
        self.operator = operator


def linear_parts(plan: Operator) -> list[LinearPart]:
    """The query's parts; none for rows that always exist, because they belong to no change."""
    return [LinearPart(_relation(part), part) for part in _parts(plan)]


def _parts(query: Operator) -> list[Project | Expand]:
    if isinstance(query, Project):
        _check_scalar(query)
        return _over(query, query.input)
    if isinstance(query, Sort) or (isinstance(query, Limit) and keeps_all(query)):
        return _parts(query.input)  # The order of a query does not change its rows.
    if isinstance(query, SetOperation) and query.kind == "UNION" and not query.distinct:
        return [*_parts(query.left), *_parts(query.right)]
    if isinstance(query, Expand):
        return _over(query, query.input)
    if isinstance(query, Rows | Series | TableFunction):
        return []
    raise NotLinear(_words(query))


def _over(query: Project | Expand, source: Operator) -> list[Project | Expand]:
    """The parts of a projection (or expansion) of the source."""
    if isinstance(source, Sort):
        return _over(query, source.input)
    conditions: list[Filter] = []
    while isinstance(source, Filter):
        _check_scalar(source)
        conditions.append(source)
        source = source.input
    if isinstance(source, Named) and isinstance(query, Project) and not conditions:
        return [_picked(query, part, source) for part in _parts(source.input)]
    return [_carrying(query, conditions, *made) for made in _sources(source)]


def _sources(source: Operator) -> list[tuple[Operator, str]]:
    """The source once for each relation in it, and the alias of its columns that has the carried number."""
    if isinstance(source, Scan):
        return [(source, source.alias)]
    if isinstance(source, Named):
        return [(replace(source, input=part), source.alias) for part in _parts(source.input)]
    if isinstance(source, OneRow):
        return []
    if isinstance(source, Join) and source.side in ("", "LEFT") and not reads(source.right):
        # Each row of the left side is joined with rows that follow from it, or that are always the same.
        _check_scalar(source)
        return [(replace(source, left=left), alias) for left, alias in _sources(source.left)]
    raise NotLinear(_words(source))


def _carrying(
    query: Project | Expand, conditions: list[Filter], below: Operator, alias: str
) -> Project | Expand:
    """The query over the source, with the carried number."""
    carried = Ref(INT8, alias, ROW)
    for condition in reversed(conditions):
        below = replace(condition, input=below)
    if isinstance(query, Project):
        return Project(below, (*query.outputs, Output(ROW, carried)))
    return Expand(below, (*query.kept, carried), query.arrays)


def _picked(query: Project, part: Project | Expand, source: Named) -> Project | Expand:
    """A projection that only selects columns, as every level of UNION ALL does, becomes one with the
    projection below it. Rows that were made of one row are not made again."""
    if not isinstance(part, Project) or not all(isinstance(o.node, Ref) for o in query.outputs):
        return _carrying(query, [], replace(source, input=part), source.alias)
    given = {o.name: o.node for o in part.outputs}
    picked = [Output(o.name, given[o.node.name]) for o in query.outputs if isinstance(o.node, Ref)]
    return Project(part.input, (*picked, Output(ROW, given[ROW])))


def _relation(part: Operator) -> str:
    while not isinstance(part, Scan):
        part = inputs(part)[0]
    return part.placeholder


def _check_scalar(operator: Operator) -> None:
    """Raises if an expression depends on more than its row."""
    for node in expressions(operator):
        for found in walk(node):
            if isinstance(found, Window):
                raise NotLinear("a window function")
            if isinstance(found, Subquery):
                raise NotLinear("a subquery in an expression")


# What a SELECT does with the rows of its FROM.
_CLAUSES = (Filter, Group, Project, Distinct, FirstOfEach, Ties, Sort, Limit)


def _words(operator: Operator) -> str:
    """The operator as messages call it; a join below it in the same SELECT comes first."""
    below = operator
    while isinstance(below, _CLAUSES):
        below = below.input
    if isinstance(below, Join):
        return "a join"
    if isinstance(operator, SetOperation):
        return operator.kind
    if isinstance(operator, Group):
        return "GROUP BY" if operator.keys else "an aggregate function"
    if isinstance(operator, Limit):
        return "LIMIT" if operator.count is not None else "OFFSET"
    found: dict[type[Operator], str] = {
        Distinct: "DISTINCT",
        FirstOfEach: "DISTINCT ON",
        Ties: "WITH TIES",
        Recursive: "WITH RECURSIVE",
    }
    return found.get(type(operator), type(operator).__name__)


# -- one filter and one projection -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flattened:
    """A part as filters, in the order in which they apply, and one projection of the relation's columns,
    under `alias`."""

    conditions: tuple[BoundNode, ...]
    outputs: tuple[BoundNode, ...]


def flattened(part: Operator, alias: str) -> Flattened | None:
    """None if an expression would have to be duplicated, or makes several rows from one."""
    if not isinstance(part, Project):
        return None
    source, conditions = part.input, tuple[BoundNode, ...]()
    while isinstance(source, Filter):
        conditions = (source.condition, *conditions)
        source = source.input
    outputs = tuple(o.node for o in part.outputs if o.name != ROW)
    if isinstance(source, Scan):

        def column(node: BoundNode) -> BoundNode | None:
            return Ref(node.type, alias, node.name) if isinstance(node, Ref) and node.table else None

        return Flattened(_all(conditions, column), _all(outputs, column))
    if not isinstance(source, Named) or not isinstance(source.input, Project):
        return None
    inner = flattened(source.input, alias)
    if inner is None or not all(isinstance(o, Ref) for o in inner.outputs):
        return None
    names = [o.name for o in source.input.outputs if o.name != ROW]
    given = dict(zip(names, inner.outputs, strict=True))

    def place(node: BoundNode) -> BoundNode | None:
        return given.get(node.name) if isinstance(node, Ref) and node.table else None

    return Flattened((*inner.conditions, *_all(conditions, place)), _all(outputs, place))


def _all(
    nodes: tuple[BoundNode, ...], change: Callable[[BoundNode], BoundNode | None]
) -> tuple[BoundNode, ...]:
    return tuple(rewrite(node, change) for node in nodes)
