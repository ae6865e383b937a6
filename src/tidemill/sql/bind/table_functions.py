"""Functions in FROM: generate_series and unnest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.sql.bind.calls import call_of
from tidemill.sql.bind.coerce import unify
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.ir import Node, Ref, lower, walk
from tidemill.sql.bind.scope import Scope
from tidemill.sql.functions.tree import (
    Tree,
    and_,
    bigint,
    call,
    case,
    cast_to,
    eq,
    ge,
    gt,
    le,
    let_all,
    lt,
    or_,
    raise_error,
)
from tidemill.types.arrow import element_type
from tidemill.types.model import INT4, INT8, Column, Kind, SqlType

if TYPE_CHECKING:
    from tidemill.sql.bind.query import Bound


def bind_table_function(env: Env, scope: Scope, node: exp.Expr, function: exp.Expr) -> tuple[Bound, bool]:
    """The function's rows as a query, and whether it names columns of items to its left."""
    from tidemill.sql.bind.query import Bound

    position = position_of(node)
    if node.args.get("ordinality") or node.args.get("offset"):
        raise unsupported("WITH ORDINALITY", position)
    if isinstance(function, exp.Unnest):
        name, args = "unnest", list(function.expressions)
    else:
        call_ = call_of(function)
        if call_ is None:
            raise unsupported("this function in FROM", position)
        name, args = call_.name, list(call_.args)
    binder = Binder(env, scope, "functions in FROM")
    nodes = binder.bind_all(args)
    if name == "generate_series" and len(nodes) in (2, 3):
        rows, t = _series(binder, nodes, position)
    elif name == "unnest" and len(nodes) == 1 and nodes[0].type.kind is Kind.ARRAY:
        rows, t = lower(nodes[0]), element_type(nodes[0].type)
    elif name in ("generate_series", "unnest"):
        raise binder.no_function(name, nodes, position)
    else:
        raise unsupported(f"function {name}() in FROM", position)
    tree = exp.Select(
        expressions=[exp.Alias(this=call("explode", rows), alias=exp.to_identifier("c0", quoted=True))]
    )
    outer = [n for arg in nodes for n in walk(arg) if isinstance(n, Ref)]
    return Bound(tree, (Column(name, t),), outer), bool(outer)


def _series(b: Binder, nodes: list[Node], position: int | None) -> tuple[Tree, SqlType]:
    """generate_series over integers. Spark's sequence counts down by itself and refuses a step of the wrong
    sign; ours is then empty."""
    typed, t = unify(b.ctx, nodes, "generate_series")
    if t not in (INT4, INT8):
        raise unsupported(f"generate_series() of type {t}", position)
    trees = [cast_to(lower(n), INT8) for n in typed]
    if len(trees) == 2:
        trees.append(bigint(1))

    def build(v: list[Tree]) -> Tree:
        start, stop, step = v
        up = and_(gt(step, bigint(0)), le(start, stop))
        down = and_(lt(step, bigint(0)), ge(start, stop))
        return case(
            (eq(step, bigint(0)), raise_error("22023", "step size cannot equal zero")),
            (or_(up, down), call("sequence", start, stop, step)),
            otherwise=cast_to(call("array"), SqlType(Kind.ARRAY, element=INT8)),
        )

    return cast_to(let_all(trees, build), SqlType(Kind.ARRAY, element=t)), t
