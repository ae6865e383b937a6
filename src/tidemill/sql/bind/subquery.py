"""Subqueries inside expressions: as a value, EXISTS, IN, = ANY and <> ALL; and ANY / ALL over arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.bind.calls import row_of
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.ir import Node, Op, Ref, Subquery, lower
from tidemill.sql.functions.tree import Tree, call, lambda_
from tidemill.types.arrow import element_type
from tidemill.types.model import BOOL, UNKNOWN, Kind, array

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder
    from tidemill.sql.bind.query import Bound


def _bind(b: Binder, query: exp.Expr) -> Bound:
    from tidemill.sql.bind.query import bind_level

    bound = bind_level(b.env, query, b.scope)
    for ref in bound.outer:
        # Spark resolves names of the next query outwards, no further.
        if not _owns(b, ref):
            raise unsupported(
                f'a subquery that names "{ref.label}" of a query beyond the one around it',
                position_of(query),
                "Join the tables instead.",
            )
    return bound


def _owns(b: Binder, ref: Ref) -> bool:
    from tidemill.sql.bind.ir import walk

    nodes = [v.node for i in b.scope.items for v in i.columns] + [v.node for v in b.scope.columns]
    return any(part == ref for node in nodes for part in walk(node))


def _scalar(b: Binder, node: exp.Expr) -> Node:
    bound = _bind(b, node.this if isinstance(node, exp.Subquery) else node)
    if len(bound.columns) != 1:
        raise SyntaxError_("subquery must return only one column", position=position_of(node))
    return Subquery(bound.columns[0].type, "scalar", bound.tree, tuple(bound.outer))


def _exists(b: Binder, node: exp.Expr) -> Node:
    bound = _bind(b, node.this)
    return Subquery(BOOL, "exists", bound.tree, tuple(bound.outer))


def bind_in(b: Binder, left: exp.Expr, query: exp.Expr) -> Node:
    """left IN (query); Spark's IN has SQL's three-valued answer, NOT IN too."""
    inner = query.this if isinstance(query, exp.Subquery) and not query.args.get("alias") else query
    bound = _bind(b, inner)
    lefts = row_of(left) or [left]
    if len(lefts) != len(bound.columns):
        few = "few" if len(bound.columns) < len(lefts) else "many"
        raise SyntaxError_(f"subquery has too {few} columns", position=position_of(left))
    operands: list[Node] = []
    casts: list[Node] = []
    for item, column, i in zip(lefts, bound.columns, range(len(lefts)), strict=True):
        right = Ref(column.type, "q", f"c{i}")
        equal = b.operator("=", [b.bind(item), right], position_of(item))
        if not isinstance(equal, Op) or equal.args[0].type.kind in (Kind.CHAR, Kind.INTERVAL):
            raise unsupported(f"IN over a subquery of type {column.type}", position_of(item))
        operands.append(equal.args[0])
        casts.append(equal.args[1])
    tree = bound.tree
    if any(not isinstance(c, Ref) for c in casts):
        from tidemill.sql.bind.tables import derived

        alias = b.ctx.alias()
        renamed = [_requalified(c, alias) for c in casts]
        tree = derived(bound.tree, alias, [lower(c) for c in renamed])
    return Subquery(BOOL, "in", tree, tuple(bound.outer), tuple(operands))


def _requalified(node: Node, alias: str) -> Node:
    from tidemill.sql.bind.ir import rewrite

    return rewrite(node, lambda n: Ref(n.type, alias, n.name) if isinstance(n, Ref) else None)


def bind_quantified(b: Binder, name: str, left: exp.Expr, right: exp.Expr) -> Node:
    """left op ANY/ALL (array or subquery)."""
    every = isinstance(right, exp.All)
    source = right.this
    while isinstance(source, exp.Paren):
        source = source.this
    position = position_of(left)
    if isinstance(source, exp.Subquery | exp.Select | exp.SetOperation | exp.Values):
        inner = source.this if isinstance(source, exp.Subquery) else source
        if name == "=" and not every:
            return bind_in(b, left, inner)
        if name == "<>" and every:
            from tidemill.sql.bind.special import negation

            return negation(bind_in(b, left, inner))
        raise unsupported(f"{name} {'ALL' if every else 'ANY'} over a subquery", position)
    value, items = b.bind(left), b.bind(source)
    if items.type.kind is Kind.UNKNOWN:
        wanted = value.type if value.type is not UNKNOWN and value.type.kind is not Kind.UNKNOWN else None
        if wanted is None:
            raise unsupported("ANY over values of unknown type", position)
        items = to_type(b.ctx, items, array(wanted), position=position)
    if items.type.kind is not Kind.ARRAY:
        raise TidemillError(
            "op ANY/ALL (array) requires array on right side", sqlstate="42809", position=position
        )
    # The comparison is resolved once for the element type and then applied to each element by a lambda.
    element = Ref(element_type(items.type), "", "e")
    compared = b.operator(name, [value, element], position)
    if compared.type != BOOL or not isinstance(compared, Op):
        raise TidemillError(
            "op ANY/ALL (array) requires operator to yield boolean", sqlstate="42809", position=position
        )
    test, operands = compared, compared.args
    cast_element = operands[1]
    spark = "forall" if every else "exists"

    def build(a: Sequence[Tree]) -> Tree:
        element_tree = _on_variable(lower(cast_element))
        return call(spark, a[1], lambda_("e", test.build([a[0], element_tree])))

    return Op(BOOL, f"{spark} {compared.key}", (operands[0], items), build)


def _on_variable(tree: Tree) -> Tree:
    """The element's reference as a lambda parameter."""
    holder = exp.Paren(this=tree)
    for found in list(holder.find_all(exp.Column)):
        if found.name == "e" and not found.table:
            found.replace(exp.column("e"))
    return holder.this


HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Node]] = {
    exp.Subquery: _scalar,
    exp.Exists: _exists,
}
