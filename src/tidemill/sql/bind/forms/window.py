"""Window functions: OVER (PARTITION BY ... ORDER BY ... frame), named windows.

`frames` binds the frame. Spark's functions and aggregates are used where their meaning equals PostgreSQL's.
Functions that need all rows of the frame collect them (`functions.collected`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import InvalidValue, TidemillError, Unsupported
from tidemill.sql.bind.calls import FunctionCall, call_of
from tidemill.sql.bind.coerce import settle, to_type, unify
from tidemill.sql.bind.digits import result_type
from tidemill.sql.bind.errors import WindowingError, position_of, unsupported
from tidemill.sql.bind.forms.aggregate import sort_key
from tidemill.sql.bind.forms.frames import Framed, framed
from tidemill.sql.bind.forms.json_calls import aggregate_arguments
from tidemill.sql.functions import signature
from tidemill.sql.functions.comparison import check_grouped
from tidemill.sql.functions.resolve import resolve_function
from tidemill.sql.functions.tree import Tree, call, cast, cast_to, null
from tidemill.sql.lower.aggregate import argument_fields, finisher_of, rows_of
from tidemill.sql.lower.window import over_call, over_inside
from tidemill.sql.plan.expressions import BoundNode, Const, Window
from tidemill.types.model import FLOAT8, INT4, INT8, Kind, SqlType

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder

# name -> result type, for functions without arguments. Spark's ranks are INT.
_RANKS: dict[str, SqlType] = {
    "row_number": INT8,
    "rank": INT8,
    "dense_rank": INT8,
    "percent_rank": FLOAT8,
    "cume_dist": FLOAT8,
}
_VALUES = frozenset({"lag", "lead", "first_value", "last_value", "nth_value", "ntile"})
# The maximum depth of windows that are based on other windows.
MAX_WINDOW_CHAIN = 32


def is_window_function(name: str) -> bool:
    return name in _RANKS or name in _VALUES


def bind_window(b: Binder, node: exp.Window) -> BoundNode:
    position = position_of(node)
    if not b.aggregates:
        raise WindowingError(f"window functions are not allowed in {b.clause}", position=position)
    if b.in_aggregate:
        raise TidemillError(
            "aggregate function calls cannot contain window function calls",
            sqlstate="42803",
            position=position,
        )
    if b.in_window:
        raise WindowingError("window function calls cannot be nested", position=position)
    b.in_window = True
    try:
        return _bound(b, node, position)
    finally:
        b.in_window = False


def _bound(b: Binder, node: exp.Window, position: int | None) -> BoundNode:
    inner = node.this
    where: BoundNode | None = None
    if isinstance(inner, exp.Filter):
        where = b.boolean(inner.args["expression"].this, "FILTER")
        inner = inner.this
    if isinstance(inner, exp.IgnoreNulls | exp.RespectNulls):
        raise Unsupported("IGNORE NULLS is not supported", position=position)
    if isinstance(inner, exp.WithinGroup):
        raise Unsupported("OVER is not supported for ordered-set aggregates", position=position)
    found = call_of(inner)
    if found is None:
        raise unsupported("this window function", position)
    if found.distinct:
        raise Unsupported("DISTINCT is not implemented for window functions", position=position)
    if found.order:
        raise Unsupported("aggregate ORDER BY is not implemented for window functions", position=position)
    if where is not None and is_window_function(found.name):
        raise Unsupported("FILTER is not implemented for non-aggregate window functions", position=position)
    key, t, args, build = _call(b, found, position)
    spec = _resolved_spec(b, node, position)
    partition = tuple(settle(b.ctx, b.bind(p)) for p in spec.partition)
    for p in partition:
        check_grouped(p.type, "PARTITION BY")
    order = tuple(sort_key(b, o) for o in spec.order)
    # Ranks use the whole partition and ignore the frame.
    plain = found.name in _RANKS or found.name in ("lag", "lead", "ntile")
    frame = framed(b, spec.frame, order, position)
    if plain:
        frame = Framed(order, None)
    return Window(t, key, tuple(args), partition, frame.order, frame.spec, build, where, frame.groups)


class _Spec:
    """The parts of a window, including those of the windows that it is based on."""

    def __init__(self, partition: list[exp.Expr], order: list[exp.Ordered], frame: exp.Expr | None) -> None:
        self.partition = partition
        self.order = order
        self.frame = frame


def _parts(node: exp.Expr) -> _Spec:
    order = node.args.get("order")
    return _Spec(
        list(node.args.get("partition_by") or ()),
        list(order.expressions) if order is not None else [],
        node.args.get("spec"),
    )


def _resolved_spec(b: Binder, node: exp.Window, position: int | None, depth: int = 0) -> _Spec:
    """OVER w, OVER (w ORDER BY ...): a window inherits the partition of the window that it is based on, and
    its order if it has one."""
    own, alias = _parts(node), node.args.get("alias")
    if alias is None:
        return own
    named = b.windows.get(alias.name)
    if named is None or depth > MAX_WINDOW_CHAIN:
        raise TidemillError(f'window "{alias.name}" does not exist', sqlstate="42704", position=position)
    based = _resolved_spec(b, named, position, depth + 1)
    if not own.partition and not own.order and own.frame is None:
        # sqlglot parses OVER w and OVER (w) alike. PostgreSQL refuses the second if w has a frame.
        return based
    if own.partition:
        raise WindowingError(
            f'cannot override PARTITION BY clause of window "{alias.name}"', position=position
        )
    if own.order and based.order:
        raise WindowingError(f'cannot override ORDER BY clause of window "{alias.name}"', position=position)
    if based.frame is not None:
        raise WindowingError(
            f'cannot copy window "{alias.name}" because it has a frame clause', position=position
        )
    return _Spec(based.partition, own.order or based.order, own.frame)


_Bound = tuple[str, SqlType, list[BoundNode], Callable[[Sequence[Tree]], Tree]]


def _call(b: Binder, found: FunctionCall, position: int | None) -> _Bound:
    name = found.name
    if name in _RANKS and not found.args:
        t = _RANKS[name]
        ddl = "BIGINT" if t is INT8 else "DOUBLE"
        return name, t, [], lambda a: cast(over_call(call(name)), ddl)
    documents = aggregate_arguments(b, name, found.args)
    args = documents if documents is not None else b.bind_all(found.args)
    if name in ("first_value", "last_value") and len(args) == 1:
        value = settle(b.ctx, args[0])
        return name, value.type, [value], lambda a: over_call(call(name, a[0]))
    if name in ("lag", "lead") and 1 <= len(args) <= 3:
        return _shift(b, name, args, position)
    if name == "ntile" and len(args) == 1:
        return _counted(b, name, INT4, [], args[0], position)
    if name == "nth_value" and len(args) == 2:
        value = settle(b.ctx, args[0])
        return _counted(b, name, value.type, [value], args[1], position)
    resolved = resolve_function(name, [a.type for a in args])
    if resolved is None or not resolved.fn.aggregate:
        if name in _VALUES or resolved is None:
            raise b.no_function(name, args, position)
        raise TidemillError(
            f"OVER specified, but {name} is not a window function nor an aggregate function",
            sqlstate="42809",
            position=position,
        )
    if not resolved.fn.windowed or (found.star and name != "count"):
        raise unsupported(f"{name}() as a window function", position)
    coerced = [to_type(b.ctx, a, t) for a, t in zip(args, resolved.args, strict=True)]
    result = result_type(name, resolved.fn.result, resolved.result, coerced)
    return f"{name}({resolved.args})", result, coerced, _aggregate(resolved.fn, resolved.args)


def _aggregate(fn: signature.Fn, types: Sequence[SqlType]) -> Callable[[Sequence[Tree]], Tree]:
    finisher = finisher_of(fn.name, types[0].kind if types else None)
    if finisher is None:
        return lambda a: over_inside(fn.builder(types)(a))
    numeric = types[0].kind in (Kind.INT2, Kind.INT4, Kind.INT8, Kind.NUMERIC) and fn.name not in (
        "array_agg",
        "list_agg",
    )
    kinds = [t.kind if numeric else Kind.TEXT for t in types]
    return lambda a: over_inside(finisher(rows_of(argument_fields(a, kinds)), types))


def _counted(
    b: Binder, name: str, t: SqlType, nodes: list[BoundNode], count: BoundNode, position: int | None
) -> _Bound:
    """ntile(n) and nth_value(x, n): Spark requires a constant number."""
    state = "22014" if name == "ntile" else "22016"
    number = to_type(b.ctx, count, INT4, position=position)
    if not isinstance(number, Const):
        raise unsupported(f"{name}() with a number that is no constant", position)
    known = number.value.as_py() if isinstance(number.value, pa.Scalar) else None
    if known is None:
        return name, t, nodes, lambda a: cast_to(null(), t)
    if known <= 0:
        raise InvalidValue(f"argument of {name} must be greater than zero", sqlstate=state)
    return f"{name} {known}", t, nodes, lambda a: over_call(call(name, *a, exp.Literal.number(known)))


def group_numbers(window: Window) -> Window:
    """The number of each row's group of peers in the window's order."""
    return Window(
        INT8,
        "group",
        (),
        window.partition,
        window.order,
        None,
        lambda a: cast(over_call(call("dense_rank")), "BIGINT"),
    )


def _shift(b: Binder, name: str, args: list[BoundNode], position: int | None) -> _Bound:
    value = settle(b.ctx, args[0])
    t = value.type
    offset = to_type(b.ctx, args[1], INT4) if len(args) > 1 else None
    if offset is not None and not isinstance(offset, Const):
        raise unsupported(f"{name}() with an offset that is no constant", position)
    nodes = [value, *([offset] if offset is not None else [])]
    if len(args) == 3:
        (value, default), t = unify(b.ctx, [value, args[2]], name.upper())
        assert offset is not None
        nodes = [value, offset, default]
    return name, t, nodes, lambda a: over_call(call(name, *a))
