"""The same query in forms that have stages.

- An uncorrelated scalar subquery that is an aggregate over all rows becomes a join with its one row.
- `x NOT IN (query)` becomes NOT EXISTS, with what concerns all rows of the query as a join with one row:
  whether it has any, and a NULL among them.
- GROUPING SETS without a common key become the UNION ALL of groups of which sums are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pyarrow as pa

from tidemill.sql.functions.tree import and_, bigint, eq, gt, is_null, not_, or_
from tidemill.sql.plan.accumulated import accumulated, count_of
from tidemill.sql.plan.expressions import BoundNode, Const, Op, Ref, Subquery, rewrite, walk
from tidemill.sql.plan.keyed import aliases, can_be_key, columns_of, conjuncts
from tidemill.sql.plan.operators import (
    Filter,
    Group,
    Join,
    Named,
    Operator,
    Output,
    Project,
    SetOperation,
    reads,
)
from tidemill.types.arrow import arrow_type
from tidemill.types.model import BOOL, INT4, INT8


def unnested(plan: Operator) -> Operator:
    return _Unnesting().operator(plan)


def has_one_row(op: Operator) -> bool:
    """Whether what stands in FROM has one row at most: an aggregate over all rows."""
    while isinstance(op, Named | Project | Filter):
        if isinstance(op, Named) and op.lateral:
            return False
        op = op.input
    return isinstance(op, Group) and not op.keys and len(op.sets) == 1


class _Unnesting:
    def __init__(self) -> None:
        self._made = 0

    def operator(self, op: Operator) -> Operator:
        """Not what stands in subqueries of expressions, and LATERAL: a join there hides what they are
        correlated by."""
        if isinstance(op, Named) and op.lateral:
            return op
        changed: dict[str, Operator] = {}
        for f in fields(op):
            value = getattr(op, f.name)
            if isinstance(value, Operator):
                changed[f.name] = self.operator(value)
        if any(changed[name] is not getattr(op, name) for name in changed):
            op = replace(op, **changed)
        if isinstance(op, Filter):
            return self._filter(op)
        if isinstance(op, Project):
            joined: list[Named] = []
            listed = tuple(Output(o.name, self._joined(o.node, joined)) for o in op.outputs)
            return Project(_join_all(op.input, joined), listed) if joined else op
        if isinstance(op, Named) and isinstance(op.input, Group):
            return replace(op, input=self._sets(op.input))
        return op

    def _alias(self) -> str:
        self._made += 1
        return f"one{self._made}"

    def _filter(self, op: Filter) -> Operator:
        joined: list[Named] = []
        parts = [self._not_in(part, op, joined) or part for part in conjuncts(op.condition)]
        found = [self._joined(part, joined) for part in parts]
        if not joined:
            return op
        return Filter(_join_all(op.input, joined), _all(found))

    def _joined(self, node: BoundNode, joined: list[Named]) -> BoundNode:
        """With columns of one row in the place of scalar subqueries, which are added."""

        def change(part: BoundNode) -> BoundNode | None:
            if not isinstance(part, Subquery) or part.kind != "scalar" or part.outer:
                return None
            if not reads(part.plan) or not has_one_row(part.plan):
                return None
            name, t = columns_of(part.plan)[0]
            one = next((j for j in joined if j.input is part.plan), None)
            if one is None:
                one = Named(part.plan, self._alias())
                joined.append(one)
            return Ref(t, one.alias, name)

        return rewrite(node, change)

    # -- NOT IN

    def _not_in(self, node: BoundNode, op: Filter, joined: list[Named]) -> BoundNode | None:
        inner = node.args[0] if isinstance(node, Op) and node.key == "not" else None
        if not isinstance(inner, Subquery) or inner.kind != "in" or inner.outer or len(inner.operands) != 1:
            return None
        (operand,), (name, t) = inner.operands, columns_of(inner.plan)[0]
        refs = tuple(dict.fromkeys(n for n in walk(operand) if isinstance(n, Ref)))
        plain = refs and all(r.table in aliases(op.input) for r in refs)
        nested = any(isinstance(n, Subquery) for n in walk(operand))
        if not plain or nested or not reads(inner.plan) or not can_be_key(t):
            return None
        if not can_be_key(operand.type) or arrow_type(t) != arrow_type(operand.type):
            return None
        value = Ref(t, self._alias(), name)
        equal = Op(BOOL, "=(in)", (operand, value), lambda a: eq(*a))
        rows = Filter(Named(inner.plan, value.table), equal)
        there = Subquery(BOOL, "exists", Project(rows, (Output("c0", value),)), refs)
        some, nulls = self._facts(inner.plan, joined)
        known = Op(BOOL, "or none", (operand, some), lambda a: or_(not_(is_null(a[0])), not_(a[1])))
        return _all([known, _not(nulls), _not(there)])

    def _facts(self, plan: Operator, joined: list[Named]) -> tuple[Ref, Ref]:
        """Whether the query has rows, and whether it has a NULL."""
        name, t = columns_of(plan)[0]
        value = Ref(t, self._alias(), name)
        counts = (count_of(None, None), count_of(value, None))
        group = Named(Group(Named(plan, value.table), ((),), (), counts), self._alias())
        all_, valid = (Ref(INT8, group.alias, n) for n in ("a0", "a1"))
        some = Op(BOOL, "some", (all_,), lambda a: gt(a[0], bigint(0)))
        nulls = Op(BOOL, "some NULL", (all_, valid), lambda a: gt(*a))
        one = Named(Project(group, (Output("c0", some), Output("c1", nulls))), self._alias())
        joined.append(one)
        return Ref(BOOL, one.alias, "c0"), Ref(BOOL, one.alias, "c1")

    # -- GROUPING SETS

    def _sets(self, group: Group) -> Operator:
        if len(group.sets) < 2 or any(all(k in s for s in group.sets) for k in group.keys):
            return group
        parts: list[Operator] = []
        for own in group.sets:
            keys = tuple(k for k in group.keys if k in own)
            one = replace(group, sets=(keys,), keys=keys)
            if accumulated(one) is None:
                return group
            named = Named(one, self._alias())
            listed: list[Output] = []
            for i, key in enumerate(group.keys):
                node = (
                    Ref(key.type, named.alias, f"g{keys.index(key)}") if key in own else Const(key.type, None)
                )
                listed.append(Output(f"g{i}", node))
            for i, aggregate in enumerate(group.aggregates):
                listed.append(Output(f"a{i}", Ref(aggregate.type, named.alias, f"a{i}")))
            for i, key in enumerate(group.keys):
                listed.append(Output(f"b{i}", _bit(key not in own)))
            parts.append(Project(named, tuple(listed)))
        made = parts[0]
        for part in parts[1:]:
            made = SetOperation("UNION", False, made, part)
        return made


def _bit(set_: bool) -> Const:
    return Const(INT4, pa.scalar(int(set_), pa.int32()))


def _join_all(op: Operator, joined: Sequence[Named]) -> Operator:
    for one in joined:
        op = Join(op, one, "LEFT", None)
    return op


def _not(node: BoundNode) -> Op:
    return Op(BOOL, "not", (node,), lambda a: not_(a[0]))


def _all(nodes: Sequence[BoundNode]) -> BoundNode:
    return nodes[0] if len(nodes) == 1 else Op(BOOL, "and", tuple(nodes), lambda a: and_(*a))
