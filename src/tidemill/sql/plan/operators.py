"""Relational operators: a query as a tree of immutable values.

A row's columns have names. The operators that stand in FROM (`Scan`, `Named`, `PreviousRound`, `Copies`) have
an alias that is unique in the statement, and `Ref(alias, name)` is their column wherever it is used, also in
a subquery. The outputs of a query are c0, c1, ...; an operator that works on the outputs of its input
(`Sort` over a `Project`) references them without an alias.

Rows come from an operator in any order, except from a `Sort`, and from `Limit` and `Project` over one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from tidemill.sql.functions.signature import Builder
from tidemill.sql.plan.expressions import (
    Aggregate,
    BoundNode,
    Const,
    Ref,
    SortKey,
    Subquery,
    Window,
    rewrite,
    walk,
)
from tidemill.types.model import SqlType


@dataclass(frozen=True, slots=True)
class Operator:
    """Base: rows of named columns."""


# --- leaves


@dataclass(frozen=True, slots=True)
class OneRow(Operator):
    """One row without columns: a SELECT without FROM."""


@dataclass(frozen=True, slots=True)
class Scan(Operator):
    """A stored relation. `placeholder` is its name in `BoundQuery.inputs`: one per relation, although each
    use has its own alias."""

    placeholder: str
    alias: str


@dataclass(frozen=True, slots=True)
class Rows(Operator):
    """VALUES: `count` rows. Each column is an array in storage form, or its cells."""

    columns: tuple[pa.Array | tuple[BoundNode, ...], ...]
    types: tuple[SqlType, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Series(Operator):
    """generate_series of integers between constants: c0 and, `numbered`, its place as c1."""

    start: int
    stop: int
    step: int
    type: SqlType
    numbered: bool = False

    @property
    def rows(self) -> int:
        return max(0, (self.stop - self.start) // self.step + 1)


@dataclass(frozen=True, slots=True)
class TableFunction(Operator):
    """The rows of a set-returning function, which may reference columns of enclosing or preceding items.
    `build` makes the array that the rows are expanded from: of values for one column, of structs with the
    fields c0, c1, ... for several. `numbered` adds the row's place as the last column."""

    key: str
    args: tuple[BoundNode, ...]
    types: tuple[SqlType, ...]
    build: Builder = field(compare=False)
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class PreviousRound(Operator):
    """In the step of a `Recursive`: the rows of the round before."""

    alias: str


# --- sources


@dataclass(frozen=True, slots=True)
class Named(Operator):
    """A query in FROM. `lateral`: it references columns of items to its left."""

    input: Operator
    alias: str
    lateral: bool = False


@dataclass(frozen=True, slots=True)
class Copies(Operator):
    """Each copy of a row of `input` with a number of its own, in the column `number`."""

    input: Scan
    number: str


@dataclass(frozen=True, slots=True)
class Join(Operator):
    """`side` is empty for an inner join, else LEFT, RIGHT or FULL. Without a condition all pairs match."""

    left: Operator
    right: Operator
    side: str = ""
    condition: BoundNode | None = None


@dataclass(frozen=True, slots=True)
class Filter(Operator):
    """The rows for which the condition is true."""

    input: Operator
    condition: BoundNode


# --- queries


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    node: BoundNode


def outputs(nodes: Iterable[BoundNode], name: str = "c") -> tuple[Output, ...]:
    """c0, c1, ..."""
    return tuple(Output(f"{name}{i}", node) for i, node in enumerate(nodes))


@dataclass(frozen=True, slots=True)
class Project(Operator):
    """One row per row of the input. Outputs may contain window functions, over all rows of the input."""

    input: Operator
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Group(Operator):
    """GROUP BY: for each of the grouping `sets` the groups of the rows with equal keys. The columns are the
    keys g0, g1, ... (NULL where the set lacks the key), the aggregates a0, a1, ... and, with several sets,
    b0, b1, ...: 1 where the row's set lacks the key, else 0. The empty set has a row even without input."""

    input: Operator
    sets: tuple[tuple[BoundNode, ...], ...]
    keys: tuple[BoundNode, ...]
    aggregates: tuple[Aggregate, ...]


@dataclass(frozen=True, slots=True)
class Expand(Operator):
    """The elements of `arrays` as rows, side by side, in the columns e0, e1, ...; shorter arrays are filled
    with NULLs. `kept` are the columns that each of the rows keeps, under their names."""

    input: Operator
    kept: tuple[Ref, ...]
    arrays: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Distinct(Operator):
    """One copy of each row."""

    input: Operator


