"""Linear queries in the form in which Spark evaluates them over changes.

Called by the engine for SUBSCRIBE, materialized views and EXPLAIN. Which plans are linear, and their parts,
is found by `plan.linear`; here each part becomes a Spark query.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.bind.substitute import complete
from tidemill.sql.bind.temporal import on_changes
from tidemill.sql.functions.python import FUNCTIONS as PYTHON_FUNCTIONS
from tidemill.sql.functions.tree import Tree, and_
from tidemill.sql.lower.expressions import lower, lower_filter
from tidemill.sql.lower.queries import lower_query
from tidemill.sql.plan.linear import LinearPart, NotLinear, flattened, linear_parts

if TYPE_CHECKING:
    from tidemill.sql.bind.model import BoundQuery

# The alias of the relation in a branch's flat form.
FLAT_ALIAS = "r"
# UNION ALL of more relations than this is evaluated as a whole, because each is a branch of a plan.
MAX_BRANCHES = 64
# The maximum number of nested conditions of a flat form.
MAX_STEPS = 32

_PYTHON = frozenset(f.name for f in PYTHON_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Flat:
    """A branch as filters and one projection of the relation, which is named `FLAT_ALIAS`. A condition may be
    evaluated only for rows for which the previous conditions are true, because it may fail for others."""

    conditions: tuple[Tree, ...]
    outputs: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The contribution of the changes of one relation (by its placeholder) to a query: its columns c0, c1,
    ... and `ROW`. `flat` if it has that form."""

    placeholder: str
    query: exp.Expr
    flat: Flat | None

    def over(self, name: str) -> exp.Expr:
        """The query with another name for the relation."""
        query = self.query.copy()
        for table in query.find_all(exp.Table):
            if table.name == self.placeholder:
                table.set("this", exp.to_identifier(name, quoted=True))
        return query


@dataclass(frozen=True, slots=True)
class Linearity:
    """`because`: the operator that makes the query not linear. None for a linear query, which is the sum of
    its `branches` (without branches if it is constant)."""

    branches: tuple[Branch, ...] = ()
    because: str | None = None


def linearity(bound: BoundQuery) -> Linearity:
    because = why_not_linear(bound)
    if because is not None:
        return Linearity(because=because)
    return Linearity(tuple(_branch(bound, part) for part in linear_parts(bound.plan)))


def why_not_linear(bound: BoundQuery) -> str | None:
    chance = bound.determinism.on(Dependence.CHANCE)
    if chance is not None:
        return chance
    if bound.uses_mz_now:
        return None if on_changes(bound) is not None else "mz_now()"
    try:
        parts = len(linear_parts(bound.plan))
    except NotLinear as e:
        return e.operator
    return f"UNION ALL of more than {MAX_BRANCHES} relations" if parts > MAX_BRANCHES else None


def _branch(bound: BoundQuery, part: LinearPart) -> Branch:
    query = complete(lower_query(part.plan), bound.params, bound.session)
    return Branch(part.placeholder, query, _flat(bound, part))


def _flat(bound: BoundQuery, part: LinearPart) -> Flat | None:
    found = flattened(part.plan, FLAT_ALIAS)
    if found is None:
        return None
    conditions = [complete(lower_filter(c), bound.params, bound.session) for c in found.conditions]
    outputs = [complete(lower(o), bound.params, bound.session) for o in found.outputs]
    if any(map(_has_python, [*conditions, *outputs])):
        return None
    steps = _steps([part for c in conditions for part in _conjuncts(c)])
    return None if len(steps) > MAX_STEPS else Flat(tuple(steps), tuple(outputs))


def _conjuncts(tree: Tree) -> list[Tree]:
    """A filter evaluates the operands of AND one by one, and stops at one that is false or NULL; AND alone
    does not stop at NULL."""
    if isinstance(tree, exp.Paren):
        inner = _conjuncts(tree.this)
        return inner if len(inner) > 1 else [tree]
    if isinstance(tree, exp.And):
        return [*_conjuncts(tree.left), *_conjuncts(tree.right)]
    return [tree]


def _steps(conditions: Sequence[Tree]) -> list[Tree]:
    """Conditions that cannot fail may be evaluated together, independent of the previous ones."""
    steps: list[Tree] = []
    for harmless, group in itertools.groupby(conditions, _cannot_fail):
        found = list(group)
        steps += [and_(*found)] if harmless else found
    return steps


def _has_python(tree: Tree) -> bool:
    """Spark evaluates functions in Python, and their arguments, for every row that it reads."""
    return any(isinstance(n, exp.Anonymous) and str(n.this) in _PYTHON for n in tree.walk())


_HARMLESS = (
    exp.Column,
    exp.Identifier,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.And,
    exp.Or,
    exp.Not,
    exp.EQ,
    exp.NEQ,
    exp.LT,
    exp.LTE,
    exp.GT,
    exp.GTE,
    exp.In,
)
_HARMLESS_CALLS = frozenset({"isnull", "coalesce", "upper", "lower", "startswith"})


def _cannot_fail(tree: Tree) -> bool:
    if isinstance(tree, exp.Cast):
        # A constant of the binder. Casts of columns may overflow.
        value = tree.this.this if isinstance(tree.this, exp.Neg) else tree.this
        return isinstance(value, exp.Literal | exp.Null)
    if isinstance(tree, exp.Anonymous):
        harmless = str(tree.this) in _HARMLESS_CALLS
    else:
        harmless = isinstance(tree, _HARMLESS)
    return harmless and all(_cannot_fail(child) for child in tree.iter_expressions())
