"""Queries: SELECT, VALUES, set operations, WITH (recursive too), DISTINCT, ORDER BY and LIMIT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlglot import exp

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.local.cast import common, explicit, to_type, unify
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.kinds import Type
from tidemill.sql.local.logic import all_refs
from tidemill.sql.local.model import (
    Ctes,
    Env,
    Level,
    LocalScope,
    NotLocal,
    Refs,
    Row,
    Runtime,
    Typed,
    outward,
)
from tidemill.sql.local.ordering import LocalSortKey, sort_by, sort_key
from tidemill.sql.local.select import Select
from tidemill.sql.local.tail import fresh, hashable_row, limits, output_column
from tidemill.types import model

# The limit of rounds of a recursive query: chains of names or parents are shorter.
MAX_ROUNDS = 10_000
# Values that depend on the round of a recursion are not cached. The mark names no row: it lies outside all
# levels.
_MARK: Refs = frozenset({(1 << 20, -1)})


def compile_level(ctx: LocalContext, query: exp.Expr, parent: LocalScope | None, ctes: Ctes) -> Level:
    """One query; `parent` is the level whose columns it may name."""
    with_ = query.args.get("with_")
    if with_ is not None:
        ctes = _with(ctx, with_, parent, ctes)
    if isinstance(query, exp.Select):
        return Select(ctx, query, parent, ctes).level()
    if isinstance(query, exp.SetOperation):
        return _tail(ctx, query, _set_operation(ctx, query, parent, ctes), parent, ctes)
    if isinstance(query, exp.Values):
        return _tail(ctx, query, _values(ctx, query, parent, ctes), parent, ctes)
    if isinstance(query, exp.Subquery):
        return _tail(ctx, query, compile_level(ctx, query.this, parent, ctes), parent, ctes)
    if isinstance(query, exp.Table):
        whole = exp.Select(expressions=[exp.Star()], from_=exp.From(this=query.copy()))
        return Select(ctx, whole, parent, ctes).level()
    raise NotLocal(f"{type(query).__name__} as a query")


# --- WITH


def _with(ctx: LocalContext, with_: exp.With, parent: LocalScope | None, ctes: Ctes) -> Ctes:
    found = dict(ctes)
    if len({item.alias for item in with_.expressions}) != len(with_.expressions):
        raise NotLocal("one name twice")
    for item in with_.expressions:
        names = [c.name for c in (item.args["alias"].args.get("columns") or ())]
        if with_.args.get("recursive") and _names_itself(item.this, item.alias):
            level = _recursive(ctx, item.this, item.alias, names, parent, found)
        else:
            level = compile_level(ctx, item.this, parent, found)
        if len(names) > len(level.names):
            raise NotLocal("more names than columns")
        found[item.alias] = replace(level, names=[*names, *level.names[len(names) :]])
    return found


def _names_itself(query: exp.Expr, name: str) -> bool:
    return any(t.name == name and not t.args.get("db") for t in query.find_all(exp.Table))


def _recursive(
    ctx: LocalContext, query: exp.Expr, name: str, names: list[str], parent: LocalScope | None, ctes: Ctes
) -> Level:
    """start UNION [ALL] step, where `step` reads what the round before gave."""
    if not isinstance(query, exp.Union) or query.args.get("order") or query.args.get("limit"):
        raise NotLocal("this recursion")
    start = compile_level(ctx, query.this, parent, ctes).settled()
    shown = [*names, *start.names[len(names) :]]
    key = object()
    before = Level(shown, start.types, lambda e, rt: rt.cache[key], _MARK)
    step = compile_level(ctx, query.expression, parent, {**ctes, name: before})
    converts = [_column_as(ctx, s, t) for s, t in zip(step.types, start.types, strict=True)]
    distinct = bool(query.args.get("distinct"))

    def rows(e: Env | None, rt: Runtime) -> list[Row]:
        found: list[Row] = []
        seen: set[Any] = set()
        round_ = fresh(start.rows(e, rt), seen, distinct)
        outer = rt.cache.get(key)
        for _ in range(MAX_ROUNDS):
            if not round_:
                rt.cache[key] = outer
                return found
            found += round_
            rt.cache[key] = round_
            made = [tuple(c(v, rt) for c, v in zip(converts, row, strict=True)) for row in step.rows(e, rt)]
            rt.spend(len(made))
            round_ = fresh(made, seen, distinct)
        raise LimitExceeded(f"a recursive query over system relations takes more than {MAX_ROUNDS} rounds")

    refs: Refs = frozenset(r for r in start.refs | step.refs if r[1] >= 0)
    return Level(shown, start.types, rows, refs)


def _column_as(ctx: LocalContext, source: Type, target: Type) -> Callable[[Any, Runtime], Any]:
    made = explicit(ctx, Typed(source, lambda e, rt: e[0]), target).run
    return lambda v, rt: made([v], rt)


# --- set operations and VALUES


def _set_operation(
    ctx: LocalContext, query: exp.SetOperation, parent: LocalScope | None, ctes: Ctes
) -> Level:
    sides = [compile_level(ctx, q, parent, ctes) for q in (query.this, query.expression)]
    if len(sides[0].types) != len(sides[1].types):
        raise NotLocal("sides of different widths")
    types: list[Type] = []
    for i in range(len(sides[0].types)):
        known = [s.types[i] for s in sides if not (i < len(s.outputs) and s.outputs[i].untyped)]
        types.append(model.TEXT if not known else known[0] if len(known) == 1 else common(*known))
    both = [_as(ctx, side, types) for side in sides]
    distinct = bool(query.args.get("distinct"))
    kind = type(query)

    def rows(e: Env | None, rt: Runtime) -> list[Row]:
        left, right = (fn(e, rt) for fn in both)
        if kind is exp.Union:
            return fresh([*left, *right], set(), distinct)
        if not distinct:
            raise TidemillError("INTERSECT ALL and EXCEPT ALL are not supported here", sqlstate="0A000")
        keys = {hashable_row(r) for r in right}
        keep = kind is exp.Intersect
        return fresh([r for r in left if (hashable_row(r) in keys) is keep], set(), True)

    if kind is not exp.Union and not distinct:
        raise NotLocal("ALL")
    return Level(sides[0].names, types, rows, sides[0].refs | sides[1].refs)


def _as(ctx: LocalContext, side: Level, types: list[Type]) -> Callable[[Env | None, Runtime], list[Row]]:
    """A side's rows in the types of the whole."""
    if side.types == types:
        return side.rows
    converts: list[Callable[[Any, Runtime], Any]] = []
    for i, (s, t) in enumerate(zip(side.types, types, strict=True)):
        if i < len(side.outputs) and side.outputs[i].untyped:
            fixed = to_type(ctx, side.outputs[i], t).run
            converts.append(lambda v, rt, fixed=fixed: fixed([], rt))
        else:
            converts.append(_column_as(ctx, s, t))
    return lambda e, rt: [
        tuple(c(v, rt) for c, v in zip(converts, row, strict=True)) for row in side.rows(e, rt)
    ]


