"""FROM: relations, subqueries, functions, and their joins.

A `Chain` joins its items from left to right. It evaluates every condition as soon as all the rows that it
reads are available. An equality between the new item and earlier ones uses a hash table. If the item's rows
do not depend on other items, the table is built once per statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from tidemill.sql.bind.calls import call_of
from tidemill.sql.local import functions
from tidemill.sql.local.cast import comparable
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.kinds import Reg, Type
from tidemill.sql.local.logic import conjuncts
from tidemill.sql.local.model import (
    NOTHING,
    Ctes,
    Env,
    Level,
    LocalItem,
    LocalScope,
    LocalVisible,
    NotLocal,
    Refs,
    Row,
    Runtime,
    Typed,
    slot_column,
)
from tidemill.types.model import INT8, OID, Kind, SqlType

# Views may refer to views; the binder has its own limit.
MAX_VIEW_DEPTH = 64


@dataclass(slots=True)
class FromNode:
    """An input of a join: `parts` returns environments in which its `slots` are set, given an enclosing one.
    `refs` are its dependencies on that one; without any, the parts are computed once.
    """

    slots: list[int]
    parts: Callable[[Env, Runtime], list[Env]]
    refs: Refs
    nulls: dict[int, Row]

    @property
    def free(self) -> bool:
        return not self.refs


@dataclass(slots=True)
class JoinStep:
    """One item of a chain and its join to the items before it. `on` are the join's conditions, `after` the
    conditions of WHERE to evaluate after it.
    """

    kind: str
    node: FromNode
    on: list[Typed] = field(default_factory=list)
    after: list[Typed] = field(default_factory=list)

    def run(self, base: Env, left: list[Env], before: dict[int, Row], rt: Runtime) -> list[Env]:
        """`left` joined with this item. `before` are the NULLs for the items to the left, for a right
        join."""
        keys, rest = self._keys()
        tests = [c.run for c in rest]
        found: list[Env] = []
        seen: set[int] = set()
        wanted = self.kind in ("right", "full")
        for env in left:
            parts = self._candidates(env, keys, rt)
            matched = False
            for part in parts:
                new = self._merged(env, part)
                if all(test(new, rt) for test in tests):
                    matched = True
                    found.append(new)
                    if wanted:
                        seen.add(id(part))
            rt.spend(len(parts) + 1)
            if not matched and self.kind in ("left", "full"):
                new = env.copy()
                for slot, row in self.node.nulls.items():
                    new[slot] = row
                found.append(new)
        if wanted:
            found += self._unmatched(base, before, seen, rt)
        for test in self.after:
            run = test.run
            found = [e for e in found if run(e, rt)]
        return found

    def _keys(self) -> tuple[list[tuple[Typed, Typed]], list[Typed]]:
        """Equalities between this item (first) and the earlier ones, and the other conditions."""
        own = {(0, s) for s in self.node.slots}
        keys: list[tuple[Typed, Typed]] = []
        rest: list[Typed] = []
        for condition in self.on:
            sides = condition.sides
            for a, b in () if sides is None else (sides, sides[::-1]):
                if a.refs and a.refs <= own and not b.refs & own:
                    keys.append((a, b))
                    break
            else:
                rest.append(condition)
        return keys, rest

    def _parts(self, env: Env, rt: Runtime) -> list[Env]:
        node = self.node
        return rt.once((id(self), "parts"), lambda: node.parts(env, rt)) if node.free else node.parts(env, rt)

    def _candidates(self, env: Env, keys: list[tuple[Typed, Typed]], rt: Runtime) -> Sequence[Env]:
        """The parts with matching keys."""
        parts = self._parts(env, rt)
        if not keys:
            return parts

        def index() -> dict[Any, list[Env]]:
            made: dict[Any, list[Env]] = {}
            runs = [a.run for a, _ in keys]
            for part in parts:
                made.setdefault(tuple(run(part, rt) for run in runs), []).append(part)
            return made

        table = rt.once((id(self), "index"), index) if self.node.free else index()
        key = tuple(b.run(env, rt) for _, b in keys)
        return () if None in key else table.get(key, ())

    def _merged(self, env: Env, part: Env) -> Env:
        new = env.copy()
        for slot in self.node.slots:
            new[slot] = part[slot]
        return new

    def _unmatched(self, base: Env, before: dict[int, Row], seen: set[int], rt: Runtime) -> list[Env]:
        found: list[Env] = []
        for part in self._parts(base, rt):
            if id(part) not in seen:
                new = self._merged(base, part)
                for slot, row in before.items():
                    new[slot] = row
                found.append(new)
        return found


@dataclass(slots=True)
class Chain:
    """The joins of a FROM clause, or of parentheses within one."""

    steps: list[JoinStep]

    def slots(self) -> list[int]:
        return [s for step in self.steps for s in step.node.slots]

    def nulls(self) -> dict[int, Row]:
        return {k: v for step in self.steps for k, v in step.node.nulls.items()}

    def run(self, base: Env, rt: Runtime) -> list[Env]:
        envs = [base]
        before: dict[int, Row] = {}
        for step in self.steps:
            envs = step.run(base, envs, before, rt)
            before = before | step.node.nulls
        return envs

    def push(self, conditions: Sequence[Typed]) -> list[Typed]:
        """Gives each condition of WHERE to the first step that can evaluate it; returns the conditions of no
        step.
        """
        if any(s.kind in ("right", "full") for s in self.steps):
            return list(conditions)
        left: list[Typed] = []
        for condition in conditions:
            needed = {slot for depth, slot in condition.refs if depth == 0}
            there: set[int] = set()
            for step in self.steps:
                there |= set(step.node.slots)
                if needed and needed <= there:
                    (step.on if step.kind == "inner" else step.after).append(condition)
                    break
            else:
                left.append(condition)
        return left


class LocalFrom:
    """Compiles a FROM clause into a chain, and its names into the scope."""

    def __init__(self, ctx: LocalContext, scope: LocalScope, ctes: Ctes) -> None:
        self.ctx = ctx
        self.scope = scope
        self.ctes = ctes

    def compile(self, first: exp.Expr, joins: Sequence[exp.Join]) -> tuple[Chain, list[LocalVisible]]:
        node, columns = self._item(first)
        chain = Chain([JoinStep("inner", node)])
        for join in joins:
            columns = self._join(chain, columns, join)
        return chain, columns

    # --- joins

    def _join(self, chain: Chain, left: list[LocalVisible], join: exp.Join) -> list[LocalVisible]:
        side = str(join.args.get("side") or "").lower()
        natural = str(join.args.get("method") or "").upper() == "NATURAL"
        # A LATERAL item sees the items to its left.
        shown, self.scope.columns = self.scope.columns, left
        node, right = self._item(join.this)
        if side in ("right", "full") and not node.free:
            raise NotLocal("a right join with rows that depend on others")
        step = JoinStep(side or "inner", node)
        chain.steps.append(step)
        using = [i.name for i in (join.args.get("using") or ())]
        if natural:
            names = {v.name for v in right if not v.hidden}
            using = [v.name for v in left if v.name in names and not v.hidden]
        columns = [*left, *right]
        if using:
            columns = self._using(step, left, right, using, side)
        elif join.args.get("on") is not None:
            self.scope.columns = columns
            x = Expressions(self.ctx, self.scope, self.ctes)
            step.on += [x.boolean(c) for c in conjuncts(join.args["on"])]
        elif side:
            raise NotLocal("an outer join without a condition")
        self.scope.columns = shown
        return columns

    def _using(
        self, step: JoinStep, left: list[LocalVisible], right: list[LocalVisible], using: list[str], side: str
    ) -> list[LocalVisible]:
        from tidemill.sql.local.operators import binary

        merged: list[LocalVisible] = []
        for name in using:
            pair = [[v for v in columns if v.name == name] for columns in (left, right)]
            if any(len(found) != 1 for found in pair):
                raise NotLocal(f"USING ({name})")
            a, b = pair[0][0].value, pair[1][0].value
            comparable(self.ctx, a, b)
            step.on.append(binary(self.ctx, "=", a, b))
            if side == "full":
                raise NotLocal("a full join with USING")
            merged.append(LocalVisible(name, b if side == "right" else a))
        rest = [v for v in (*left, *right) if v.name not in using]
        return [*merged, *rest]

    # --- items

    def _item(self, node: exp.Expr) -> tuple[FromNode, list[LocalVisible]]:
        if isinstance(node, exp.Table):
            made = self._function(node, node.this) if isinstance(node.this, exp.Func) else self._table(node)
        elif isinstance(node, exp.Lateral):
            inner = node.this
            if isinstance(inner, exp.Subquery):
                made = self._level(node, self._subquery(inner.this, lateral=True), "", lateral=True)
            else:
                made = self._function(node, inner)
        elif isinstance(node, exp.Unnest):
            made = self._function(node, node)
        elif isinstance(node, exp.Subquery) and not isinstance(node.this, exp.Table | exp.Subquery):
            made = self._level(node, self._subquery(node.this, lateral=False), "")
        elif isinstance(node, exp.Values):
            values = node.copy()
            values.set("alias", None)
            made = self._level(node, self._subquery(values, lateral=False), "")
        elif isinstance(node, exp.Subquery):
            return self._parenthesised(node)
        else:
            raise NotLocal(f"{type(node).__name__} in FROM")
        inside = isinstance(node.parent, exp.Subquery) and node.parent.this is node
        if not inside and node.args.get("joins"):
            return self._chained(made, node.args["joins"])
        return made

    def _chained(
        self, made: tuple[FromNode, list[LocalVisible]], joins: Sequence[exp.Join]
    ) -> tuple[FromNode, list[LocalVisible]]:
        """Joins that the parser attached to the item itself."""
        chain = Chain([JoinStep("inner", made[0])])
        columns = made[1]
        for join in joins:
            columns = self._join(chain, columns, join)
        return self._node(chain), columns

    def _node(self, chain: Chain) -> FromNode:
        own = {(0, s) for s in chain.slots()}
        refs: Refs = frozenset().union(
            *(s.node.refs for s in chain.steps), *(c.refs for s in chain.steps for c in s.on)
        )

        def parts(e: Env, rt: Runtime) -> list[Env]:
            return chain.run(e.copy(), rt)

        return FromNode(chain.slots(), parts, refs - own, chain.nulls())

    def _parenthesised(self, node: exp.Subquery) -> tuple[FromNode, list[LocalVisible]]:
        """(a JOIN b ON ...)."""
        if _alias(node) is not None:
            raise NotLocal("an alias of a join")
        inner = node.this
        chain, columns = self.compile(inner, inner.args.get("joins") or ())
        made = self._node(chain), columns
        return self._chained(made, node.args["joins"]) if node.args.get("joins") else made

    def _table(self, node: exp.Table) -> tuple[FromNode, list[LocalVisible]]:
        parts = tuple(p.name for p in (node.args.get("catalog"), node.args.get("db"), node.this) if p)
        if len(parts) == 1 and parts[0] in self.ctes:
            return self._level(node, self.ctes[parts[0]], parts[0])
        relation = self.ctx.names.relation(parts, None)
        if relation.view is not None:
            level = self._view(relation.view, relation.view_scope)
            level.names = list(relation.desc.names)
            return self._level(node, level, parts[-1], relation.path)
        oid = self.ctx.is_local.get(relation.id)
        if oid is None:
            raise NotLocal(f"{relation.name} is read by Spark")
        self.ctx.relations.add(relation.id)
        relation_id = relation.id
        types: list[Type] = [Reg.PROC if t.kind is Kind.REGPROC else t for t in relation.desc.types]
        names = list(relation.desc.names)

        def rows(e: Env, rt: Runtime) -> Sequence[Row]:
            return rt.rows(relation_id)

        made = self._rows(node, names, types, rows, NOTHING, parts[-1], relation.path)
        made[1].append(LocalVisible("tableoid", Typed(OID, lambda e, rt: oid), hidden=True))
        self.scope.items[-1].columns = made[1]
        return made

    def _view(self, query: exp.Expr, names: Any) -> Level:
        from tidemill.sql.local.query import compile_level

        if self.ctx.depth >= MAX_VIEW_DEPTH:
            raise NotLocal("views nest too deep")
        own, self.ctx.names = self.ctx.names, names or self.ctx.names
        self.ctx.depth += 1
        try:
            return compile_level(self.ctx, query, None, {})
        finally:
            self.ctx.names = own
            self.ctx.depth -= 1

    def _subquery(self, query: exp.Expr, *, lateral: bool) -> Level:
        from tidemill.sql.local.query import compile_level

        while isinstance(query, exp.Subquery) and not query.args.get("alias"):
            query = query.this
        return compile_level(self.ctx, query, self.scope if lateral else self.scope.parent, self.ctes)

    def _level(
        self,
        node: exp.Expr,
        level: Level,
        name: str,
        qualified: tuple[str, ...] = (),
        *,
        lateral: bool = False,
    ) -> tuple[FromNode, list[LocalVisible]]:
        level = level.settled()
        # References of a plain subquery are outside this whole level; those of a lateral one are inside it.
        rows: Callable[[Env, Runtime], Sequence[Row]] = (
            (lambda e, rt: level.rows(e, rt)) if lateral else (lambda e, rt: level.once(e[0], rt))
        )
        refs = level.refs if lateral else frozenset((depth + 1, slot) for depth, slot in level.refs)
        return self._rows(node, level.names, level.types, rows, refs, name, qualified)

    def _function(self, node: exp.Expr, function: exp.Expr) -> tuple[FromNode, list[LocalVisible]]:
        x = Expressions(self.ctx, self.scope, self.ctes)
        call = call_of(function)
        if isinstance(function, exp.Unnest):
            name, args = "unnest", list(function.expressions)
        elif call is not None:
            name, args = call.name, list(call.args)
        else:
            raise NotLocal("this function in FROM")
        if len(args) != 1 and name == "unnest":
            raise NotLocal("unnest() of several arrays")
        fn, made = functions.apply(self.ctx, name, x.all(args))
        record = isinstance(made.type, SqlType) and made.type.kind is Kind.RECORD
        if record:
            assert isinstance(made.type, SqlType)
            names, types = [c.name for c in made.type.fields], [c.type for c in made.type.fields]
        else:
            names, types = [name], [made.type]
        alias = _alias(node)
        if alias is not None and len(names) == 1:
            names = [alias.name]
        numbered = function.args.get("offset") or node.args.get("ordinality") or node.args.get("offset")
        if numbered:
            # sqlglot takes the last name of the alias for the number's.
            if isinstance(numbered, exp.Identifier) and alias is not None and len(alias.columns) > len(names):
                raise NotLocal("more names than columns")
            names = [*names, numbered.name if isinstance(numbered, exp.Identifier) else "ordinality"]
            types = [*types, INT8]
        run = made.run

        def rows(e: Env, rt: Runtime) -> list[Row]:
            found = run(e, rt)
            values = (found or []) if fn.rows else [found]
            listed = [tuple(v) if record else (v,) for v in values]
            return [(*row, n) for n, row in enumerate(listed, 1)] if numbered else listed

        return self._rows(node, names, list(types), rows, made.refs, name, ())

    def _rows(
        self,
        node: exp.Expr,
        names: Sequence[str],
        types: Sequence[Type],
        rows: Callable[[Env, Runtime], Sequence[Row]],
        refs: Refs,
        name: str,
        qualified: tuple[str, ...],
    ) -> tuple[FromNode, list[LocalVisible]]:
        """The item of these rows, under its alias."""
        alias = _alias(node)
        given = [] if alias is None else [c.name for c in (alias.args.get("columns") or ())]
        if len(given) > len(names):
            raise NotLocal("more names than columns")
        shown = [*given, *names[len(given) :]]
        label = name if alias is None else alias.name
        full = qualified if alias is None else ()
        if label and any(i.name == label and i.qualified == full for i in self.scope.items):
            raise NotLocal(f"{label} twice")
        slot = self.scope.slot()
        columns = [
            LocalVisible(n, slot_column(slot, i, t))
            for i, (n, t) in enumerate(zip(shown, types, strict=True))
        ]
        self.scope.items.append(LocalItem(label, columns, slot, full))
        scope = self.scope

        def parts(e: Env, rt: Runtime) -> list[Env]:
            found: list[Env] = []
            for row in rows(e, rt):
                env = scope.env(e[0])
                env[slot] = row
                found.append(env)
            rt.spend(len(found))
            return found

        return FromNode([slot], parts, refs, {slot: (None,) * len(names)}), columns


def _alias(node: exp.Expr) -> exp.TableAlias | None:
    found = node.args.get("alias")
    return found if isinstance(found, exp.TableAlias) and found.this is not None else None
