"""Linear queries: which queries can be followed on the changes of their inputs alone, and in which form.

A query is linear if its result over a sum of two collections is the sum of its results. Filters, projections,
scalar functions and UNION ALL are linear; operators that combine several rows are not. `linearity` checks the
Spark tree, operator by operator, against an allow-list: an operator that is not known to be linear is
reported by name. Called by the engine for SUBSCRIBE, materialized views and EXPLAIN. Future rules for joins
and aggregates on changes start where an operator is named here.

A linear query is a sum of `Branch`es, each over one stored relation. A branch's query returns the columns c0,
c1, ... of the whole, and a number (`ROW`). By this number the caller finds the time and the multiplicity of
the change that a row belongs to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.functions.python import FUNCTIONS as PYTHON_FUNCTIONS
from tidemill.sql.functions.tree import Tree, and_, column
from tidemill.sql.lower.aggregate import is_spark_aggregate
from tidemill.sql.lower.select import aliased, subquery_as

if TYPE_CHECKING:
    from tidemill.sql.bind.model import BoundQuery

# The column with the carried number. No physical name and no name of the binder begins like this.
ROW = "mz_row"
# The alias of the relation in a branch's flat form.
FLAT_ALIAS = "r"
# UNION ALL of more relations than this is evaluated as a whole, because each is a branch of a plan.
MAX_BRANCHES = 64
# The maximum number of nested conditions of a flat form.
MAX_STEPS = 32

_PYTHON = frozenset(f.name for f in PYTHON_FUNCTIONS)
# The clauses that a linear SELECT may have. Its order does not change its rows.
_SELECT = frozenset({"expressions", "from_", "where", "order"})
_CLAUSES = {
    "joins": "a join",
    "laterals": "a join",
    "group": "GROUP BY",
    "having": "HAVING",
    "distinct": "DISTINCT",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "with_": "WITH RECURSIVE",
}
# Functions that make several rows from one. They are linear, because their rows depend only on the one row,
# but they are not projections: they must not be left out or duplicated.
_GENERATORS = frozenset({"explode", "inline"})


@dataclass(frozen=True, slots=True)
class Flat:
    """A branch as filters and one projection of the relation, which is named `FLAT_ALIAS`. A condition may be
    evaluated only for rows for which the previous conditions are true, because it may fail for others."""

    conditions: tuple[Tree, ...]
    outputs: tuple[Tree, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The contribution of the changes of one relation (by its placeholder) to a query. `flat` if it has that
    form."""

    placeholder: str
    query: exp.Select
    flat: Flat | None

    def over(self, name: str) -> exp.Select:
        """The query with another name for the relation."""
        query = self.query.copy()
        for table in query.find_all(exp.Table):
            table.set("this", exp.to_identifier(name, quoted=True))
        return query


@dataclass(frozen=True, slots=True)
class Linearity:
    """`because`: the operator that makes the query not linear. None for a linear query, which is the sum of
    its `branches` (without branches if it is constant)."""

    branches: tuple[Branch, ...] = ()
    because: str | None = None


def linearity(bound: BoundQuery) -> Linearity:
    chance = bound.determinism.on(Dependence.CHANCE)
    if chance is not None:
        return Linearity(because=chance)
    try:
        branches = _branches(bound.spark)
        if len(branches) > MAX_BRANCHES:
            raise _NotLinear(f"UNION ALL of more than {MAX_BRANCHES} relations")
    except _NotLinear as e:
        return Linearity(because=e.operator)
    return Linearity(tuple(Branch(_relation(b), b, _flat(b)) for b in branches))


class _NotLinear(Exception):
    def __init__(self, operator: str) -> None:
        self.operator = operator


# -- operator by operator ------------------------------------------------------------------------------


def _branches(query: exp.Expr) -> list[exp.Select]:
    """The query as a sum of queries over one relation each. All are new and have the carried number."""
    if isinstance(query, exp.Subquery):
        return _branches(query.this)
    if isinstance(query, exp.SetOperation):
        if not isinstance(query, exp.Union) or query.args.get("distinct"):
            raise _NotLinear(type(query).__name__.upper())
        return [*_branches(query.this), *_branches(query.expression)]
    if isinstance(query, exp.Select):
        return _select(query)
    if query.args.get("joins"):
        raise _NotLinear("a join")
    raise _NotLinear(type(query).__name__)


