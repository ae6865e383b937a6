"""Functions that convert any value to jsonb: to_jsonb, jsonb_build_array, jsonb_build_object, aggregates.

Called by the binder. Whole rows are allowed only here: `to_jsonb(t)` of a FROM item, and `to_jsonb(ROW(a,
b))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import FunctionCall, row_of
from tidemill.sql.bind.coerce import settle, to_type
from tidemill.sql.bind.errors import mismatch
from tidemill.sql.functions import json
from tidemill.sql.functions.jsonb_values import written
from tidemill.sql.functions.tree import Tree, call, string
from tidemill.sql.plan.expressions import BoundNode, Const, Op
from tidemill.types.model import JSONB, TEXT, Kind

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder

_NO_KEYS = frozenset({Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD, Kind.JSONB})


def document(b: Binder, source: exp.Expr, *, literal: bool) -> BoundNode:
    """The argument as jsonb; NULL stays NULL. `literal`: an argument of unknown type is text, else it is an
    error."""
    whole = _whole_row(b, source)
    if whole is not None:
        return whole
    node = b.bind(source)
    if node.type.kind is Kind.UNKNOWN and not literal:
        raise mismatch("could not determine polymorphic type because input has type unknown")
    return _as_document(settle(b.ctx, node))


def member(b: Binder, source: exp.Expr, *, literal: bool) -> BoundNode:
    """Like `document`, but NULL becomes null."""
    found = document(b, source, literal=literal)
    return Op(JSONB, "json member", (found,), lambda a: call("coalesce", a[0], string("null")))


def _as_document(node: BoundNode) -> BoundNode:
    t = node.type
    if t.kind is Kind.JSONB:
        return node
    return Op(JSONB, f"document {t}", (node,), lambda a: json.document(a[0], t))


def _whole_row(b: Binder, source: exp.Expr) -> BoundNode | None:
    fields = row_of(source)
    if fields is not None:
        nodes = [settle(b.ctx, n) for n in b.bind_all(fields)]
        return _object([(f"f{i + 1}", n) for i, n in enumerate(nodes)])
    if not isinstance(source, exp.Column) or source.table or b.scope.column(source.name, None) is not None:
        return None
    item = b.scope.item([source.name], None)
    if item is None:
        return None
    return _object([(v.name, b.scope.use(v)) for v in item.columns if not v.hidden])


def _object(pairs: Sequence[tuple[str, BoundNode]]) -> BoundNode:
    """An object with constant keys: its text with the members' texts inserted."""
    members = dict(pairs)  # the last of equal keys counts
    keys = sorted(members, key=lambda k: (len(k.encode()), k.encode()))
    nodes = tuple(_as_document(members[k]) for k in keys)

    def build(a: Sequence[Tree]) -> Tree:
        parts: list[Tree] = []
        for i, (key, value) in enumerate(zip(keys, a, strict=True)):
            head = "{" if i == 0 else ", "
            parts += [string(f"{head}{written(key)}: "), call("coalesce", value, string("null"))]
        return call("concat", *parts, string("}")) if parts else string("{}")

    return Op(JSONB, f"object {keys}", nodes, build)


def _to_jsonb(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    if len(call_.args) != 1:
        raise b.no_function(call_.name, b.bind_all(call_.args), position)
    return document(b, call_.args[0], literal=False)


def _build_array(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    nodes = tuple(member(b, a, literal=True) for a in call_.args)
    if not nodes:
        return Const(JSONB, pa.scalar("[]"))
    return Op(JSONB, "jsonb_build_array", nodes, lambda a: json.joined(call("array", *a)))


def _build_object(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    if not call_.args:
        return Const(JSONB, pa.scalar("{}"))
    if len(call_.args) % 2:
        raise TidemillError(
            "argument list must have even number of elements",
            hint="The arguments of jsonb_build_object() must consist of alternating keys and values.",
            sqlstate="22023",
            position=position,
        )
    keys = [_key(b, a, position) for a in call_.args[::2]]
    members = [document(b, a, literal=True) for a in call_.args[1::2]]
    texts = [k.value.as_py() if isinstance(k, Const) and k.value is not None else None for k in keys]
    if all(isinstance(t, str) for t in texts):
        return _object([(str(t), m) for t, m in zip(texts, members, strict=True)])
    count = len(keys)

    def build(a: Sequence[Tree]) -> Tree:
        values = [call("coalesce", m, string("null")) for m in a[count:]]
        return json.built_object(call("array", *a[:count]), call("array", *values))

    return Op(JSONB, "jsonb_build_object", (*keys, *members), build)


def _key(b: Binder, source: exp.Expr, position: int | None) -> BoundNode:
    node = settle(b.ctx, b.bind(source))
    if node.type.kind in _NO_KEYS:
        raise TidemillError(
            "key value must be scalar, not array, composite, or json", sqlstate="22023", position=position
        )
    return to_type(b.ctx, node, TEXT, position=position)


def aggregate_arguments(b: Binder, name: str, args: Sequence[exp.Expr]) -> list[BoundNode] | None:
    """The arguments of jsonb aggregates: documents, and keys as text; None for other aggregates."""
    if name in ("jsonb_agg", "jsonb_agg_strict") and len(args) == 1:
        strict = name.endswith("_strict")
        return [document(b, args[0], literal=False) if strict else member(b, args[0], literal=False)]
    if name.startswith("jsonb_object_agg") and len(args) == 2:
        absent = "strict" in name
        value = document(b, args[1], literal=True) if absent else member(b, args[1], literal=True)
        return [_key(b, args[0], None), value]
    return None


def subscripts(value: BoundNode, steps: Sequence[BoundNode]) -> BoundNode:
    """value['a'][0]; the steps are texts."""
    return Op(JSONB, "jsonb subscript", (value, *steps), lambda a: json.at_path(a[0], a[1:]))


FUNCTIONS: dict[str, Callable[[Binder, FunctionCall, int | None], BoundNode]] = {
    "to_jsonb": _to_jsonb,
    "jsonb_build_array": _build_array,
    "jsonb_build_object": _build_object,
}
