"""WITH RECURSIVE: a query that references itself, as Spark's recursive query.

The first side defines the columns and their types. The other side, which references the query, runs over the
result of the previous round until a round returns no rows. Spark stops it after a limited number of rounds
and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from tidemill.errors import DatatypeMismatch, SyntaxError_, TidemillError
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.expr import Env
from tidemill.sql.bind.query import BoundParts, bind_level, named
from tidemill.sql.bind.scope import Scope
from tidemill.sql.bind.tables import columns_named
from tidemill.sql.functions.lattice import base, can_coerce, common_type
from tidemill.sql.plan.expressions import BoundNode, Ref
from tidemill.sql.plan.operators import Named, PreviousRound, Project, Recursive, outputs
from tidemill.types.model import SqlType, plain


class InvalidRecursion(TidemillError):
    sqlstate = "42P19"


def bind_recursive(env: Env, item: exp.CTE, names: Sequence[str], parent: Scope | None) -> BoundParts:
    name, query = item.alias, item.this
    _check(name, query)
    first = bind_level(env, query.this, parent)
    # The first rows do not determine the digits that later rows show.
    columns = tuple(replace(c, type=plain(c.type)) for c in named(first.columns, names, item))
    table = f"tm_rec_{env.ctx.alias()}"
    types = [c.type for c in columns]
    before = Project(PreviousRound(table), outputs(columns_named(table, types)))
    itself = BoundParts(before, columns)
    again = bind_level(replace(env, ctes={**env.ctes, name: itself}), query.expression, parent)
    if len(again.columns) != len(columns):
        raise SyntaxError_(
            "each UNION query must have the same number of columns", position=position_of(query.expression)
        )
    if first.outer or again.outer:
        raise unsupported("a recursive query that names columns of the query around it", position_of(item))
    alias = env.ctx.alias()
    typed = [
        _as_first(env, name, i, columns[i].type, Ref(c.type, alias, f"c{i}"))
        for i, c in enumerate(again.columns)
    ]
    step = Project(Named(again.plan, alias), outputs(typed))
    return BoundParts(Recursive(table, first.plan, step, len(columns)), columns)


def _as_first(env: Env, name: str, index: int, want: SqlType, found: Ref) -> BoundNode:
    """The recursive side's column with the type of the first side. PostgreSQL requires that they agree."""
    overall, _ = common_type([want, found.type])
    if overall is None or base(overall) != base(want) or not can_coerce(found.type, want):
        shown = overall if overall is not None else found.type
        raise DatatypeMismatch(
            f'recursive query "{name}" column {index + 1} has type {want} in non-recursive term '
            f"but type {shown} overall",
            hint="Cast the output of the non-recursive term to the correct type.",
        )
    return to_type(env.ctx, found, want)


def _check(name: str, query: exp.Expr) -> None:
    """PostgreSQL's rules for where a query may reference itself."""
    position = position_of(query)
    if not isinstance(query, exp.Union):
        raise InvalidRecursion(
            f'recursive query "{name}" does not have the form non-recursive-term UNION [ALL] recursive-term',
            position=position,
        )
    if query.args.get("distinct"):
        raise unsupported(
            "WITH RECURSIVE with UNION", position, "Use UNION ALL, and a condition that comes to an end."
        )
    if any(query.args.get(k) for k in ("order", "limit", "offset")):
        raise unsupported(
            "ORDER BY or LIMIT in a recursive query", position, "Put it where the query is used."
        )
    if _uses(query.this, name):
        raise InvalidRecursion(
            f'recursive reference to query "{name}" must not appear within its non-recursive term',
            position=position,
        )
    if len(_uses(query.expression, name)) > 1:
        raise InvalidRecursion(
            f'recursive reference to query "{name}" must not appear more than once', position=position
        )
    use = _uses(query.expression, name)[0]
    inside = use.find_ancestor(exp.Subquery, exp.Exists, exp.In)
    if inside is not None and inside.find_ancestor(exp.Union) is not None and not _is_from(inside):
        raise InvalidRecursion(
            f'recursive reference to query "{name}" must not appear within a subquery', position=position
        )
    for join in query.expression.find_all(exp.Join):
        if join.args.get("side"):
            raise unsupported("an outer join in a recursive query", position)
    if query.expression.find(exp.AggFunc, exp.Group, exp.Window) is not None:
        raise InvalidRecursion(
            "aggregate functions are not allowed in a recursive query's recursive term", position=position
        )


def _uses(query: exp.Expr, name: str) -> list[exp.Table]:
    return [t for t in query.find_all(exp.Table) if t.name == name and not t.args.get("db")]


def _is_from(node: exp.Expr) -> bool:
    return isinstance(node.parent, exp.From | exp.Join)
