"""AND, OR and NOT in three-valued logic."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.local.model import Env, Refs, Runtime, Typed
from tidemill.types.model import BOOL


def conjunction(parts: Sequence[Typed]) -> Typed:
    """a AND b AND ...: false if one is, else NULL if one is."""
    if len(parts) == 1:
        return parts[0]
    runs = [p.run for p in parts]

    def both(e: Env, rt: Runtime) -> bool | None:
        missing = False
        for run in runs:
            v = run(e, rt)
            if v is None:
                missing = True
            elif not v:
                return False
        return None if missing else True

    return Typed(BOOL, both, all_refs(parts))


def disjunction(parts: Sequence[Typed]) -> Typed:
    if len(parts) == 1:
        return parts[0]
    runs = [p.run for p in parts]

    def either(e: Env, rt: Runtime) -> bool | None:
        missing = False
        for run in runs:
            v = run(e, rt)
            if v is None:
                missing = True
            elif v:
                return True
        return None if missing else False

    return Typed(BOOL, either, all_refs(parts))


def negation(part: Typed) -> Typed:
    run = part.run

    def not_(e: Env, rt: Runtime) -> bool | None:
        v = run(e, rt)
        return None if v is None else not v

    return Typed(BOOL, not_, part.refs)


def all_refs(parts: Sequence[Typed]) -> Refs:
    return frozenset().union(*(p.refs for p in parts))


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """a AND (b AND c) as a list."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.And):
        return [node]
    return [*conjuncts(node.this), *conjuncts(node.expression)]
