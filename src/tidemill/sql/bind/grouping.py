"""GROUP BY and aggregates: the groups, and the names that the select list may use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.errors import LimitExceeded
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import GroupingError, unsupported
from tidemill.sql.bind.scope import Scope
from tidemill.sql.functions.tree import Tree, add, integer, mul
from tidemill.sql.plan.expressions import GROUPING, Aggregate, BoundNode, Op, Ref, rewrite, walk
from tidemill.sql.plan.operators import Group, Named, Operator
from tidemill.types.model import INT4, Kind

# The maximum number of grouping sets, as in PostgreSQL (CUBE over twelve expressions).
MAX_SETS = 4096

Sets = list[list[BoundNode]]


def is_grouped(node: BoundNode) -> bool:
    return any(isinstance(n, Aggregate) or _is_grouping(n) for n in walk(node))


def _is_grouping(node: BoundNode) -> bool:
    return isinstance(node, Op) and node.key == GROUPING


def group_sets(items: Sequence[exp.Expr], key: Callable[[exp.Expr], BoundNode]) -> Sets:
    """The grouping sets of GROUP BY: all combinations of the items' sets. Without GROUPING SETS, ROLLUP and
    CUBE there is one set."""
    made: Sets = [[]]
    for item in items:
        own = _item_sets(item, key)
        if len(made) * len(own) > MAX_SETS:
            raise LimitExceeded(f"too many grouping sets present (maximum {MAX_SETS})", sqlstate="54001")
        made = [[*a, *b] for a, b in itertools.product(made, own)]
    return [list(dict.fromkeys(s)) for s in made]


def _item_sets(item: exp.Expr, key: Callable[[exp.Expr], BoundNode]) -> Sets:
    if isinstance(item, exp.GroupingSets):
        return [s for part in item.expressions for s in _item_sets(part, key)]
    if isinstance(item, exp.Rollup):
        parts = [_together(part, key) for part in item.expressions]
        return [_joined(parts[:n]) for n in range(len(parts), -1, -1)]
    if isinstance(item, exp.Cube):
        parts = [_together(part, key) for part in item.expressions]
        if len(parts) > 12:
            raise LimitExceeded("CUBE is limited to 12 elements", sqlstate="54001")
        sizes = range(len(parts), -1, -1)
        return [_joined(chosen) for n in sizes for chosen in itertools.combinations(parts, n)]
    return [_together(item, key)]


def _together(item: exp.Expr, key: Callable[[exp.Expr], BoundNode]) -> list[BoundNode]:
    """(a, b) is one element with two expressions."""
    while isinstance(item, exp.Paren):
        item = item.this
    if isinstance(item, exp.Tuple):
        return [key(part) for part in item.expressions]
    return [key(item)]


def _joined(parts: Sequence[list[BoundNode]]) -> list[BoundNode]:
    return [node for part in parts for node in part]


class Grouping:
    """One grouped SELECT: its `Group`, and its expressions over the group's columns."""

    def __init__(self, ctx: BindContext, scope: Scope, sets: Sets) -> None:
        self._alias = ctx.alias()
        keys = list(dict.fromkeys(node for s in sets for node in s))
        if any(key.type.kind is Kind.CHAR and key.type.length is None for key in keys):
            raise unsupported("GROUP BY of type character without a length")
        self._sets = sets
        self._keys = {key: Ref(key.type, self._alias, f"g{i}") for i, key in enumerate(keys)}
        self._bits = {key: Ref(INT4, self._alias, f"b{i}") for i, key in enumerate(keys)}
        self._aggregates: dict[Aggregate, Ref] = {}
        visible = [v.node for item in scope.items for v in item.columns] + [v.node for v in scope.columns]
        # Aliases of this query's FROM items; other references are those of an enclosing query.
        self._own = {part.table for node in visible for part in walk(node) if isinstance(part, Ref)}

    def collect(self, node: BoundNode) -> None:
        """Record the aggregates of an expression."""
        for part in walk(node):
            if isinstance(part, Aggregate) and part not in self._aggregates:
                refs = [n for n in walk(part) if isinstance(n, Ref)]
                if refs and not any(r.table in self._own for r in refs):
                    raise unsupported("an aggregate over columns of an enclosing query")
                name = f"a{len(self._aggregates)}"
                self._aggregates[part] = Ref(part.type, self._alias, name)

    def source(self, plan: Operator) -> Operator:
        """The groups of the plan's rows, as a FROM item."""
        sets = tuple(tuple(s) for s in self._sets)
        return Named(Group(plan, sets, tuple(self._keys), tuple(self._aggregates)), self._alias)

    def finish(self, node: BoundNode) -> BoundNode:
        """The expression over the inner query's columns. Raises 42803 for a column that is neither grouped
        nor aggregated."""

        def change(part: BoundNode) -> BoundNode | None:
            if isinstance(part, Op) and part.key == GROUPING:
                return self._grouping(part)
            key = self._keys.get(part)
            if key is not None:
                return key
            if isinstance(part, Aggregate):
                return self._aggregates[part]
            if isinstance(part, Ref) and part.table in self._own:
                raise GroupingError(
                    f'column "{part.label}" must appear in the GROUP BY clause '
                    "or be used in an aggregate function"
                )
            return None

        return rewrite(node, change)

    def _grouping(self, call_: Op) -> BoundNode:
        """GROUPING(a, b): one bit per argument, the last one lowest."""
        if any(arg not in self._keys for arg in call_.args):
            raise GroupingError(
                "arguments to GROUPING must be grouping expressions of the associated query level"
            )
        if len(self._sets) == 1:
            return Op(INT4, "no grouping", (), lambda a: integer(0))
        bits = tuple(self._bits[arg] for arg in call_.args)

        def build(a: Sequence[Tree]) -> Tree:
            number = a[0]
            for bit in a[1:]:
                number = add(mul(number, integer(2)), bit)
            return number

        return Op(INT4, "grouping bits", bits, build)
