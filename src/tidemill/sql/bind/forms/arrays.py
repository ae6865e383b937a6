"""Arrays and lists in expressions: constructors, subscripts, slices; and subscripts of jsonb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.coerce import explicit_cast, to_type, unify
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.forms import json_calls
from tidemill.sql.functions.arrays import slice_of
from tidemill.sql.functions.lattice import INTEGERS
from tidemill.sql.functions.tree import Tree, add, call, cast_to, integer, sub
from tidemill.sql.plan.expressions import BoundNode, Const, Op
from tidemill.types.arrow import element_type
from tidemill.types.model import INT4, TEXT, Kind, SqlType, array, list_

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


def empty_array(t: SqlType) -> BoundNode:
    return Op(t, "array", (), lambda a: cast_to(call("array"), t))


def _array(b: Binder, node: exp.Expr) -> BoundNode:
    items = list(node.expressions)
    if len(items) == 1 and isinstance(items[0], exp.Query | exp.Values):
        from tidemill.sql.bind.forms.subquery import bind_array

        return bind_array(b, items[0])
    return _constructed(b, node, "ARRAY", "array", array)


def _list(b: Binder, node: exp.Expr) -> BoundNode:
    return _constructed(b, node, "LIST", "list", list_)


def _constructed(
    b: Binder, node: exp.Expr, what: str, word: str, of: Callable[[SqlType], SqlType]
) -> BoundNode:
    items = list(node.expressions)
    if not items:
        raise TidemillError(
            f"cannot determine type of empty {word}",
            hint=f"Explicitly cast to the desired type, for example {what}[]::{of(INT4)}.",
            sqlstate="42P18",
            position=position_of(node),
        )
    nodes, t = unify(b.ctx, b.bind_all(items), what, [position_of(i) for i in items])
    if t.kind is Kind.ARRAY and what == "ARRAY":
        raise unsupported("an array of arrays", position_of(node), "Use a list of lists: LIST[LIST[1, 2]].")
    return Op(of(t), word, tuple(nodes), lambda a: call("array", *a))


def _bracket(b: Binder, node: exp.Expr) -> BoundNode:
    steps: list[exp.Bracket] = []
    source = node
    while isinstance(source, exp.Bracket):
        steps.insert(0, source)
        source = source.this
    value = b.bind(source)
    if value.type.kind is Kind.JSONB:
        return json_calls.subscripts(value, [_json_step(b, s) for s in steps])
    slices = any(isinstance(s.expressions[0], exp.Slice) for s in steps)
    if value.type.kind is Kind.ARRAY and len(steps) > 1 and not slices:
        # Arrays have one dimension, so a second dimension is empty.
        return Const(element_type(value.type), None)
    for step in steps:
        value = _element(b, value, step, position_of(node))
    return value


def _element(b: Binder, value: BoundNode, step: exp.Bracket, position: int | None) -> BoundNode:
    if value.type.kind not in (Kind.ARRAY, Kind.LIST):
        raise TidemillError(
            f"cannot subscript type {value.type} because it does not support subscripting",
            sqlstate="42804",
            position=position,
        )
    item = step.expressions[0]
    if isinstance(item, exp.Slice):
        return _slice(b, value, item)
    t = element_type(value.type)
    index = _index(b, item)
    if shifted(step):
        return Op(t, "element", (value, index), lambda a: call("get", a[0], a[1]))
    return Op(t, "element", (value, index), lambda a: call("get", a[0], sub(a[1], integer(1))))


def _index(b: Binder, item: exp.Expr) -> BoundNode:
    return explicit_cast(b.ctx, b.bind(item), INT4, position_of(item))


def _slice(b: Binder, value: BoundNode, item: exp.Slice) -> BoundNode:
    """The bounds are as written: sqlglot shifts only single subscripts."""
    bounds = [item.args.get("this"), item.args.get("expression")]
    given = [None if bound is None else _index(b, bound) for bound in bounds]
    nodes = (value, *(n for n in given if n is not None))
    t = value.type

    def build(a: Sequence[Tree]) -> Tree:
        rest = list(a[1:])
        low = rest.pop(0) if given[0] is not None else None
        high = rest.pop(0) if given[1] is not None else None
        return cast_to(slice_of(a[0], low, high), t)

    shape = "".join("-" if n is None else "n" for n in given)
    return Op(t, f"slice {shape}", nodes, build)


def _json_step(b: Binder, step: exp.Bracket) -> BoundNode:
    """A key or a position, as text."""
    item = step.expressions[0]
    if isinstance(item, exp.Slice):
        raise TidemillError(
            "jsonb subscript does not support slices", sqlstate="42804", position=position_of(item)
        )
    node = b.bind(item)
    if node.type.kind not in INTEGERS:
        return to_type(b.ctx, node, TEXT, position=position_of(item))
    index = to_type(b.ctx, node, INT4, position=position_of(item))
    if shifted(step):
        index = Op(INT4, "unshifted", (index,), lambda a: add(a[0], integer(1)))
    return Op(TEXT, "step", (index,), lambda a: cast_to(a[0], TEXT))


def shifted(node: exp.Bracket) -> bool:
    """Undo sqlglot's shift of an index. sqlglot counts elements from 0: it subtracts 1 from an integer index
    of an array, or of a value of unknown type. It annotates the nodes that it has examined, so an index that
    it did not shift has a type other than integer."""
    base, t = node.this.type, node.expressions[0].type
    if base is None or base.this not in (exp.DType.UNKNOWN, exp.DType.ARRAY):
        return False
    return t is None or t.this in exp.DataType.INTEGER_TYPES


HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], BoundNode]] = {
    exp.Array: _array,
    exp.List: _list,
    exp.Bracket: _bracket,
}
