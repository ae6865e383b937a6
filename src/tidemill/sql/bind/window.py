"""Window functions: OVER (PARTITION BY ... ORDER BY ... frame)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.aggregate import ordered, sort_key
from tidemill.sql.bind.calls import FunctionCall, call_of
from tidemill.sql.bind.coerce import settle, to_type, unify
from tidemill.sql.bind.errors import WindowingError, position_of, unsupported
from tidemill.sql.bind.ir import Node, Window, lower
from tidemill.sql.functions import signature
from tidemill.sql.functions.comparison import check_grouped, comparable
from tidemill.sql.functions.resolve import resolve_function
from tidemill.sql.functions.tree import Tree, call, cast
from tidemill.types.model import FLOAT8, INT4, INT8, SqlType

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder

# name -> result type, for those without arguments. Spark counts ranks in INT.
_RANKS: dict[str, SqlType] = {
    "row_number": INT8,
    "rank": INT8,
    "dense_rank": INT8,
    "percent_rank": FLOAT8,
    "cume_dist": FLOAT8,
}
_VALUES = frozenset({"lag", "lead", "first_value", "last_value", "nth_value", "ntile"})


def is_window_function(name: str) -> bool:
    return name in _RANKS or name in _VALUES


def bind_window(b: Binder, node: exp.Window) -> Node:
    position = position_of(node)
    if not b.aggregates:
        raise WindowingError(f"window functions are not allowed in {b.clause}", position=position)
    inner = node.this
    where: exp.Expr | None = None
    if isinstance(inner, exp.Filter):
        raise unsupported("FILTER of a window function", position)
    found = call_of(inner)
    if found is None:
        raise unsupported("this window function", position)
    if found.distinct or found.order:
        raise unsupported("DISTINCT or ORDER BY in a window function", position)
    del where
    key, t, args, build = _call(b, found, position)
    spec = _resolved_spec(b, node, position)
    partition = tuple(settle(b.ctx, b.bind(p)) for p in spec.args.get("partition_by") or ())
    for p in partition:
        check_grouped(p.type, "PARTITION BY")
    order_node = spec.args.get("order")
    order = tuple(sort_key(b, o) for o in order_node.expressions) if order_node is not None else ()
    frame = spec.args.get("spec")
    return Window(t, key, tuple(args), partition, order, _frame(frame, position), build)


def _resolved_spec(b: Binder, node: exp.Window, position: int | None) -> exp.Expr:
    """OVER w and OVER (w ORDER BY ...): only the plain name is supported."""
    alias = node.args.get("alias")
    if alias is None:
        return node
    if node.args.get("partition_by") or node.args.get("order") or node.args.get("spec"):
        raise unsupported("a window that extends another", position)
    named = b.windows.get(alias.name)
    if named is None:
        raise TidemillError(f'window "{alias.name}" does not exist', sqlstate="42704", position=position)
    return named


def _frame(spec: exp.Expr | None, position: int | None) -> exp.Expr | None:
    """ROWS frames with literal bounds mean the same in Spark; the default frame too."""
    if spec is None:
        return None
    if str(spec.args.get("kind")).upper() != "ROWS" or spec.args.get("exclude"):
        raise unsupported("a RANGE or GROUPS frame", position)
    for side in ("start", "end"):
        bound = spec.args.get(side)
        if isinstance(bound, exp.Expr) and not (isinstance(bound, exp.Literal) and not bound.is_string):
            raise unsupported("a window frame whose bound is no number", position)
    return spec.copy()


_Bound = tuple[str, SqlType, list[Node], Callable[[Sequence[Tree]], Tree]]


def _call(b: Binder, found: FunctionCall, position: int | None) -> _Bound:
    name = found.name
    if name in _RANKS and not found.args:
        t = _RANKS[name]
        ddl = "BIGINT" if t is INT8 else "DOUBLE"
        return name, t, [], lambda a: cast(_over(call(name)), ddl)
    args = b.bind_all(found.args)
    if name in ("first_value", "last_value") and len(args) == 1:
        value = settle(b.ctx, args[0])
        return name, value.type, [value], lambda a: _over(call(name, a[0]))
    if name in ("lag", "lead") and 1 <= len(args) <= 3:
        return _shift(b, name, args, position)
    if name in ("ntile", "nth_value"):
        raise unsupported(f"window function {name}", position)
    resolved = resolve_function(name, [a.type for a in args])
    if resolved is None or not signature.is_aggregate_name(name):
        raise b.no_function(name, args, position)
    if not resolved.fn.aggregate or not resolved.fn.windowed:
        raise unsupported(f"{name}() as a window function", position)
    coerced = [to_type(b.ctx, a, t) for a, t in zip(args, resolved.args, strict=True)]
    fn = resolved.fn
    return f"{name}({resolved.args})", resolved.result, coerced, lambda a: _over_inside(fn.build(a))


def _shift(b: Binder, name: str, args: list[Node], position: int | None) -> _Bound:
    from tidemill.sql.bind.ir import Const

    value = settle(b.ctx, args[0])
    offset = to_type(b.ctx, args[1], INT4) if len(args) > 1 else None
    if offset is not None and not isinstance(offset, Const):
        raise unsupported(f"{name}() with an offset that is no constant", position)
    nodes = [value, *([offset] if offset is not None else [])]
    if len(args) == 3:
        (value, default), _ = unify(b.ctx, [value, args[2]], name.upper())
        assert offset is not None
        nodes = [value, offset, default]
    return name, value.type, nodes, lambda a: _over(call(name, *a))


_PENDING = "tidemill_over"


def _over(tree: Tree) -> Tree:
    """Marks the Spark call that the OVER clause belongs to."""
    tree.meta[_PENDING] = True
    return tree


def _over_inside(tree: Tree) -> Tree:
    from tidemill.sql.bind.aggregate import is_spark_aggregate

    for found in tree.walk():
        if is_spark_aggregate(found):
            found.meta[_PENDING] = True
    return tree


def lower_window(node: Window) -> Tree:
    tree = node.build([lower(a) for a in node.args])
    holder = exp.Paren(this=tree.copy())
    for found in list(holder.walk()):
        if found.meta.pop(_PENDING, False):
            found.replace(_window(found.copy(), node))
    return holder.this


def _window(function: Tree, node: Window) -> Tree:
    order = exp.Order(expressions=[ordered(k) for k in node.order]) if node.order else None
    return exp.Window(
        this=function,
        partition_by=[comparable(lower(p), p.type) for p in node.partition],
        order=order,
        spec=node.frame.copy() if node.frame is not None else None,
        over="OVER",
    )
