"""Aggregates: the aggregate calls of a query, and their values for each group of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlglot import exp

from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.local.cast import to_type, writer
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.jsons import json_operand, json_text
from tidemill.sql.local.kinds import Category, Reg, Type, category, kind
from tidemill.sql.local.logic import all_refs
from tidemill.sql.local.model import Env, NotLocal, Refs, Runtime, Typed
from tidemill.sql.local.ordering import LocalSortKey, compile_keys, sort_rows
from tidemill.types import model
from tidemill.types.model import BOOL, INT8, NUMERIC, TEXT, Kind

Fold = Callable[[list[Any]], Any]


def _sum(values: list[Any]) -> Any:
    return sum(values) if values else None


_FOLDS: dict[str, Fold] = {
    "count": len,
    "min": lambda v: min(v, default=None),
    "max": lambda v: max(v, default=None),
    "bool_and": lambda v: all(v) if v else None,
    "every": lambda v: all(v) if v else None,
    "bool_or": lambda v: any(v) if v else None,
    "sum": _sum,
}
_NAMES = frozenset({*_FOLDS, "array_agg", "string_agg", "json_agg", "jsonb_agg"})


def is_aggregate(name: str) -> bool:
    return name in _NAMES


@dataclass(slots=True)
class _Call:
    """One aggregate. `fold` gets the values that count: all that are not NULL, or all for array_agg."""

    fold: Fold
    args: list[Typed]
    keys: list[LocalSortKey]
    where: Typed | None
    distinct: bool
    nulls: bool

    def value(self, envs: Sequence[Env], rt: Runtime) -> Any:
        if self.where is not None:
            where = self.where.run
            envs = [e for e in envs if where(e, rt)]
        if self.keys:
            envs = sort_rows(list(envs), self.keys, rt)
        if not self.args:
            return self.fold(list(envs))
        run = self.args[0].run
        values = [run(e, rt) for e in envs]
        if not self.nulls:
            values = [v for v in values if v is not None]
        if self.distinct:
            values = list(dict.fromkeys(values))
            if not self.keys:
                values.sort(key=lambda v: (v is None, v))
        return self.fold(values)


@dataclass(slots=True)
class Aggregates:
    """The aggregates of one query level; their values are a row in their own slot."""

    slot: int
    calls: list[_Call] = field(default_factory=list)

    def add(self, x: Expressions, call: FunctionCall, where: exp.Expr | None) -> Typed:
        # Aggregates do not nest, and cannot contain window calls or set-returning calls.
        x.aggregates, before = None, (x.may_window, x.may_series)
        x.may_window = x.may_series = False
        try:
            args = x.all(call.args)
            keys = compile_keys(x, call.order)
            condition = None if where is None else x.boolean(where)
        finally:
            x.aggregates, (x.may_window, x.may_series) = self, before
        if call.distinct and any(o.this.sql() != call.args[0].sql() for o in call.order):
            raise NotLocal("DISTINCT values in another order")
        t, fold, nulls = _meaning(x, call, args)
        if call.distinct and args and category(args[0].type) is Category.ARRAY:
            raise NotLocal("DISTINCT over arrays")
        at, slot = len(self.calls), self.slot
        self.calls.append(_Call(fold, args[:1], keys, condition, call.distinct, nulls))
        outside: Refs = frozenset(r for r in all_refs(args) if r[0] > 0)
        return Typed(t, lambda e, rt: e[slot][at], outside | {(0, slot)})

    def values(self, envs: Sequence[Env], rt: Runtime) -> tuple[Any, ...]:
        return tuple(c.value(envs, rt) for c in self.calls)


def _meaning(x: Expressions, call: FunctionCall, args: list[Typed]) -> tuple[Type, Fold, bool]:
    """The result's type, the function that computes it, and whether its values include NULLs."""
    name = call.name
    if name == "count" and call.star and not args:
        return INT8, len, True
    if len(args) != (2 if name == "string_agg" else 1):
        raise NotLocal(f"this form of {name}()")
    if args[0].untyped or args[0].type == model.UNKNOWN:
        args[0] = to_type(x.ctx, args[0], TEXT)
    t = args[0].type
    if name == "count":
        return INT8, len, False
    if name in ("bool_and", "bool_or", "every"):
        args[0] = to_type(x.ctx, args[0], BOOL)
        return BOOL, _FOLDS[name], False
    if name in ("min", "max"):
        if category(t) not in (Category.NUMBER, Category.STRING) and kind(t) is not Kind.TIMESTAMPTZ:
            raise NotLocal(f"{name}() of {t}")
        return (TEXT if kind(t) is Kind.NAME else t), _FOLDS[name], False
    if name == "sum":
        if kind(t) in (Kind.INT2, Kind.INT4):
            return INT8, _sum, False
        if kind(t) is Kind.INT8:
            return NUMERIC, lambda v: Decimal(sum(v)) if v else None, False
        raise NotLocal(f"sum() of {t}")
    if name == "string_agg":
        return _string_agg(x, args)
    if isinstance(t, Reg) or t.kind is Kind.ARRAY:
        raise NotLocal(f"{name}() of {t}")
    if name == "array_agg":
        return model.array(t), lambda v: v or None, True
    args[0] = json_operand(args[0])
    return model.JSONB, lambda v: json_text(v) if v else None, True


def _string_agg(x: Expressions, args: list[Typed]) -> tuple[Type, Fold, bool]:
    separator = to_type(x.ctx, args[1], TEXT)
    if separator.refs or not args[1].untyped:
        raise NotLocal("string_agg() with a separator that is no constant")
    args[0] = to_type(x.ctx, args[0], TEXT)
    if writer(args[0].type) is not None:
        raise NotLocal("string_agg() of no text")
    joint = args[1].literal or ""
    return TEXT, lambda v: joint.join(v) if v else None, False


def group(
    envs: Sequence[Env], keys: Sequence[Typed], aggregates: Aggregates, empty: Env | None, rt: Runtime
) -> list[Env]:
    """One environment per group: one of its rows, with the values of the aggregates. Without keys there is
    one group, of `empty` if there are no rows."""
    groups: dict[tuple[Any, ...], list[Env]] = {}
    for e in envs:
        groups.setdefault(tuple(_key(k.run(e, rt)) for k in keys), []).append(e)
    if not keys and not groups:
        groups[()] = []
    made: list[Env] = []
    for members in groups.values():
        e = (members[0] if members else empty or []).copy()
        e[aggregates.slot] = aggregates.values(members, rt)
        made.append(e)
    return made


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
