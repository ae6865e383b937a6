"""Whether a plan's answer over some rows is the same each time it is computed.

A maintained query takes its old answer for the touched keys away by computing it again, if that comes out
exactly as it did before, whatever the order of the rows: not so sums of floats, an array_agg without an order
of all that it collects, the first row of several that are equal in the order. Conservative: what is not known
to be reproducible is not, and then the old answer must be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.sql.functions.collected import FINISHERS, ROWS
from tidemill.sql.plan.expressions import (
    Aggregate,
    BoundNode,
    Convert,
    FromRows,
    Op,
    Ref,
    SessionValue,
    SortKey,
    Subquery,
    Window,
    walk,
)
from tidemill.sql.plan.keyed import columns_of
from tidemill.sql.plan.operators import (
    Copies,
    Distinct,
    FirstOfEach,
    Group,
    Limit,
    Operator,
    Project,
    Recursive,
    SetOperation,
    Sort,
    TableFunction,
    Ties,
    expressions,
    keeps_all,
    walk_plan,
)
from tidemill.sql.plan.unkept import NotIncremental, NotReproducible
from tidemill.types.model import Kind, SqlType

_FLOATS = (Kind.FLOAT4, Kind.FLOAT8)
_TEXTS = (Kind.TEXT, Kind.VARCHAR, Kind.CHAR, Kind.NAME, Kind.JSONB)
# In any order of the rows the same result, for exact numbers; for floats the second alone.
_EXACT = frozenset(
    {
        *("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every"),
        *("bit_and", "bit_or", "bit_xor", "regr_count"),
        *("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"),
    }
)
_OF_FLOATS = frozenset({"count", "min", "max", "regr_count"})
# The same for any order of the rows among equals in the order.
_PEERS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist", "group"})
_COLLECTED = frozenset(name.split(" ")[0] for name in FINISHERS) - _EXACT | {ROWS}


def check_reproducible(plan: Operator) -> None:
    """Raises NotReproducible; NotIncremental if it depends on more than the rows."""
    check_local(plan)
    for op in walk_plan(plan):
        if isinstance(op, Limit) and not keeps_all(op):
            _check_limit(op)
        if isinstance(op, FirstOfEach):
            _check_first(op)
        if isinstance(op, Group):
            _check_types("GROUP BY", (k.type for k in op.keys))
        if isinstance(op, Distinct):
            _check_types("DISTINCT", (t for _, t in columns_of(op)))
        if isinstance(op, SetOperation) and (op.distinct or op.kind != "UNION"):
            _check_types(op.kind, (t for _, t in columns_of(op)))
        if isinstance(op, TableFunction) and any(a.type.kind in _FLOATS for a in op.args):
            raise NotReproducible("a function of floats in FROM")
        for node in expressions(op):
            for part in walk(node):
                _check_node(part, op)


def check_local(plan: Operator) -> None:
    """Raises NotIncremental if the plan depends on more than its rows, or on rows of other keys."""
    for op in walk_plan(plan):
        if isinstance(op, Copies | Recursive | Ties):
            raise NotIncremental(type(op).__name__)
        for part in (part for node in expressions(op) for part in walk(node)):
            if isinstance(part, SessionValue):
                raise NotIncremental(f"{part.which.name.lower()}()")
            if isinstance(part, Op) and part.fn is not None and part.fn.volatile:
                raise NotIncremental(f"{part.fn.name}()")


def _check_types(what: str, types: Iterable[SqlType]) -> None:
    for t in types:
        if has_forms(t):
            raise NotReproducible(
                f"{what} of type {t}, of which one value has several forms", "Cast it to another type before."
            )


def has_forms(t: SqlType) -> bool:
    """Whether values that SQL calls equal may look different after they are stored: an interval of a month
    and of 30 days, a padded text."""
    if t.kind in (Kind.INTERVAL, Kind.CHAR, Kind.QCHAR):
        return True
    return (t.element is not None and has_forms(t.element)) or any(has_forms(c.type) for c in t.fields)


def _check_node(node: BoundNode, op: Operator) -> None:
    if isinstance(node, Aggregate):
        _check_aggregate(node)
    elif isinstance(node, Window):
        _check_window(node, op)
    elif isinstance(node, Op):
        if _shows_zero(node.type, node.args):
            raise NotReproducible("a float as text", "0 and -0 are one value with two texts.")
    elif (isinstance(node, Convert) and _shows_zero(node.type, (node.arg,))) or (
        isinstance(node, FromRows) and any(a.type.kind in _FLOATS for a in node.args)
    ):
        raise NotReproducible("a float as text", "0 and -0 are one value with two texts.")


def _shows_zero(t: SqlType, args: Sequence[BoundNode]) -> bool:
    """Whether a text may show the sign of a float's zero."""
    return t.kind in _TEXTS and any(_floats(a.type) for a in args)


