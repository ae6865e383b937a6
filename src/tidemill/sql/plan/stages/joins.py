"""Joins: local to the sides of their equalities; with one row, to whatever the other side is local to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.sql.plan.expressions import BoundNode, Ref, Subquery, Window, walk
from tidemill.sql.plan.keyed import (
    Pair,
    aliases,
    correlation,
    equal_over,
    equal_to,
    equalities,
    facts,
    harmless,
    is_over,
    pairs_of,
)
from tidemill.sql.plan.operators import Join, Named, Operator, reads
from tidemill.sql.plan.stages.model import CannotPush, Given, Key
from tidemill.sql.plan.stages.subqueries import correlated, partner
from tidemill.sql.plan.unnested import has_one_row

if TYPE_CHECKING:
    from tidemill.sql.plan.stages.planner import Planner


def outer_join(p: Planner, op: Join, given: Given) -> Operator:
    left, right = reads(op.left), reads(op.right)
    if not right and op.side in ("", "LEFT"):
        return replace(op, left=p.outer(op.left, given))
    if not left and op.side in ("", "RIGHT"):
        return replace(op, right=p.outer(op.right, given))
    if has_one_row(op.right) and op.side in ("", "LEFT") and plain(op):
        return replace(op, left=p.outer(op.left, given), right=p.single(op.right))
    if has_one_row(op.left) and op.side in ("", "RIGHT") and plain(op):
        return replace(op, left=p.single(op.left), right=p.outer(op.right, given))
    what = {"": "join", "LEFT": "left join", "RIGHT": "right join", "FULL": "full join"}[op.side]
    if isinstance(op.right, Named) and op.right.lateral:
        found = [(outer,) for outer, _ in correlation(op.right.input, aliases(op.left))[1]]
        return p.by_key("LATERAL", found, lambda keys: lateral(p, op, keys[0]))
    p.joins = True
    pairs = _join_pairs(op, given)
    return p.by_key(what, pairs, lambda keys: join_sides(p, op, keys[0], keys[1], given))


def pushed_join(p: Planner, op: Join, key: Key, given: Given) -> Operator:
    left, right = aliases(op.left), aliases(op.right)
    if isinstance(op.right, Named) and op.right.lateral and reads(op.right):
        pairs = correlation(op.right.input, left)[1]
        if op.side not in ("", "LEFT") or not all(any(o == k for o, _ in pairs) for k in key):
            raise CannotPush("LATERAL has another key")
        return lateral(p, op, key)
    if not reads(op.right) and op.side in ("", "LEFT"):
        return replace(op, left=p.source(op.left, over(key, left, pairs_of(given)), given))
    if not plain(op):
        raise CannotPush("a subquery is in the condition of a join")
    if has_one_row(op.right) and op.side in ("", "LEFT"):
        kept = p.source(op.left, over(key, left, pairs_of(given)), given)
        return replace(op, left=kept, right=p.single(op.right))
    if op.side == "FULL":
        raise CannotPush("the key of a full join")
    if not op.side:
        pairs = (*pairs_of(given), *facts(op))
        if p.joins and not _covered(_join_pairs(op, given), key, pairs):
            raise CannotPush("the join inside has a longer key")
        return join_sides(p, op, over(key, left, pairs), over(key, right, pairs), given)
    on = tuple(equalities(op.condition))
    kept, other = (op.left, op.right) if op.side == "LEFT" else (op.right, op.left)
    mine = over(key, aliases(kept), (*pairs_of(given), *facts(kept)))
    if not reads(other):
        raise CannotPush("an outer join of rows that are always there")
    theirs = tuple(_matching(part, aliases(other), on, tuple(facts(kept))) for part in mine)
    sides = (mine, theirs) if op.side == "LEFT" else (theirs, mine)
    return join_sides(p, op, *sides, given)


def join_sides(p: Planner, op: Join, left: Key, right: Key, given: Given = ()) -> Operator:
    if not plain(op):
        raise CannotPush("a subquery is in the condition of a join")
    both = (*given, *harmless(op.condition)) if not op.side else ()
    return replace(
        op,
        left=p.source(op.left, left, given if op.side == "LEFT" else both),
        right=p.source(op.right, right, given if op.side == "RIGHT" else both),
    )


def lateral(p: Planner, op: Join, key: Key) -> Operator:
    right = op.right
    if not isinstance(right, Named) or not plain(op):
        raise CannotPush("a subquery is in the condition of a join")
    base, pairs = correlation(right.input, aliases(op.left))
    inner = tuple(partner(part, pairs) for part in key)
    left = p.source(op.left, key, ())
    below = correlated(p, right.input, inner, base)
    return replace(op, left=left, right=replace(right, input=below))


def _join_pairs(op: Join, given: Given) -> list[Key]:
    left, right = aliases(op.left), aliases(op.right)
    pairs: list[Key] = []
    for a, b in (*equalities(op.condition), *(() if op.side else pairs_of(given))):
        if is_over(a, left) and is_over(b, right):
            pairs.append((a, b))
        elif is_over(a, right) and is_over(b, left):
            pairs.append((b, a))
    return list(dict.fromkeys(pairs))


def _covered(own: Sequence[Key], key: Key, pairs: Sequence[Pair]) -> bool:
    """Whether each of a join's own pairs is a part of the key."""
    return all(
        any(one == part or one in equal_to(part, pairs) for part in key for one in pair) for pair in own
    )


def over(key: Key, names: frozenset[str], pairs: Sequence[Pair]) -> Key:
    found = [equal_over(part, names, pairs) for part in key]
    if any(node is None for node in found):
        raise CannotPush("the key is not of one side of a join")
    return tuple(node for node in found if node is not None)


def _matching(part: BoundNode, names: frozenset[str], on: Sequence[Pair], known: Sequence[Pair]) -> BoundNode:
    """What equals the key on the side of an outer join that is filled with NULLs."""
    for a, b in on:
        for mine, theirs in ((a, b), (b, a)):
            if is_over(theirs, names) and not is_over(mine, names):
                own = frozenset(n.table for n in walk(mine) if isinstance(n, Ref))
                if mine == part or equal_over(part, own, known) == mine:
                    return theirs
    raise CannotPush("the key is not of one side of a join")


def plain(op: Join) -> bool:
    return op.condition is None or not any(isinstance(n, Subquery | Window) for n in walk(op.condition))
