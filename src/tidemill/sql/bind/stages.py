"""A SELECT in stages: inner projections of what must be computed first.

Set-returning functions of a select list are expanded into rows after all else of the list is computed
(including windows) and before DISTINCT, ORDER BY and LIMIT. Windows over ranks need the ranks first. In both
cases an inner projection computes columns x0, x1, ..., and the outer one references them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tidemill.errors import TidemillError
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import unsupported
from tidemill.sql.bind.forms.window import group_numbers
from tidemill.sql.bind.scope import Scope
from tidemill.sql.functions.tree import call, cast_to
from tidemill.sql.plan.expressions import (
    BoundNode,
    Const,
    FromRows,
    Op,
    Ref,
    SortKey,
    Window,
    children,
    rewrite,
    walk,
)
from tidemill.sql.plan.operators import Expand, Named, Operator, Output, Project
from tidemill.types.model import UNKNOWN, array

# Forms that evaluate only some of their arguments. PostgreSQL does not allow set-returning functions in them.
_LAZY = frozenset({"case", "coalesce"})


class Stage:
    """One inner query: `needs` records what it must compute, `source` creates it, and `finish` rewrites the
    expressions of the outer query."""

    def __init__(self, ctx: BindContext, scope: Scope) -> None:
        self._alias = ctx.alias()
        self._outer = set(scope.outer)
        self._columns: dict[BoundNode, Ref] = {}

    def needs(self, node: BoundNode) -> Ref:
        """Compute the node in the inner query. Returns its column."""
        found = self._columns.get(node)
        if found is None:
            found = Ref(node.type, self._alias, f"x{len(self._columns)}", _label(node))
            self._columns[node] = found
        return found

    def collect(
        self, node: BoundNode, inside: tuple[type[BoundNode], ...], apart: tuple[type[BoundNode], ...] = ()
    ) -> None:
        """Record the columns of an expression, and the parts of it that are computed `inside`. Parts that are
        `apart` are skipped."""
        if isinstance(node, inside) or (isinstance(node, Ref) and node not in self._outer):
            self.needs(node)
        elif not isinstance(node, apart):
            for child in children(node):
                self.collect(child, inside, apart)

    def refs(self) -> list[Ref]:
        return list(self._columns.values())

    def column_of(self, node: BoundNode) -> Ref | None:
        return self._columns.get(node)

    def source(self, plan: Operator) -> Operator:
        outputs = tuple(Output(ref.name, node) for node, ref in self._columns.items())
        # A query of constants has no columns, but still one row.
        nothing = (Output("x", Const(UNKNOWN, None)),)
        return Named(Project(plan, outputs or nothing), self._alias)

    def finish(self, node: BoundNode) -> BoundNode:
        return rewrite(node, lambda part: self._columns.get(part))


def _label(node: BoundNode) -> str:
    return node.label if isinstance(node, Ref) else ""


def has_groups(node: BoundNode) -> bool:
    return any(isinstance(n, Window) and n.groups for n in walk(node))


def number_groups(
    ctx: BindContext,
    scope: Scope,
    nodes: Sequence[BoundNode],
    plan: Operator,
) -> tuple[Operator, Callable[[BoundNode], BoundNode]]:
    """GROUPS frames: the numbers of the peer groups as columns of a FROM item, and the nodes rewritten over
    it."""
    stage = Stage(ctx, scope)
    numbers: dict[Window, Ref] = {}
    for node in nodes:
        for part in walk(node):
            if isinstance(part, Window) and part.groups:
                numbers[part] = stage.needs(group_numbers(part))
        stage.collect(node, ())

    def finish(node: BoundNode) -> BoundNode:
        def change(part: BoundNode) -> BoundNode | None:
            if isinstance(part, Window) and part in numbers:
                key = SortKey(numbers[part], False, False)
                return stage.finish(replace(part, order=(key,), groups=False))
            return stage.column_of(part)

        return rewrite(node, change)

    return stage.source(plan), finish


def has_rows(node: BoundNode) -> bool:
    return any(isinstance(n, FromRows) for n in walk(node))


def check_rows(node: BoundNode) -> None:
    """Refuse set-returning functions where PostgreSQL refuses them."""
    for part in walk(node):
        if isinstance(part, Op) and part.key in _LAZY and has_rows(part):
            raise TidemillError(
                f"set-returning functions are not allowed in {part.key.upper()}",
                hint="You might be able to move the set-returning function into a LATERAL FROM item.",
                sqlstate="0A000",
            )
        if isinstance(part, Window) and any(has_rows(n) for n in (*part.args, *part.partition)):
            raise unsupported("a set-returning function in a window function")


def expand(
    ctx: BindContext,
    scope: Scope,
    nodes: Sequence[BoundNode],
    plan: Operator,
) -> tuple[Operator, Callable[[BoundNode], BoundNode]]:
    """The rows of the set-returning functions in `nodes` as a FROM item, and the nodes rewritten over it.
    Several functions return rows side by side; shorter ones are filled with NULLs."""
    for node in nodes:
        check_rows(node)
    stage = Stage(ctx, scope)
    rows: dict[FromRows, Ref] = {}
    for node in nodes:
        for part in walk(node):
            if isinstance(part, FromRows) and part not in rows:
                rows[part] = stage.needs(_values(part))
        # A set-returning function needs its array.
        stage.collect(node, (Window,), (FromRows,))
    inner = stage.source(plan)
    return _exploded(ctx, stage, inner, rows)


def _values(rows: FromRows) -> BoundNode:
    """All values of a call, an empty array for NULL."""
    t = array(rows.type)
    build = rows.build
    return Op(
        t, f"rows {rows.key}", rows.args, lambda a: call("coalesce", build(a), cast_to(call("array"), t))
    )


def _exploded(
    ctx: BindContext, stage: Stage, inner: Operator, rows: dict[FromRows, Ref]
) -> tuple[Operator, Callable[[BoundNode], BoundNode]]:
    alias = ctx.alias()
    kept = tuple(ref for ref in stage.refs() if ref not in rows.values())
    made = Named(Expand(inner, kept, tuple(rows.values())), alias)
    places = {part: Ref(part.type, alias, f"e{i}") for i, part in enumerate(rows)}

    def finish(node: BoundNode) -> BoundNode:
        def change(part: BoundNode) -> BoundNode | None:
            if isinstance(part, FromRows):
                return places[part]
            ref = stage.column_of(part)
            return None if ref is None else Ref(ref.type, alias, ref.name, ref.label)

        return rewrite(node, change)

    return made, finish
