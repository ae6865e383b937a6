"""What a query is cut into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.sql.plan.expressions import BoundNode
from tidemill.sql.plan.keyed import read_subqueries
from tidemill.sql.plan.operators import (
    Expand,
    Filter,
    Join,
    Named,
    Operator,
    Project,
    Scan,
    SetOperation,
    inputs,
    walk_plan,
    windows,
)
from tidemill.types.model import SqlType

Key = tuple[BoundNode, ...]
# Conditions that all rows that matter satisfy, and that cannot fail for others.
Given = Sequence[BoundNode]


class CannotPush(Exception):
    """The key does not reach the inputs of an operator."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """`name` is what the stage's plan calls the input, `source` a relation of the query (by its placeholder)
    or another stage (by its name). Of it, the rows with the touched values of the columns `key` are needed;
    without a key (`loose`), its changes alone. A `single` input has one row, which goes with all others: when
    it changes, all is evaluated."""

    name: str
    source: str
    key: tuple[str, ...] = ()
    single: bool = False

    @property
    def loose(self) -> bool:
        return not self.key and not self.single


@dataclass(frozen=True, slots=True)
class Stage:
    """`query` is over the query's relations, `plan` the same over `inputs`. `rules`: its operators that have
    a key, as (operator, key), from the outside in. With `sums` it keeps sums of groups (`accumulated`): these
    of its columns are added up, the others are the groups' key. With `recalled` its old answers are not
    computed again, because they might come out otherwise, but looked up by these columns of it, its key."""

    name: str
    query: Operator
    plan: Operator
    columns: tuple[tuple[str, SqlType], ...]
    inputs: tuple[StageInput, ...]
    rules: tuple[tuple[str, Key], ...]
    sums: tuple[str, ...] = ()
    recalled: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The key of the groups whose sums are kept."""
        return tuple(name for name, _ in self.columns if name not in self.sums)

    @property
    def linear(self) -> frozenset[str]:
        """The inputs of which the changes alone are needed while the others stay as they are: each row of the
        answer is made of one row of them."""
        singles = {i.name for i in self.inputs if i.single}
        return frozenset() if self.recalled else linear_inputs(self.plan)[1] - singles


def linear_inputs(op: Operator) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the scans of a plan, and those in which it is linear if the others do not change."""
    if isinstance(op, Scan):
        return frozenset({op.placeholder}), frozenset({op.placeholder})
    inside = frozenset(
        o.placeholder
        for subquery in read_subqueries(op)
        for o in walk_plan(subquery.plan)
        if isinstance(o, Scan)
    )
    sides = [linear_inputs(under) for under in inputs(op)]
    names = inside.union(*(side[0] for side in sides))
    if isinstance(op, Join):
        (left, of_left), (right, of_right) = sides
        linear = (of_left if op.side in ("", "LEFT") else frozenset[str]()) - right
        if op.side in ("", "RIGHT") and not (isinstance(op.right, Named) and op.right.lateral):
            linear |= of_right - left
    elif isinstance(op, SetOperation) and op.kind == "UNION" and not op.distinct:
        linear = frozenset(n for n in names if all(n not in known or n in own for known, own in sides))
    elif isinstance(op, Project | Filter | Named | Expand) and not any(True for _ in windows(op)):
        linear = sides[0][1]
    else:
        linear = frozenset[str]()
    return names, linear - inside
