"""SELECT: FROM, WHERE, groups, windows, the select list, DISTINCT, ORDER BY."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from tidemill.sql.bind.calls import call_of
from tidemill.sql.bind.colname import column_name
from tidemill.sql.local.cast import to_type
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.grouping import Aggregates, group, is_aggregate
from tidemill.sql.local.logic import all_refs, conjuncts
from tidemill.sql.local.model import (
    NOTHING,
    Ctes,
    Env,
    Level,
    LocalScope,
    LocalVisible,
    NotLocal,
    Refs,
    Row,
    Runtime,
    Typed,
    outward,
)
from tidemill.sql.local.ordering import LocalSortKey, sort_key, sort_rows
from tidemill.sql.local.source import Chain, LocalFrom
from tidemill.sql.local.tail import hashable_row, limits, output_column
from tidemill.types import model


class Select:
    """One SELECT: FROM, WHERE, groups, windows, the select list, DISTINCT, ORDER BY, LIMIT, in this order."""

    def __init__(self, ctx: LocalContext, query: exp.Select, parent: LocalScope | None, ctes: Ctes) -> None:
        for clause in ("windows", "qualify", "locks", "into", "laterals", "sample"):
            if query.args.get(clause):
                raise NotLocal(clause)
        self.ctx, self.query, self.parent, self.ctes = ctx, query, parent, ctes
        self.scope = LocalScope(parent)
        self.chain: Chain | None = None
        clause = query.args.get("from_")
        if clause is not None:
            made = LocalFrom(ctx, self.scope, ctes)
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
        self.order: list[tuple[int | None, LocalSortKey]] = []

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
        cut = limits(self.ctx, self.query, self.parent, self.ctes)
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
            self.names.append(column_name(node))
            self.values.append(self.x.compile(inner))

    def _stars(self, node: exp.Expr) -> list[LocalVisible]:
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
            at = output_column(item.this, self.names)
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
        # The grouping expressions as written; a number or a name refers to the select list.
        texts: set[str] = set()
        listed = [] if any(e.is_star for e in self.query.expressions) else self.query.expressions
        if group_by is not None:
            if any(group_by.args.get(k) for k in ("grouping_sets", "cube", "rollup", "totals", "all")):
                raise NotLocal("grouping sets")
            for node in group_by.expressions:
                at = output_column(node, self.names) if not isinstance(node, exp.Column) else None
                if at is None and isinstance(node, exp.Column) and self.scope.find([], node.name) is None:
                    at = None if node.table else output_column(node, self.names)
                self.keys.append(self.values[at] if at is not None else self.x.compile(node))
                texts.add((listed[at].unalias() if at is not None and at < len(listed) else node).sql())
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
        for node in nodes:
            self._check_grouped(node, columns, whole, texts)

    def _check_grouped(self, node: exp.Expr, columns: set[Any], whole: set[int], texts: set[str]) -> None:
        """Raises for a column that is neither grouped nor in an aggregate: the binder reports the error."""

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
            nodes = list(on.expressions if isinstance(on, exp.Tuple) else [on])
            keys = [self._named(n) for n in nodes]
            self._check_initial(nodes)

            def first(pairs: list[tuple[Env, Row]], rt: Runtime) -> list[tuple[Env, Row]]:
                found: dict[Any, tuple[Env, Row]] = {}
                for e, row in pairs:
                    found.setdefault(hashable_row(tuple(k.run(e, rt) for k in keys)), (e, row))
                return list(found.values())

            return first
        if any(at is None for at, _ in self.order):
            raise NotLocal("DISTINCT ordered by something else")

        def once(pairs: list[tuple[Env, Row]], rt: Runtime) -> list[tuple[Env, Row]]:
            return list({hashable_row(row): (e, row) for e, row in reversed(pairs)}.values())[::-1]

        return once

    def _check_initial(self, nodes: list[exp.Expr]) -> None:
        """DISTINCT ON takes the first of each in the order given, so its values come first in that order."""
        order = self.query.args.get("order")
        first = [o.this for o in order.expressions][: len(nodes)] if order is not None else []
        meant = [_meant(n, self.names) for n in first]
        if len(set(meant)) < len(meant) or not set(meant) <= {_meant(n, self.names) for n in nodes}:
            raise NotLocal("DISTINCT ON in another order")

    def _named(self, node: exp.Expr) -> Typed:
        at = output_column(node, self.names)
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


def _meant(node: exp.Expr, names: list[str]) -> int | str:
    at = output_column(node, names)
    return node.sql() if at is None else at
