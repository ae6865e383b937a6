"""Queries: SELECT, VALUES, set operations, WITH (recursive too), DISTINCT, ORDER BY and LIMIT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.bind.colname import UNNAMED, column_name
from tidemill.sql.local.cast import common, explicit, to_type, unify
from tidemill.sql.local.context import Context
from tidemill.sql.local.expr import Expressions, all_refs, conjuncts
from tidemill.sql.local.grouping import Aggregates, group
from tidemill.sql.local.kinds import Type
from tidemill.sql.local.model import (
    NOTHING,
    Ctes,
    Env,
    Level,
    NotLocal,
    Refs,
    Row,
    Runtime,
    Scope,
    Typed,
    Visible,
    outward,
)
from tidemill.sql.local.ordering import SortKey, sort_by, sort_key, sort_rows
from tidemill.sql.local.source import Chain, From
from tidemill.types import model
from tidemill.types.model import INT8, Kind, SqlType

# Rounds of a recursive query: a chain of names or of parents is never this long.
MAX_ROUNDS = 10_000
# What depends on the round of a recursion is not worked out once. The mark names no row: it lies outside all
# levels.
_MARK: Refs = frozenset({(1 << 20, -1)})


def compile_level(ctx: Context, query: exp.Expr, parent: Scope | None, ctes: Ctes) -> Level:
    """One query; `parent` is the level whose columns it may name."""
    with_ = query.args.get("with_")
    if with_ is not None:
        ctes = _with(ctx, with_, parent, ctes)
    if isinstance(query, exp.Select):
        return _select(ctx, query, parent, ctes)
    if isinstance(query, exp.SetOperation):
        return _tail(ctx, query, _set_operation(ctx, query, parent, ctes), parent, ctes)
    if isinstance(query, exp.Values):
        return _tail(ctx, query, _values(ctx, query, parent, ctes), parent, ctes)
    if isinstance(query, exp.Subquery):
        return _tail(ctx, query, compile_level(ctx, query.this, parent, ctes), parent, ctes)
    if isinstance(query, exp.Table):
        whole = exp.Select(expressions=[exp.Star()], from_=exp.From(this=query.copy()))
        return _select(ctx, whole, parent, ctes)
    raise NotLocal(f"{type(query).__name__} as a query")


# --- WITH


def _with(ctx: Context, with_: exp.With, parent: Scope | None, ctes: Ctes) -> Ctes:
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
    ctx: Context, query: exp.Expr, name: str, names: list[str], parent: Scope | None, ctes: Ctes
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
        round_ = _fresh(start.rows(e, rt), seen, distinct)
        outer = rt.cache.get(key)
        for _ in range(MAX_ROUNDS):
            if not round_:
                rt.cache[key] = outer
                return found
            found += round_
            rt.cache[key] = round_
            made = [tuple(c(v, rt) for c, v in zip(converts, row, strict=True)) for row in step.rows(e, rt)]
            rt.spend(len(made))
            round_ = _fresh(made, seen, distinct)
        raise LimitExceeded(f"a recursive query over system relations takes more than {MAX_ROUNDS} rounds")

    refs: Refs = frozenset(r for r in start.refs | step.refs if r[1] >= 0)
    return Level(shown, start.types, rows, refs)


def _fresh(rows: Sequence[Row], seen: set[Any], distinct: bool) -> list[Row]:
    if not distinct:
        return list(rows)
    made: list[Row] = []
    for row in rows:
        key = _hashable(row)
        if key not in seen:
            seen.add(key)
            made.append(row)
    return made


def _hashable(row: Row) -> Any:
    return tuple(tuple(v) if isinstance(v, list) else v for v in row)


def _column_as(ctx: Context, source: Type, target: Type) -> Callable[[Any, Runtime], Any]:
    made = explicit(ctx, Typed(source, lambda e, rt: e[0]), target).run
    return lambda v, rt: made([v], rt)


# --- set operations and VALUES


def _set_operation(ctx: Context, query: exp.SetOperation, parent: Scope | None, ctes: Ctes) -> Level:
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
            return _fresh([*left, *right], set(), distinct)
        if not distinct:
            raise TidemillError("INTERSECT ALL and EXCEPT ALL are not supported here", sqlstate="0A000")
        keys = {_hashable(r) for r in right}
        keep = kind is exp.Intersect
        return _fresh([r for r in left if (_hashable(r) in keys) is keep], set(), True)

    if kind is not exp.Union and not distinct:
        raise NotLocal("ALL")
    return Level(sides[0].names, types, rows, sides[0].refs | sides[1].refs)


def _as(ctx: Context, side: Level, types: list[Type]) -> Callable[[Env | None, Runtime], list[Row]]:
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


def _values(ctx: Context, query: exp.Values, parent: Scope | None, ctes: Ctes) -> Level:
    x = Expressions(ctx, Scope(parent), ctes)
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


def _tail(ctx: Context, query: exp.Expr, level: Level, parent: Scope | None, ctes: Ctes) -> Level:
    """ORDER BY and LIMIT of something that is no SELECT: only of its output columns."""
    order = query.args.get("order")
    keys: list[tuple[int, SortKey]] = []
    x = Expressions(ctx, Scope(parent), ctes)
    for item in order.expressions if order is not None else ():
        at = _output(item.this, level.names)
        if at is None:
            raise NotLocal("ORDER BY of an expression over a set operation")
        keys.append((at, sort_key(item, Typed(level.types[at], lambda e, rt: None), x)))
    cut = _limits(ctx, query, parent, ctes)
    if not keys and cut is None:
        return level

    def rows(e: Env | None, rt: Runtime) -> list[Row]:
        found = level.rows(e, rt)
        for at, key in reversed(keys):
            found = sort_by(found, [r[at] for r in found], key)
        return found if cut is None else cut(found, e, rt)

    return replace(level, rows=rows, outputs=())


def _output(node: exp.Expr, names: Sequence[str]) -> int | None:
    """The output column that ORDER BY or GROUP BY means by a number or a name."""
    if isinstance(node, exp.Literal):
        if node.is_string or not str(node.this).isdigit():
            raise NotLocal("a constant in ORDER BY")
        at = int(str(node.this)) - 1
        if not 0 <= at < len(names):
            raise NotLocal("no such column")
        return at
    if isinstance(node, exp.Column) and not node.table and names.count(node.name) == 1:
        return list(names).index(node.name)
    return None


def _limits(
    ctx: Context, query: exp.Expr, parent: Scope | None, ctes: Ctes
) -> Callable[[list[Row], Env | None, Runtime], list[Row]] | None:
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return None
    x = Expressions(ctx, Scope(parent), ctes)
    if isinstance(limit, exp.Fetch):
        if limit.args.get("limit_options") is not None or limit.args.get("count") is None:
            raise NotLocal("this FETCH")
        count: exp.Expr | None = limit.args["count"]
    else:
        count = None if limit is None else limit.expression
    most = None if count is None else to_type(ctx, x.compile(count), INT8).run
    skip = None if offset is None else to_type(ctx, x.compile(offset.expression), INT8).run

    def cut(rows: list[Row], e: Env | None, rt: Runtime) -> list[Row]:
        start = 0 if skip is None else skip([e], rt) or 0
        n = None if most is None else most([e], rt)
        if n is not None and n < 0:
            raise TidemillError("LIMIT must not be negative", sqlstate="2201W")
        if start < 0:
            raise TidemillError("OFFSET must not be negative", sqlstate="2201X")
        return rows[start:] if n is None else rows[start : start + n]

    return cut


# --- SELECT


def _select(ctx: Context, query: exp.Select, parent: Scope | None, ctes: Ctes) -> Level:
    return _Select(ctx, query, parent, ctes).level()


class _Select:
    """One SELECT: FROM, WHERE, groups, windows, the select list, DISTINCT, ORDER BY, LIMIT, in this order."""

    def __init__(self, ctx: Context, query: exp.Select, parent: Scope | None, ctes: Ctes) -> None:
        for clause in ("windows", "qualify", "locks", "into", "laterals", "sample"):
            if query.args.get(clause):
                raise NotLocal(clause)
        self.ctx, self.query, self.parent, self.ctes = ctx, query, parent, ctes
        self.scope = Scope(parent)
        self.chain: Chain | None = None
        clause = query.args.get("from_")
        if clause is not None:
            made = From(ctx, self.scope, ctes)
            self.chain, self.scope.columns = made.compile(clause.this, query.args.get("joins") or ())
        elif query.args.get("joins"):
            raise NotLocal("joins without FROM")
        self.x = Expressions(ctx, self.scope, ctes)
        self.where = self._where()
        self.names: list[str] = []
        self.values: list[Typed] = []
        self.aggregates = Aggregates(self.scope.slot())
        self.grouped = False
        self.keys: list[Typed] = []
        self.order: list[tuple[int | None, SortKey]] = []

    def _where(self) -> list[Typed]:
        where = self.query.args.get("where")
        conditions = [] if where is None else [self.x.boolean(c) for c in conjuncts(where.this)]
        return conditions if self.chain is None else self.chain.push(conditions)

    def level(self) -> Level:
        x = self.x
        x.aggregates, x.may_series, x.may_window = self.aggregates, True, True
        self._list()
        x.may_series = False
        having = self.query.args.get("having")
        test = None if having is None else x.boolean(having.this)
        self._order()
        x.may_window = False
        group_by = self.query.args.get("group")
        self.grouped = bool(self.aggregates.calls) or group_by is not None or test is not None
        if self.grouped:
            self._groups(group_by, test)
        distinct = self._distinct()
        cut = _limits(self.ctx, self.query, self.parent, self.ctes)
        types = [v.type for v in self.values]
        plain = not self.grouped and not x.series
        return Level(
            self.names,
            types,
            self._runner(test, distinct, cut),
            self._refs(test),
            self.values if plain else (),
        )

    def _list(self) -> None:
        for node in self.query.expressions:
            star = node if isinstance(node, exp.Star) else node.this if isinstance(node, exp.Column) else None
            if isinstance(star, exp.Star):
                for visible in self._stars(node):
                    self.names.append(visible.name)
                    self.values.append(visible.value)
                continue
            inner = node.this if isinstance(node, exp.Alias) else node
            self.names.append(_label(node))
            self.values.append(self.x.compile(inner))

    def _stars(self, node: exp.Expr) -> list[Visible]:
        if isinstance(node, exp.Star) or not node.args.get("table"):
            if isinstance(node, exp.Star) and any(node.args.get(k) for k in ("except_", "replace", "rename")):
                raise NotLocal("* with more")
            return [v for v in self.scope.columns if not v.hidden]
        item = self.scope.item(node.args["table"].name)
        if item is None or node.args.get("db"):
            raise NotLocal("this .*")
        return [v for v in item.columns if not v.hidden]

    def _order(self) -> None:
        order = self.query.args.get("order")
        for item in order.expressions if order is not None else ():
            at = _output(item.this, self.names)
            value = self.x.compile(item.this) if at is None else self.values[at]
            if at is None and value.column is not None:
                at = next((i for i, v in enumerate(self.values) if v.column == value.column), None)
            if value.untyped:
                value = to_type(self.ctx, value, model.TEXT)
            self.order.append((at, sort_key(item, value, self.x)))

    def _groups(self, group_by: exp.Group | None, test: Typed | None) -> None:
        if self.x.series:
            raise NotLocal("set-returning calls beside groups")
        self.x.aggregates = None
        if group_by is not None:
            if any(group_by.args.get(k) for k in ("grouping_sets", "cube", "rollup", "totals", "all")):
                raise NotLocal("grouping sets")
            for node in group_by.expressions:
                at = _output(node, self.names) if not isinstance(node, exp.Column) else None
                if at is None and isinstance(node, exp.Column) and self.scope.find([], node.name) is None:
                    at = None if node.table else _output(node, self.names)
                self.keys.append(self.values[at] if at is not None else self.x.compile(node))
        columns = {k.column for k in self.keys if k.column is not None}
        # Of a relation that is grouped by its OID, all columns are known.
        whole = {
            i.slot
            for i in self.scope.items
            for v in i.columns
            if v.name == "oid" and v.value.column in columns
        }
        nodes = [*self.query.expressions, *([] if test is None else [self.query.args["having"]])]
        order = self.query.args.get("order")
        nodes += [o.this for o in order.expressions] if order is not None else []
        texts = {k.sql() for k in group_by.expressions} if group_by is not None else set[str]()
        for node in nodes:
            self._check_grouped(node, columns, whole, texts)

    def _check_grouped(self, node: exp.Expr, columns: set[Any], whole: set[int], texts: set[str]) -> None:
        """Refuses a column that is neither grouped nor within an aggregate: the binder has the error."""
        from tidemill.sql.bind.calls import call_of
        from tidemill.sql.local.grouping import is_aggregate

        if node.sql() in texts or isinstance(node, exp.Query):
            return
        call = call_of(node) if isinstance(node, exp.Func) else None
        if call is not None and is_aggregate(call.name):
            return
        if isinstance(node, exp.Star):
            raise NotLocal("* beside groups")
        if isinstance(node, exp.Column):
            if not node.table and node.name in self.names and self.scope.find([], node.name) is None:
                return
            found = self.x.compile(node)
            own = found.column is not None and found.column[0] == 0
            if (
                own
                and found.column not in columns
                and found.column is not None
                and found.column[1] not in whole
            ):
                raise NotLocal(f"{node.name} is not grouped")
            return
        for child in node.iter_expressions():
            self._check_grouped(child, columns, whole, texts)

    def _distinct(self) -> Callable[[list[tuple[Env, Row]], Runtime], list[tuple[Env, Row]]] | None:
        distinct = self.query.args.get("distinct")
        if distinct is None:
            return None
        on = distinct.args.get("on")
        if on is not None:
            keys = [self._named(n) for n in (on.expressions if isinstance(on, exp.Tuple) else [on])]

            def first(pairs: list[tuple[Env, Row]], rt: Runtime) -> list[tuple[Env, Row]]:
                found: dict[Any, tuple[Env, Row]] = {}
                for e, row in pairs:
                    found.setdefault(_hashable(tuple(k.run(e, rt) for k in keys)), (e, row))
                return list(found.values())

            return first
        if any(at is None for at, _ in self.order):
            raise NotLocal("DISTINCT ordered by something else")

        def once(pairs: list[tuple[Env, Row]], rt: Runtime) -> list[tuple[Env, Row]]:
            return list({_hashable(row): (e, row) for e, row in reversed(pairs)}.values())[::-1]

        return once

    def _named(self, node: exp.Expr) -> Typed:
        at = _output(node, self.names)
        return self.x.compile(node) if at is None else self.values[at]

    def _refs(self, test: Typed | None) -> Refs:
        parts = [*self.values, *self.where, *self.keys, *(k.value for _, k in self.order)]
        parts += [] if test is None else [test]
        parts += [t for _, t in self.x.series]
        for call in self.aggregates.calls:
            parts += [
                *call.args,
                *(k.value for k in call.keys),
                *([] if call.where is None else [call.where]),
            ]
        refs = all_refs(parts) if parts else NOTHING
        if self.chain is not None:
            for step in self.chain.steps:
                refs |= all_refs([*step.on, *step.after]) if step.on or step.after else NOTHING
                refs |= step.node.refs
        return outward(refs)

    def _runner(
        self,
        test: Typed | None,
        distinct: Callable[[list[tuple[Env, Row]], Runtime], list[tuple[Env, Row]]] | None,
        cut: Callable[[list[Row], Env | None, Runtime], list[Row]] | None,
    ) -> Callable[[Env | None, Runtime], list[Row]]:
        runs = [v.run for v in self.values]
        sort_keys = [k for _, k in self.order]
        where = [w.run for w in self.where]
        on = (self.query.args.get("distinct") or exp.Distinct()).args.get("on") is not None

        def rows(outer: Env | None, rt: Runtime) -> list[Row]:
            base = self.scope.env(outer)
            envs = [base] if self.chain is None else self.chain.run(base, rt)
            for condition in where:
                envs = [e for e in envs if condition(e, rt)]
            if self.grouped:
                empty = base.copy()
                for slot, nulls in ({} if self.chain is None else self.chain.nulls()).items():
                    empty[slot] = nulls
                envs = group(envs, self.keys, self.aggregates, empty, rt)
                if test is not None:
                    envs = [e for e in envs if test.run(e, rt)]
            for slot, values in self.x.windows:
                for e, value in zip(envs, values(envs, rt), strict=True):
                    e[slot] = value
            if self.x.series:
                envs = self._expanded(envs, rt)
            if on and sort_keys:
                envs = sort_rows(envs, sort_keys, rt)
            pairs = [(e, tuple(run(e, rt) for run in runs)) for e in envs]
            rt.spend(len(pairs))
            if distinct is not None:
                pairs = distinct(pairs, rt)
            if sort_keys and not on:
                kept = {id(e): row for e, row in pairs}
                ordered = sort_rows([e for e, _ in pairs], sort_keys, rt)
                found = [kept[id(e)] for e in ordered]
            else:
                found = [row for _, row in pairs]
            return found if cut is None else cut(found, outer, rt)

        return rows

    def _expanded(self, envs: list[Env], rt: Runtime) -> list[Env]:
        """Set-returning calls of the select list, side by side; the shorter ones end in NULLs."""
        found: list[Env] = []
        for e in envs:
            lists = [(slot, made.run(e, rt) or []) for slot, made in self.x.series]
            for n in range(max(len(values) for _, values in lists)):
                new = e.copy()
                for slot, values in lists:
                    new[slot] = values[n] if n < len(values) else None
                found.append(new)
        rt.spend(len(found))
        return found


def _label(node: exp.Expr) -> str:
    try:
        return column_name(node)
    except TidemillError:
        inner = node.this if isinstance(node, exp.Cast) else None
        named = UNNAMED if inner is None else _label(inner)
        return named if named != UNNAMED else _cast_name(node)


def _cast_name(node: exp.Expr) -> str:
    from tidemill.sql.local.kinds import Reg, local_type

    t = local_type(node.args["to"]) if isinstance(node, exp.Cast) else None
    if isinstance(t, Reg):
        return t.value
    return UNNAMED if t is None else _element(t).kind.value


def _element(t: SqlType) -> SqlType:
    return t.element if t.kind is Kind.ARRAY and t.element is not None else t
