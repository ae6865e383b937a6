"""A stage's plan over several versions of its inputs at once.

Each row of an input has a number, its version, in one more column. The rewritten plan gives the answers over
the rows of each version, and with each row of them its version: the version is one more column of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.sql.functions.tree import Tree, and_, call, eq
from tidemill.sql.plan.expressions import BoundNode, Op, Ref, Subquery, Window, rewrite
from tidemill.sql.plan.keyed import aliases, correlation
from tidemill.sql.plan.operators import (
    Distinct,
    Expand,
    Filter,
    FirstOfEach,
    Group,
    Join,
    Limit,
    Named,
    Operator,
    Output,
    Project,
    Scan,
    SetOperation,
    Sort,
    inputs,
    keeps_all,
    reads,
)
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.types.model import BOOL, INT4

# No physical name and no name of the binder begins like this.
VERSION = "mz_version"


def versioned(plan: Operator) -> Operator:
    """The plan's outputs and `VERSION` (of a group as the last key); each scan has a column `VERSION`. Raises
    NotIncremental."""
    made, name = _query(plan)
    if name != VERSION and not isinstance(plan, Group):
        raise NotIncremental(f"{type(plan).__name__} at the top")
    return made


def _query(op: Operator) -> tuple[Operator, str]:
    """The query and the name of its version."""
    if isinstance(op, Project):
        source, version = _source(op.input)
        listed = tuple(Output(o.name, _node(o.node, version)) for o in op.outputs)
        return Project(source, (*listed, Output(VERSION, version))), VERSION
    if isinstance(op, Sort) or (isinstance(op, Limit) and keeps_all(op)):
        return _query(op.input)
    if isinstance(op, Distinct):
        below, name = _query(op.input)
        return Distinct(below), name
    if isinstance(op, FirstOfEach):
        below, name = _query(op.input)
        return replace(op, input=below, keys=(*op.keys, name)), name
    if isinstance(op, SetOperation):
        (left, name), (right, _) = _query(op.left), _query(op.right)
        return replace(op, left=left, right=right), name
    if isinstance(op, Group):
        source, version = _source(op.input)
        sets = tuple((*s, version) for s in op.sets)
        return replace(op, input=source, sets=sets, keys=(*op.keys, version)), f"g{len(op.keys)}"
    if isinstance(op, Expand):
        source, version = _source(op.input)
        if not isinstance(version, Ref):
            raise NotIncremental("a set-returning function over a full join")
        return replace(op, input=source, kept=(*op.kept, version)), version.name
    raise NotIncremental(type(op).__name__)


def _source(op: Operator) -> tuple[Operator, BoundNode]:
    """What stands in FROM, and its version."""
    if isinstance(op, Scan):
        return op, Ref(INT4, op.alias, VERSION)
    if isinstance(op, Named):
        below, name = _query(op.input)
        return replace(op, input=below), Ref(INT4, op.alias, name)
    if isinstance(op, Filter):
        source, version = _source(op.input)
        return Filter(source, _node(op.condition, version)), version
    if isinstance(op, Sort):
        return _source(op.input)
    if isinstance(op, Join):
        return _join(op)
    raise NotIncremental(type(op).__name__)


def _join(op: Join) -> tuple[Operator, BoundNode]:
    if not reads(op.right):
        source, version = _source(op.left)
        return replace(op, left=source), version
    if not reads(op.left):
        source, version = _source(op.right)
        return replace(op, right=source), version
    left, mine = _source(op.left)
    if isinstance(op.right, Named) and op.right.lateral:
        below = _correlated(op.right.input, mine, aliases(op.left))
        return replace(op, left=left, right=replace(op.right, input=below)), mine
    right, theirs = _source(op.right)
    equal = _equal(mine, theirs)
    condition = equal if op.condition is None else _both(op.condition, equal)
    version = {"": mine, "LEFT": mine, "RIGHT": theirs}.get(op.side)
    if version is None:
        version = Op(INT4, "coalesce", (mine, theirs), _coalesce)
    return replace(op, left=left, right=right, condition=condition), version


def _node(node: BoundNode, version: BoundNode) -> BoundNode:
    """An expression over rows of this version."""

    def change(part: BoundNode) -> BoundNode | None:
        if isinstance(part, Window):
            return replace(part, partition=(*part.partition, version))
        if isinstance(part, Subquery) and reads(part.plan):
            return _subquery(part, version)
        return None

    return rewrite(node, change)


def _subquery(node: Subquery, version: BoundNode) -> Subquery:
    if node.kind == "in":
        plan, name = _query(node.plan)
        if name != VERSION:
            raise NotIncremental("this IN")
        return replace(node, plan=plan, operands=(*node.operands, version))
    if not isinstance(version, Ref):
        raise NotIncremental("a subquery over a full join")
    plan = _correlated(node.plan, version, frozenset(ref.table for ref in node.outer))
    outer = node.outer if version in node.outer else (*node.outer, version)
    return replace(node, plan=plan, outer=outer)


def _correlated(plan: Operator, version: BoundNode, outer: frozenset[str]) -> Operator:
    """A query that is asked for each row of the one around it: of that row's version alone."""
    base = correlation(plan, outer)[0]

    def below(op: Operator) -> Operator:
        if isinstance(op, Filter) and op is base:
            source, own = _source(op.input)
            return Filter(source, _both(op.condition, _equal(own, version)))
        return replace(op, input=below(inputs(op)[0]))

    if base is None:
        raise NotIncremental("a subquery without an equality")
    return below(plan)


def _equal(a: BoundNode, b: BoundNode) -> Op:
    return Op(BOOL, "=(version)", (a, b), lambda args: eq(*args))


def _both(a: BoundNode, b: BoundNode) -> Op:
    return Op(BOOL, "and", (a, b), lambda args: and_(*args))


def _coalesce(args: Sequence[Tree]) -> Tree:
    return call("coalesce", *args)
