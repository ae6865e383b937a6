"""Groups: local to the keys of GROUP BY and DISTINCT ON; of some only sums are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.sql.plan.accumulated import Accumulated
from tidemill.sql.plan.expressions import BoundNode, Op, Ref, walk
from tidemill.sql.plan.operators import (
    FirstOfEach,
    Group,
    Join,
    Operator,
    Project,
    reads,
    walk_plan,
)
from tidemill.sql.plan.stages.model import CannotPush, Key, Stage, linear_inputs
from tidemill.sql.plan.unkept import NotIncremental

if TYPE_CHECKING:
    from tidemill.sql.plan.stages.planner import Planner


def group_key(op: Group, part: BoundNode) -> BoundNode:
    if isinstance(part, Ref) and part.name.startswith("g"):
        key = op.keys[int(part.name[1:])]
        if all(key in s for s in op.sets):
            if not any(isinstance(p, Ref) for p in walk(key)):
                raise CannotPush("the key is constant")
            return key
    raise CannotPush("the key is not one of GROUP BY")


def of_each(op: FirstOfEach, key: Key) -> Key:
    """The key in outputs that the rows of each key share."""
    if not isinstance(op.input, Project):
        raise CannotPush("DISTINCT ON")
    nodes = {o.name: o.node for o in op.input.outputs}
    on = [nodes[name] for name in op.keys]
    shared = [n.args[0] if isinstance(n, Op) and n.key == "comparable" else n for n in on]
    made: list[BoundNode] = []
    for part in key:
        if not isinstance(part, Ref):
            raise CannotPush("the key is computed")
        node = nodes.get(part.name)
        plain = node.args[0] if isinstance(node, Op) and node.key == "comparable" else node
        if plain is None or plain not in shared:
            raise CannotPush("the key is not one of DISTINCT ON")
        # `comparable` changes no value of the types that can be keys.
        found = next((name for name, n in nodes.items() if n == plain), part.name)
        made.append(Ref(part.type, "", found))
    return tuple(made)


def sums_of(p: Planner, found: Accumulated) -> Stage:
    """The stage of a group's sums, with the planner of this group."""
    group = found.group
    try:
        plan = replace(group, input=_added(p, group))
    except CannotPush as e:
        raise NotIncremental(str(e)) from None
    return p.stage(plan, (("sums", group.keys),), found.sums)


def _added(p: Planner, group: Group) -> Operator:
    """The group's rows, of which the changes are added up: those of inputs, or of a stage below."""
    if _is_linear(group.input):
        if not group.keys:
            return p.outer(group.input)
        if p.cost(lambda: p.source(group.input, group.keys, ())) == 0:
            return p.source(group.input, group.keys, ())
    return p.cut_off(group.input, group.keys, ())


def _is_linear(op: Operator) -> bool:
    """Whether each row of what stands in FROM is made of one row of one relation."""
    names, linear = linear_inputs(op)
    several = (isinstance(o, Join) and reads(o.left) and reads(o.right) for o in walk_plan(op))
    return names == linear and not any(several)
