"""x < ANY (query) and x >= ALL (query): a comparison with the rows of a subquery by their bounds.

Called by `subquery`. Spark has neither form, and its array functions take no subquery. The largest row, the
smallest row and the number of rows determine the result, even if some rows are NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import SyntaxError_
from tidemill.sql.bind.calls import row_of
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.functions.signature import Fn
from tidemill.sql.functions.tree import (
    Tree,
    and_,
    boolean,
    call,
    case,
    cast_to,
    eq,
    field,
    integer,
    is_null,
    lt,
    not_,
    null,
    string,
)
from tidemill.sql.plan.expressions import Aggregate, BoundNode, Op, Ref, Subquery
from tidemill.sql.plan.operators import Group, Named
from tidemill.types.model import BOOL, INT8, Column, Kind, record

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder
    from tidemill.sql.bind.query import BoundParts

# Which bound decides: x < ANY if it is less than the largest, x < ALL if less than the smallest.
_BOUND = {
    ("<", False): "hi",
    ("<=", False): "hi",
    (">", False): "lo",
    (">=", False): "lo",
    ("<", True): "lo",
    ("<=", True): "lo",
    (">", True): "hi",
    (">=", True): "hi",
}
COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
# Types whose values Spark does not sort in PostgreSQL's order.
_OTHER_ORDER = frozenset({Kind.CHAR, Kind.INTERVAL, Kind.JSONB, Kind.ARRAY, Kind.LIST, Kind.RECORD, Kind.MAP})


def compared(b: Binder, name: str, left: exp.Expr, bound: BoundParts, *, every: bool) -> BoundNode:
    """left op ANY/ALL (query), except = ANY and <> ALL, which are IN and NOT IN."""
    position = position_of(left)
    word = f"{name} {'ALL' if every else 'ANY'}"
    if row_of(left) is not None:
        raise unsupported(f"{word} of rows over a subquery", position)
    if len(bound.columns) != 1:
        raise SyntaxError_("subquery has too many columns", position=position)
    if name not in COMPARISONS:
        raise unsupported(f"{word} over a subquery", position, "Join the tables instead.")
    alias = b.ctx.alias()
    test = b.operator(name, [b.bind(left), Ref(bound.columns[0].type, alias, "c0")], position)
    if not isinstance(test, Op) or test.args[1].type.kind in _OTHER_ORDER:
        raise unsupported(f"{word} over a subquery of type {bound.columns[0].type}", position)
    value, item = test.args
    rows = _bounds(alias, bound, item)
    build = test.build

    def holds(x: Tree, all_rows: Tree) -> Tree:
        """The condition for some row (ANY) or every row (ALL) that is not NULL."""
        if (name, every) in _BOUND:
            return build([x, field(all_rows, _BOUND[name, every])])
        both = [eq(x.copy(), field(all_rows.copy(), side)) for side in ("lo", "hi")]
        return and_(*both) if name == "=" else not_(and_(*both))

    def answer(a: Sequence[Tree]) -> Tree:
        x, found = a
        decided = holds(x.copy(), found.copy())
        return case(
            (eq(field(found.copy(), "n"), integer(0)), boolean(every)),
            (is_null(x.copy()), cast_to(null(), BOOL)),
            (not_(decided) if every else decided, boolean(not every)),
            (lt(field(found.copy(), "k"), field(found.copy(), "n")), cast_to(null(), BOOL)),
            otherwise=boolean(every),
        )

    return Op(BOOL, f"{word} bounds", (value, rows), answer)


def _bounds(alias: str, bound: BoundParts, item: BoundNode) -> BoundNode:
    """The number of rows, the number of rows that are not NULL, the smallest and the largest row."""
    t = record(Column("n", INT8), Column("k", INT8), Column("lo", item.type), Column("hi", item.type))
    fn = Fn("bounds", (item.type,), t, _bounds_tree, aggregate=True)
    rows = Aggregate(t, fn, (item,))
    return Subquery(t, "scalar", Group(Named(bound.plan, alias), ((),), (), (rows,)), tuple(bound.outer))


def _bounds_tree(args: Sequence[Tree]) -> Tree:
    return call(
        "named_struct",
        *(string("n"), call("count", integer(1)), string("k"), call("count", args[0])),
        *(string("lo"), call("min", args[0].copy()), string("hi"), call("max", args[0].copy())),
    )
