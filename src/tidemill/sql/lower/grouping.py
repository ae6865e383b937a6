"""GROUP BY as Spark SQL, with grouping sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.sql.functions.tree import Tree, call, cast, cast_to, integer, null
from tidemill.sql.lower.expressions import lower
from tidemill.sql.lower.select import aliased
from tidemill.sql.plan.expressions import BoundNode
from tidemill.sql.plan.operators import Group

_Sets = Sequence[Sequence[BoundNode]]


def lower_group(group: Group, select: Callable[[Sequence[exp.Expr]], exp.Select]) -> exp.Expr:
    """`select` makes a SELECT of the given columns from the group's input."""
    full = [s for s in group.sets if s]
    # The empty grouping set has a row even without input, so each needs a separate query.
    parts: list[_Sets] = [full] if full else []
    parts += [[()]] * (len(group.sets) - len(full))
    whole: exp.Expr = _select(group, parts[0], select)
    for part in parts[1:]:
        whole = exp.Union(this=whole, expression=_select(group, part, select), distinct=False)
    return whole


def _select(group: Group, sets: _Sets, make: Callable[[Sequence[exp.Expr]], exp.Select]) -> exp.Select:
    named = {key for s in sets for key in s}
    columns: list[exp.Expr] = []
    for i, key in enumerate(group.keys):
        columns.append(aliased(lower(key) if key in named else cast_to(null(), key.type), f"g{i}"))
    columns += [aliased(lower(aggregate), f"a{i}") for i, aggregate in enumerate(group.aggregates)]
    if len(group.sets) > 1:
        columns += [aliased(_bit(key, sets, named), f"b{i}") for i, key in enumerate(group.keys)]
    if not group.aggregates and any(not s for s in group.sets):
        # Without keys, groups all rows into one.
        columns.append(aliased(exp.Count(this=exp.Star()), "n"))
    select = make(columns)
    if len(sets) > 1:
        tuples = [exp.Tuple(expressions=[lower(k) for k in s]) for s in sets]
        select.set("group", exp.Group(expressions=[exp.GroupingSets(expressions=tuples)]))
    elif sets[0]:
        select.set("group", exp.Group(expressions=[lower(key) for key in sets[0]]))
    return select


def _bit(key: BoundNode, sets: _Sets, named: set[BoundNode]) -> Tree:
    if key not in named:
        return integer(1)
    return integer(0) if len(sets) == 1 else cast(call("grouping", lower(key)), "INT")