@dataclass(frozen=True, slots=True)
class FirstOfEach(Operator):
    """For each value of the outputs `keys` the first row in the order (any row, without one)."""

    input: Operator
    keys: tuple[str, ...]
    order: tuple[SortKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Ties(Operator):
    """FETCH FIRST WITH TIES: after `skipped` rows in the order the first `count` rows (None: all) and those
    that are equal to the last of them."""

    input: Operator
    order: tuple[SortKey, ...]
    count: int | None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Sort(Operator):
    """The keys are outputs of the input, or columns of its alias if it has one."""

    input: Operator
    keys: tuple[SortKey, ...]


@dataclass(frozen=True, slots=True)
class Limit(Operator):
    """LIMIT and OFFSET: numbers, or expressions over parameters; None or NULL is no limit."""

    input: Operator
    count: BoundNode | None = None
    skipped: BoundNode | None = None


@dataclass(frozen=True, slots=True)
class SetOperation(Operator):
    """`kind` is UNION, INTERSECT or EXCEPT; with `distinct`, one copy of each row."""

    kind: str
    distinct: bool
    left: Operator
    right: Operator


@dataclass(frozen=True, slots=True)
class Recursive(Operator):
    """WITH RECURSIVE: the rows of `first`, and those of `step` over the rows of the round before
    (`PreviousRound` of the same alias) until a round has none. `width` columns."""

    alias: str
    first: Operator
    step: Operator
    width: int


# --- what is computed on every kind


def inputs(operator: Operator) -> tuple[Operator, ...]:
    found = (getattr(operator, f.name) for f in fields(operator))
    return tuple(v for v in found if isinstance(v, Operator))


def expressions(operator: Operator) -> Iterator[BoundNode]:
    """The operator's own expressions, without those of its inputs."""
    for f in fields(operator):
        yield from _nodes(getattr(operator, f.name))


def _nodes(value: Any) -> Iterator[BoundNode]:
    if isinstance(value, BoundNode):
        yield value
    elif isinstance(value, SortKey | Output):
        yield value.node
    elif isinstance(value, tuple):
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _nodes(part)


def walk_plan(operator: Operator) -> Iterator[Operator]:
    """The operator and those under it, also in subqueries of expressions. One that several use comes several
    times."""
    yield operator
    for node in expressions(operator):
        for part in walk(node):
            if isinstance(part, Subquery):
                yield from walk_plan(part.plan)
    for under in inputs(operator):
        yield from walk_plan(under)


def rewrite_plan(operator: Operator, change: Callable[[BoundNode], BoundNode | None]) -> Operator:
    """The plan with its expressions rewritten, as `rewrite` does."""

    def rewritten(value: Any) -> Any:
        if isinstance(value, Operator):
            return rewrite_plan(value, change)
        if isinstance(value, BoundNode):
            return rewrite(value, change)
        if isinstance(value, SortKey | Output):
            return replace(value, node=rewrite(value.node, change))
        if isinstance(value, tuple):
            return tuple(rewritten(part) for part in value)  # pyright: ignore[reportUnknownVariableType]
        return value

    return replace(operator, **{f.name: rewritten(getattr(operator, f.name)) for f in fields(operator)})


def reads(operator: Operator) -> int:
    """How many relations the plan names; one that it names twice counts twice."""
    return sum(isinstance(o, Scan | PreviousRound) for o in walk_plan(operator))


def keeps_all(limit: Limit) -> bool:
    """Whether both numbers are NULL."""
    return all(
        node is None or (isinstance(node, Const) and (node.value is None or not node.value.is_valid))
        for node in (limit.count, limit.skipped)
    )


def is_ordered(operator: Operator) -> bool:
    if isinstance(operator, Limit) or (isinstance(operator, Project) and isinstance(operator.input, Sort)):
        return is_ordered(operator.input)
    return isinstance(operator, Sort)


def windows(operator: Operator) -> Iterator[Window]:
    """The window functions that the operator itself computes."""
    for node in expressions(operator):
        for part in walk(node):
            if isinstance(part, Window):
                yield part


def size(operator: Operator, known: dict[int, tuple[Operator, int]]) -> int:
    """The number of operators, expressions and values of the plan; what is used several times counts several
    times. `known` are sizes by identity, with what they are the sizes of."""
    found = known.get(id(operator))
    if found is not None:
        return found[1]
    count = 1 + sum(size(under, known) for under in inputs(operator))
    if isinstance(operator, Rows):
        count += operator.count * len(operator.columns)
    else:
        for node in expressions(operator):
            for part in walk(node):
                count += 1 + (size(part.plan, known) if isinstance(part, Subquery) else 0)
    known[id(operator)] = (operator, count)
    return count
