"""Keys as they read on the other side of a projection, and for EXPLAIN."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.sql.plan.expressions import BoundNode, Op, Ref, Subquery, Window, rewrite, walk
from tidemill.sql.plan.operators import (
    Distinct,
    FirstOfEach,
    Group,
    Named,
    Operator,
    Project,
    SetOperation,
    inputs,
    walk_plan,
)
from tidemill.sql.plan.stages.groups import group_key
from tidemill.sql.plan.stages.model import CannotPush, Key


def shown(within: Operator | None, key: Key) -> Key:
    if isinstance(within, Group):
        return tuple(group_key(within, part) for part in key)
    while isinstance(within, Distinct | FirstOfEach | SetOperation):
        within = inputs(within)[0]
    nodes = {o.name: o.node for o in within.outputs} if isinstance(within, Project) else {}
    found = [nodes.get(part.name, part) if isinstance(part, Ref) and not part.table else part for part in key]
    return tuple(n.args[0] if isinstance(n, Op) and n.key == "comparable" else n for n in found)


def origin(op: Operator, part: Ref) -> BoundNode:
    """What an output is made of, as it is written in the query."""
    if isinstance(op, Group):
        return group_key(op, part)
    if not isinstance(op, Project):
        return origin(inputs(op)[0], part) if inputs(op) else part
    node = next((o.node for o in op.outputs if o.name == part.name), part)
    if isinstance(node, Ref):
        for under in walk_plan(op.input):
            if isinstance(under, Named) and under.alias == node.table:
                return origin(under.input, Ref(node.type, "", node.name))
    return node


def inside(node: BoundNode, alias: str) -> BoundNode:
    """The expression over the outputs of the query of this name."""

    def change(part: BoundNode) -> BoundNode | None:
        if isinstance(part, Ref):
            if part.table != alias:
                raise CannotPush("the key is of another item")
            return Ref(part.type, "", part.name)
        return None

    return rewrite(node, change)


def placed(node: BoundNode, given: Mapping[str, BoundNode]) -> BoundNode:
    """The expression over outputs as one over what they are made of."""

    def change(part: BoundNode) -> BoundNode | None:
        if isinstance(part, Ref) and not part.table:
            if part.name not in given:
                raise CannotPush("the key is made of other columns")
            return given[part.name]
        return None

    made = rewrite(node, change)
    parts = list(walk(made))
    if any(isinstance(p, Subquery | Window) for p in parts) or not any(isinstance(p, Ref) for p in parts):
        raise CannotPush("the key does not follow from columns")
    return made


def check_columns(key: Key) -> None:
    """Rows that are equal have equal columns, but perhaps not equal expressions: -0.0 = 0.0."""
    if not all(isinstance(part, Ref) for part in key):
        raise CannotPush("the key is computed")