def _select(select: exp.Select) -> list[exp.Select]:
    for clause, value in select.args.items():
        if value and clause not in _SELECT:
            raise _NotLinear(_CLAUSES.get(clause, clause))
    where = select.args.get("where")
    for tree in (*select.expressions, *([where] if where is not None else [])):
        _check_scalar(tree)
    clause = select.args.get("from_")
    if clause is None or isinstance(clause.this, exp.Values) or _counted(clause.this):
        # Rows that always exist do not belong to any change.
        return []
    source = clause.this
    if source.args.get("joins"):
        raise _NotLinear("a join")
    if isinstance(source, exp.Table):
        return [_carrying(select, source)]
    if isinstance(source, exp.Subquery):
        return [_over(select, b, source.alias) for b in _branches(source.this)]
    raise _NotLinear(type(source).__name__)


def _counted(source: exp.Expr) -> bool:
    """Whether it is a series (`series_range`), and not a relation."""
    return isinstance(source, exp.Table) and isinstance(source.this, exp.Func)


def _check_scalar(tree: exp.Expr) -> None:
    """Raises if an expression depends on more than its row."""
    for node in tree.walk():
        if isinstance(node, exp.Window):
            raise _NotLinear("a window function")
        if isinstance(node, exp.Query):
            raise _NotLinear("a subquery in an expression")
        if is_spark_aggregate(node):
            raise _NotLinear("an aggregate function")


def _over(select: exp.Select, inner: exp.Select, alias: str) -> exp.Select:
    picks = select.args.get("where") is None and all(
        isinstance(e.this, exp.Column) for e in select.expressions
    )
    if picks and not _generates(inner):
        # Only selects columns, as every level of UNION ALL does.
        given = {e.alias: e for e in inner.expressions}
        picked = [aliased(given[e.this.name].this.copy(), e.alias) for e in select.expressions]
        inner.set("expressions", [*picked, given[ROW]])
        return inner
    return _carrying(select, subquery_as(inner, alias))


def _generates(select: exp.Select) -> bool:
    return any(
        isinstance(n, exp.Anonymous) and str(n.this) in _GENERATORS
        for e in select.expressions
        for n in e.walk()
    )


def _carrying(select: exp.Select, source: exp.Expr) -> exp.Select:
    carried = aliased(column(source.alias, ROW), ROW)
    result = exp.Select(expressions=[*(e.copy() for e in select.expressions), carried])
    result.set("from_", exp.From(this=source.copy()))
    where = select.args.get("where")
    if where is not None:
        result.set("where", where.copy())
    return result


def _relation(branch: exp.Select) -> str:
    source = branch.args["from_"].this
    return source.name if isinstance(source, exp.Table) else _relation(source.this)


# -- the flat form -------------------------------------------------------------------------------------


def _flat(branch: exp.Select) -> Flat | None:
    merged = _merged(branch)
    if merged is None:
        return None
    conditions, outputs = merged
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


def _merged(select: exp.Select) -> tuple[list[Tree], list[Tree]] | None:
    """The conditions and outputs (without the carried number) over the relation's columns. None if an
    expression would have to be duplicated, or makes several rows from one."""
    if _generates(select):
        return None
    source = select.args["from_"].this
    where = select.args.get("where")
    own = [where.this] if where is not None else []
    outputs = [e.this for e in select.expressions if e.alias != ROW]
    if isinstance(source, exp.Table):
        names = {n: column(FLAT_ALIAS, n) for n in _names([*own, *outputs])}
        return [_renamed(c, names) for c in own], [_renamed(o, names) for o in outputs]
    inner = _merged(source.this)
    if inner is None:
        return None
    conditions, given = inner
    named = [e.alias for e in source.this.expressions if e.alias != ROW]
    columns = dict(zip(named, given, strict=True))
    if not all(isinstance(g, exp.Column) for g in given):
        return None
    return [*conditions, *(_renamed(c, columns) for c in own)], [_renamed(o, columns) for o in outputs]


def _names(trees: Sequence[Tree]) -> set[str]:
    # A lambda's parameter is a column without a table.
    return {c.name for tree in trees for c in tree.find_all(exp.Column) if c.table}


def _renamed(tree: Tree, names: dict[str, Tree]) -> Tree:
    holder = exp.Paren(this=tree.copy())
    for found in list(holder.find_all(exp.Column)):
        if found.table:
            found.replace(names[found.name].copy())
    return holder.this


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