def _floats(t: SqlType) -> bool:
    if t.kind in _FLOATS:
        return True
    return (t.element is not None and _floats(t.element)) or any(_floats(c.type) for c in t.fields)


# -- aggregates


def _check_aggregate(call: Aggregate) -> None:
    name = call.fn.name
    if any(has_forms(a.type) for a in call.args) and name not in ("count", "sum"):
        raise NotReproducible(f"{name}() of type {call.args[0].type}, of which one value has several forms")
    if name == "count" and call.distinct and any(has_forms(a.type) for a in call.args):
        raise NotReproducible("count(DISTINCT ...) of a type of which one value has several forms")
    if name in ("mode", "percentile_cont", "percentile_disc"):
        return
    if name in _COLLECTED:
        if not call.distinct and not _covers(call.order, call.args):
            raise NotReproducible(
                f"{name}() without an order of all that it collects",
                f"Write {name}(... ORDER BY ...) with all its arguments in the order.",
            )
        return
    inexact = any(a.type.kind in _FLOATS for a in call.args)
    if name not in (_OF_FLOATS if inexact else _EXACT):
        raise NotReproducible(
            f"{name}() of {call.args[0].type}" if inexact else f"{name}()",
            "The order of the rows shows in its result. Numeric is exact: cast to it."
            if inexact
            else "The order of the rows shows in its result.",
        )


def _covers(order: Sequence[SortKey], nodes: Iterable[BoundNode]) -> bool:
    """Whether rows that are equal in the order are equal in these expressions."""
    keys = [k.node for k in order if not has_forms(k.node.type)]
    columns = {k for k in keys if isinstance(k, Ref)}
    for node in nodes:
        refs = {n for n in walk(node) if isinstance(n, Ref)}
        if node not in keys and not refs <= columns:
            return False
        if any(isinstance(n, Subquery | Window) for n in walk(node)):
            return False
    return True


# -- orders


def _check_window(window: Window, op: Operator) -> None:
    name = window.key.partition("(")[0].partition(" ")[0]
    if any(has_forms(p.type) for p in window.partition):
        raise NotReproducible("PARTITION BY of a type of which one value has several forms")
    if name in _PEERS:
        return
    exact = name in (_OF_FLOATS if any(a.type.kind in _FLOATS for a in window.args) else _EXACT)
    ranged = window.frame is None or window.frame.args.get("kind") == "RANGE"
    if exact and not any(has_forms(a.type) for a in window.args) and (not window.order or ranged):
        return
    # Rows that are equal in all that is used are interchangeable.
    keys = [*window.order, *(SortKey(p, False, False) for p in window.partition)]
    used = [r for node in expressions(op) for r in _columns(node)]
    if name in ("array_agg", "list_agg") or not _covers(keys, used) or (name in _EXACT and not exact):
        raise NotReproducible(
            f"{name}() over rows that may be equal in the order",
            "Add all columns that the SELECT uses to the window's ORDER BY.",
        )


def _columns(node: BoundNode) -> Iterable[Ref]:
    return (n for n in walk(node) if isinstance(n, Ref))


def _check_first(op: FirstOfEach) -> None:
    if not isinstance(op.input, Project):
        raise NotReproducible("DISTINCT ON")
    nodes = {o.name: o.node for o in op.input.outputs}
    keys = [nodes[n] for n in (*op.keys, *(k.node.name for k in op.order if isinstance(k.node, Ref)))]
    plain = [n.args[0] if isinstance(n, Op) and n.key == "comparable" else n for n in keys]
    _check_types("DISTINCT ON", (n.type for n in plain))
    if not _covers([SortKey(n, False, False) for n in plain], nodes.values()):
        raise NotReproducible(
            "DISTINCT ON with rows that may be equal in the order",
            "Add all columns of the SELECT to its ORDER BY.",
        )


def _check_limit(op: Limit) -> None:
    """LIMIT of a correlated query."""
    below = op.input
    while isinstance(below, Limit):
        below = below.input
    if isinstance(below, Project) and isinstance(below.input, Sort):
        source = below.input
    elif isinstance(below, Sort):
        source = below
    else:
        raise NotReproducible("LIMIT without ORDER BY", "Add an order of all that the query returns.")
    made = below if isinstance(below, Project) else source.input
    if not isinstance(made, Project):
        raise NotReproducible("LIMIT of this query")
    names = {k.node.name for k in source.keys if isinstance(k.node, Ref) and not has_forms(k.node.type)}
    if isinstance(below, Project):
        left = [o for o in made.outputs if not (isinstance(o.node, Ref) and o.node.name in names)]
    else:
        keys = [o.node for o in made.outputs if o.name in names]
        left = [o for o in made.outputs if not _covers([SortKey(k, False, False) for k in keys], [o.node])]
    if left:
        raise NotReproducible(
            "LIMIT of rows that may be equal in the order", "Add all columns of the SELECT to its ORDER BY."
        )
