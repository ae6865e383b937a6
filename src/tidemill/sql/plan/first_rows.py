"""ORDER BY ... LIMIT over all rows of a query.

There is no key, but most changes are of rows that are not among the first ones. Who keeps these and some more
(`subscribe.first_rows`) has the answer without looking at the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from tidemill.sql.plan.expressions import BoundNode, Const, Ref, SortKey
from tidemill.sql.plan.keyed import can_be_key
from tidemill.sql.plan.operators import Limit, Named, Operator, Project, Sort, Ties
from tidemill.types.model import INT8


@dataclass(frozen=True, slots=True)
class FirstRows:
    """After `skipped` rows of `query` in the order (of its outputs) the first `count`, with `ties` also those
    that are equal to the last one. `shown` are its outputs that are returned."""

    query: Operator
    order: tuple[SortKey, ...]
    shown: tuple[str, ...] | None
    count: int
    skipped: int
    ties: bool = False

    def best(self, count: int) -> Operator:
        """The first rows of the query."""
        return Limit(Sort(self.query, self.order), count=Const(INT8, pa.scalar(count, pa.int64())))


def first_rows(plan: Operator) -> FirstRows | None:
    """None if the plan is another one, or has no order."""
    count, skipped = 0, 0
    limit = plan if isinstance(plan, Limit) else None
    if limit is not None:
        found = _number(limit.count), 0 if limit.skipped is None else _number(limit.skipped)
        if found[0] is None or found[1] is None:
            return None
        count, skipped = found[0], found[1]
        plan = limit.input
    shown: tuple[str, ...] | None = None
    alias = ""
    if isinstance(plan, Project) and isinstance(plan.input, Sort) and isinstance(plan.input.input, Named):
        refs = [o.node for o in plan.outputs if isinstance(o.node, Ref)]
        sort, named = plan.input, plan.input.input
        if len(refs) < len(plan.outputs) or any(r.table != named.alias for r in refs) or named.lateral:
            return None
        shown, alias = tuple(r.name for r in refs), named.alias
        query = named.input
    elif isinstance(plan, Sort):
        sort, query = plan, plan.input
    else:
        return None
    order = tuple(_over(key, alias) for key in sort.keys)
    ties = query if isinstance(query, Ties) and limit is None else None
    if ties is not None:
        if ties.count is None:
            return None
        query, order, count, skipped = ties.input, ties.order, ties.count, ties.skipped
    elif limit is None:
        return None
    if not all(isinstance(k.node, Ref) and not k.node.table and can_be_key(k.node.type) for k in order):
        return None
    return FirstRows(query, order, shown, count, skipped, ties is not None) if order else None


def _over(key: SortKey, alias: str) -> SortKey:
    node = key.node
    if isinstance(node, Ref) and node.table == alias:
        return replace(key, node=Ref(node.type, "", node.name))
    return key


def _number(node: BoundNode | None) -> int | None:
    if not isinstance(node, Const) or not isinstance(node.value, pa.Scalar) or not node.value.is_valid:
        return None
    value = node.value.as_py()
    return int(value) if int(value) == value and value >= 0 else None