def _values(ctx: LocalContext, query: exp.Values, parent: LocalScope | None, ctes: Ctes) -> Level:
    x = Expressions(ctx, LocalScope(parent), ctes)
    rows = [x.all(r.expressions if isinstance(r, exp.Tuple) else [r.this]) for r in query.expressions]
    if len({len(r) for r in rows}) != 1:
        raise NotLocal("rows of different widths")
    columns = [unify(ctx, column) for column in zip(*rows, strict=True)]
    made = list(zip(*(values for values, _ in columns), strict=True))
    refs = outward(all_refs([v for row in made for v in row]))
    return Level(
        [f"column{i + 1}" for i in range(len(columns))],
        [t for _, t in columns],
        lambda e, rt: [tuple(v.run([e], rt) for v in row) for row in made],
        refs,
    )


def _tail(ctx: LocalContext, query: exp.Expr, level: Level, parent: LocalScope | None, ctes: Ctes) -> Level:
    """ORDER BY and LIMIT of a query that is not a SELECT: only by its output columns."""
    order = query.args.get("order")
    keys: list[tuple[int, LocalSortKey]] = []
    x = Expressions(ctx, LocalScope(parent), ctes)
    for item in order.expressions if order is not None else ():
        at = output_column(item.this, level.names)
        if at is None:
            raise NotLocal("ORDER BY of an expression over a set operation")
        keys.append((at, sort_key(item, Typed(level.types[at], lambda e, rt: None), x)))
    cut = limits(ctx, query, parent, ctes)
    if not keys and cut is None:
        return level

    def rows(e: Env | None, rt: Runtime) -> list[Row]:
        found = level.rows(e, rt)
        for at, key in reversed(keys):
            found = sort_by(found, [r[at] for r in found], key)
        return found if cut is None else cut(found, e, rt)

    return replace(level, rows=rows, outputs=())
