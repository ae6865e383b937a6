"""Compilation of expressions: a parsed tree to a function of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidemill.sql.bind.calls import call_of, row_of
from tidemill.sql.local import operators
from tidemill.sql.local.cast import to_type
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.forms import HANDLERS, first_column
from tidemill.sql.local.kinds import Reg, Type, array_element
from tidemill.sql.local.logic import conjunction
from tidemill.sql.local.model import Ctes, Env, Level, LocalScope, NotLocal, Refs, Run, Runtime, Typed
from tidemill.types import model
from tidemill.types.model import BOOL, Kind, SqlType

if TYPE_CHECKING:
    from tidemill.sql.local.functions import Function
    from tidemill.sql.local.grouping import Aggregates


class Expressions:
    """Compiles the expressions of one query level. `aggregates` collects aggregate calls if the clause allows
    them. `windows` and `series` collect the calls that need rows beside the level's own.
    """

    def __init__(self, ctx: LocalContext, scope: LocalScope, ctes: Ctes) -> None:
        self.ctx = ctx
        self.scope = scope
        self.ctes = ctes
        self.aggregates: Aggregates | None = None
        # Window calls and set-returning calls of a select list: (slot, function that makes their values).
        self.windows: list[tuple[int, Callable[[list[Env], Runtime], list[Any]]]] = []
        self.series: list[tuple[int, Typed]] = []
        self.may_series = False
        self.may_window = False

    def compile(self, node: exp.Expr) -> Typed:
        handler = HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        name = operators.BINARY.get(type(node))
        if name is not None:
            return self._binary(name, node)
        from tidemill.sql.local import functions

        call = call_of(node)
        if call is None:
            raise NotLocal(f"{type(node).__name__} is not known")
        return functions.compile_call(self, call)

    def all(self, nodes: Sequence[exp.Expr]) -> list[Typed]:
        return [self.compile(n) for n in nodes]

    def boolean(self, node: exp.Expr) -> Typed:
        return to_type(self.ctx, self.compile(node), BOOL)

    def query(self, node: exp.Expr) -> Level:
        """A subquery that may refer to this level's columns."""
        from tidemill.sql.local.query import compile_level

        while isinstance(node, exp.Paren) or (isinstance(node, exp.Subquery) and not _has_tail(node)):
            node = node.this
        return compile_level(self.ctx, node, self.scope, self.ctes).settled()

    def set_returning(self, fn: Function, made: Typed) -> Typed:
        """One value of a set-returning call in a select list."""
        if not self.may_series:
            raise NotLocal(f"{fn.name}() gives several rows")
        slot = self.scope.slot()
        self.series.append((slot, made))
        return Typed(made.type, lambda e, rt: e[slot], made.refs | {(0, slot)})

    def _binary(self, name: str, node: exp.Expr) -> Typed:
        left, right = node.this, node.args["expression"]
        if isinstance(right, exp.Anonymous) and str(right.this).upper() in ("ALL", "ANY", "SOME"):
            quantified: Any = exp.All if str(right.this).upper() == "ALL" else exp.Any
            right = quantified(this=right.expressions[0])
        if isinstance(right, exp.Any | exp.All):
            return self._quantified(name, self.compile(left), right)
        rows = row_of(left), row_of(right)
        if rows[0] and rows[1] and name == "=" and len(rows[0]) == len(rows[1]):
            pairs = zip(self.all(rows[0]), self.all(rows[1]), strict=True)
            return conjunction([operators.binary(self.ctx, "=", a, b) for a, b in pairs])
        return operators.binary(self.ctx, name, self.compile(left), self.compile(right))

    def _quantified(self, name: str, value: Typed, node: exp.Expr) -> Typed:
        every = isinstance(node, exp.All)
        source = node.this
        while isinstance(source, exp.Paren):
            source = source.this
        if isinstance(source, exp.Subquery | exp.Select | exp.SetOperation | exp.Values):
            level = self.query(source)
            if len(level.types) != 1:
                raise NotLocal("a subquery of several columns")
            element: Type = level.types[0]
            items: Run = first_column(level)
            refs: Refs = level.refs
        else:
            found = self.compile(source)
            if found.untyped or (found.param is not None and found.type == model.UNKNOWN):
                if isinstance(value.type, Reg) or value.type == model.UNKNOWN:
                    raise NotLocal("ANY of an unknown array")
                found = to_type(self.ctx, found, model.array(value.type))
            if not isinstance(found.type, SqlType) or found.type.kind is not Kind.ARRAY:
                raise NotLocal("ANY of no array")
            element, items, refs = array_element(found.type), found.run, found.refs
        # The comparison is compiled once, over an environment of the value and one element.
        one = operators.binary(
            self.ctx,
            name,
            Typed(
                value.type,
                lambda e, rt: e[0],
                literal=value.literal,
                untyped=value.untyped,
                param=value.param,
            ),
            Typed(element, lambda e, rt: e[1]),
        ).run
        run = value.run

        def quantified(e: Env, rt: Runtime) -> bool | None:
            found = items(e, rt)
            if found is None:
                return None
            pair: Env = [run(e, rt), None]
            missing = False
            for item in found:
                pair[1] = item
                answer = one(pair, rt)
                if answer is None:
                    missing = True
                elif answer is not every:
                    return not every
            return None if missing else every

        return Typed(BOOL, quantified, value.refs | refs)


def _has_tail(node: exp.Subquery) -> bool:
    return any(node.args.get(k) for k in ("order", "limit", "offset", "with_"))
