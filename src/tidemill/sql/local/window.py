"""Window functions: row_number, rank and dense_rank, and aggregates over a whole partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from tidemill.sql.bind.calls import FunctionCall, call_of
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.grouping import Aggregates, is_aggregate
from tidemill.sql.local.logic import all_refs
from tidemill.sql.local.model import Env, NotLocal, Runtime, Typed
from tidemill.sql.local.ordering import LocalSortKey, compile_keys, sort_rows
from tidemill.types.model import INT8

_RANKS = ("row_number", "rank", "dense_rank")


def compile_window(x: Expressions, node: exp.Expr) -> Typed:
    """The call's value, in a slot that is filled once all rows of the level exist."""
    if not x.may_window or node.args.get("spec") is not None or node.args.get("alias") is not None:
        raise NotLocal("this window")
    call = call_of(node.this)
    if call is None or call.distinct or call.order:
        raise NotLocal("this window function")
    x.may_window = False  # no window within another
    try:
        return _compiled(x, call, node)
    finally:
        x.may_window = True


def _compiled(x: Expressions, call: FunctionCall, node: exp.Expr) -> Typed:
    partition = x.all(node.args.get("partition_by") or [])
    order = node.args.get("order")
    keys = compile_keys(x, [] if order is None else order.expressions)
    slot = x.scope.slot()
    if call.name in _RANKS and not call.args:
        made = Typed(INT8, lambda e, rt: e[slot], all_refs(partition) | {(0, slot)})
        x.windows.append((slot, _ranks(call.name, partition, keys)))
        return made
    if not is_aggregate(call.name) or keys:
        raise NotLocal("this window function")
    aggregates = Aggregates(slot)
    found = aggregates.add(x, call, None)
    x.aggregates = None
    x.windows.append((slot, _totals(aggregates, partition)))
    return found


def _partitions(envs: list[Env], partition: list[Typed], rt: Runtime) -> list[list[Env]]:
    groups: dict[Any, list[Env]] = {}
    for e in envs:
        groups.setdefault(tuple(p.run(e, rt) for p in partition), []).append(e)
    return list(groups.values())


def _ranks(
    name: str, partition: list[Typed], keys: list[LocalSortKey]
) -> Callable[[list[Env], Runtime], list[Any]]:
    def values(envs: list[Env], rt: Runtime) -> list[Any]:
        found: dict[int, int] = {}
        for members in _partitions(envs, partition, rt):
            last: Any = None
            rank = dense = 0
            for n, e in enumerate(sort_rows(members, keys, rt), 1):
                now = [k.value.run(e, rt) for k in keys]
                if n == 1 or now != last:
                    rank, dense, last = n, dense + 1, now
                found[id(e)] = {"row_number": n, "rank": rank, "dense_rank": dense}[name]
        return [found[id(e)] for e in envs]

    return values


def _totals(aggregates: Aggregates, partition: list[Typed]) -> Callable[[list[Env], Runtime], list[Any]]:
    def values(envs: list[Env], rt: Runtime) -> list[Any]:
        found: dict[int, Any] = {}
        for members in _partitions(envs, partition, rt):
            total = aggregates.values(members, rt)
            found.update((id(e), total) for e in members)
        return [found[id(e)] for e in envs]

    return values
