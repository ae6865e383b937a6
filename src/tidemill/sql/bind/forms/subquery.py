"""Subqueries in expressions: scalar, ARRAY, EXISTS, IN, ANY and ALL; and ANY and ALL over arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.bind.calls import row_of
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.forms import bounds
from tidemill.sql.bind.forms.bounds import COMPARISONS
from tidemill.sql.functions.collected import ROWS
from tidemill.sql.functions.signature import Fn, made_of_rows
from tidemill.sql.functions.tree import (
    Tree,
    call,
    cast_to,
    lambda_,
    let_all,
)
from tidemill.sql.lower.expressions import lower
from tidemill.sql.plan.expressions import Aggregate, BoundNode, Op, Ref, SortKey, Subquery
from tidemill.sql.plan.operators import Group, Limit, Named, Operator, Output, Project, Sort, outputs
from tidemill.types.arrow import element_type
from tidemill.types.model import BOOL, UNKNOWN, Kind, array

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder
    from tidemill.sql.bind.query import BoundParts


def _bind(b: Binder, query: exp.Expr) -> BoundParts:
    from tidemill.sql.bind.query import bind_level

    bound = bind_level(b.env, query, b.scope)
    for ref in bound.outer:
        # Spark resolves names only in the directly enclosing query.
        if not _owns(b, ref):
            raise unsupported(
                f'a subquery that names "{ref.label}" of a query beyond the one around it',
                position_of(query),
                "Join the tables instead.",
            )
    return bound


def _owns(b: Binder, ref: Ref) -> bool:
    from tidemill.sql.plan.expressions import walk

    nodes = [v.node for i in b.scope.items for v in i.columns] + [v.node for v in b.scope.columns]
    return any(part == ref for node in nodes for part in walk(node))


def _scalar(b: Binder, node: exp.Expr) -> BoundNode:
    bound = _bind(b, node.this if isinstance(node, exp.Subquery) else node)
    if len(bound.columns) != 1:
        raise SyntaxError_("subquery must return only one column", position=position_of(node))
    return Subquery(bound.columns[0].type, "scalar", bound.plan, tuple(bound.outer))


def _exists(b: Binder, node: exp.Expr) -> BoundNode:
    bound = _bind(b, node.this)
    return Subquery(BOOL, "exists", bound.plan, tuple(bound.outer))


def bind_in(b: Binder, left: exp.Expr, query: exp.Expr) -> BoundNode:
    """left IN (query). Spark's IN has SQL's three-valued result, also for NOT IN."""
    inner = query.this if isinstance(query, exp.Subquery) and not query.args.get("alias") else query
    bound = _bind(b, inner)
    row = row_of(left)
    lefts = [left] if row is None else row
    if len(lefts) != len(bound.columns):
        few = "few" if len(bound.columns) < len(lefts) else "many"
        raise SyntaxError_(f"subquery has too {few} columns", position=position_of(left))
    operands: list[BoundNode] = []
    casts: list[BoundNode] = []
    for item, output, i in zip(lefts, bound.columns, range(len(lefts)), strict=True):
        right = Ref(output.type, "q", f"c{i}")
        equal = b.operator("=", [b.bind(item), right], position_of(item))
        if not isinstance(equal, Op) or equal.args[0].type.kind in (Kind.CHAR, Kind.INTERVAL):
            raise unsupported(f"IN over a subquery of type {output.type}", position_of(item))
        operands.append(equal.args[0])
        casts.append(equal.args[1])
    plan = bound.plan
    if any(not isinstance(c, Ref) for c in casts):
        alias = b.ctx.alias()
        plan = Project(Named(plan, alias), outputs(_requalified(c, alias) for c in casts))
    return Subquery(BOOL, "in", plan, tuple(bound.outer), tuple(operands))


def _requalified(node: BoundNode, alias: str) -> BoundNode:
    from tidemill.sql.plan.expressions import rewrite

    return rewrite(node, lambda n: Ref(n.type, alias, n.name) if isinstance(n, Ref) else None)


def bind_array(b: Binder, query: exp.Expr) -> BoundNode:
    """ARRAY(query)."""
    found = _rows_as_array(b, query)
    if element_type(found.type).kind is Kind.ARRAY:
        raise unsupported("an array of arrays", position_of(query))
    return found


def _rows_as_array(b: Binder, query: exp.Expr) -> BoundNode:
    """The rows of a query with one column, in order, as an array; empty without rows."""
    bound = _bind(b, query)
    if len(bound.columns) != 1:
        raise SyntaxError_("subquery must return only one column", position=position_of(query))
    value = bound.columns[0].type
    t = array(value)
    alias = b.ctx.alias()
    plan, keys = _with_keys(bound.plan, alias)
    fn = Fn(ROWS, (value,), t, made_of_rows, aggregate=True)
    rows = Aggregate(t, fn, (Ref(value, alias, "c0"),), order=keys)
    whole = Subquery(t, "scalar", Group(Named(plan, alias), ((),), (), (rows,)), tuple(bound.outer))
    return Op(t, ROWS, (whole,), lambda a: call("coalesce", a[0], cast_to(call("array"), t)))


def _with_keys(plan: Operator, alias: str) -> tuple[Operator, tuple[SortKey, ...]]:
    """An ordered query with its sort keys among the columns, and the keys as columns of `alias`, because
    Spark's aggregates collect in no order."""
    limits: list[Limit] = []
    made = plan
    while isinstance(made, Limit):
        limits.append(made)
        made = made.input
    if isinstance(made, Sort):
        keys = made.keys
        made = made if limits else made.input
    elif isinstance(made, Project) and isinstance(made.input, Sort):
        sort, own = made.input, {o.name for o in made.outputs}
        keys = sort.keys
        source = sort.input.alias if isinstance(sort.input, Named) else ""
        hidden = {k.node.name: k.node.type for k in keys if isinstance(k.node, Ref)}
        more = [Output(n, Ref(t, source, n)) for n, t in sorted(hidden.items()) if n not in own]
        made = Project(sort if limits else sort.input, (*made.outputs, *more))
    else:
        return plan, ()
    for limit in reversed(limits):
        made = replace(limit, input=made)
    return made, tuple(replace(k, node=_requalified(k.node, alias)) for k in keys)


def bind_quantified(b: Binder, name: str, left: exp.Expr, right: exp.Expr) -> BoundNode:
    """left op ANY/ALL (array or subquery)."""
    every = isinstance(right, exp.All)
    source = right.this
    while isinstance(source, exp.Paren):
        source = source.this
    position = position_of(left)
    if isinstance(source, exp.Array) and _is_query(source) and source.expressions and name in COMPARISONS:
        # ANY (ARRAY(query)) is ANY (query), because Spark's functions over arrays accept no subquery.
        source = source.expressions[0]
    if isinstance(source, exp.Subquery | exp.Select | exp.SetOperation | exp.Values):
        inner = source.this if isinstance(source, exp.Subquery) else source
        if name == "=" and not every:
            return bind_in(b, left, inner)
        if name == "<>" and every:
            from tidemill.sql.bind.forms.special import negation

            return negation(bind_in(b, left, inner))
        return bounds.compared(b, name, left, _bind(b, inner), every=every)
    if isinstance(source, exp.Array) and name in _IN_PYTHON and not _is_query(source):
        # A lambda cannot contain functions in Python, so each element is compared separately.
        from tidemill.sql.bind.forms.special import conjunction, disjunction

        tests = [b.operator(name, [b.bind(left), b.bind(e)], position) for e in source.expressions]
        return conjunction(tests) if every else disjunction(tests)
    value, items = b.bind(left), b.bind(source)
    if items.type.kind is Kind.UNKNOWN:
        wanted = value.type if value.type is not UNKNOWN and value.type.kind is not Kind.UNKNOWN else None
        if wanted is None:
            raise unsupported("ANY over values of unknown type", position)
        items = to_type(b.ctx, items, array(wanted), position=position)
    if items.type.kind not in (Kind.ARRAY, Kind.LIST):
        raise TidemillError(
            "op ANY/ALL (array) requires array on right side", sqlstate="42809", position=position
        )
    # The comparison is resolved once for the element type, and a lambda applies it to each element.
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
        # Both are computed outside the lambda, where they may run in Python.
        return let_all(
            list(a), lambda v: call(spark, v[1], lambda_("e", test.build([v[0], element_tree.copy()])))
        )

    return Op(BOOL, f"{spark} {compared.key}", (operands[0], items), build)


# Operators whose Spark form may be a Python function.
_IN_PYTHON = frozenset({"~", "~*", "!~", "!~*"})


def _is_query(node: exp.Array) -> bool:
    items = node.expressions
    return not items or (len(items) == 1 and isinstance(items[0], exp.Query | exp.Values))


def _on_variable(tree: Tree) -> Tree:
    """The element's reference as a lambda parameter."""
    holder = exp.Paren(this=tree)
    for found in list(holder.find_all(exp.Column)):
        if found.name == "e" and not found.table:
            found.replace(exp.column("e"))
    return holder.this


HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], BoundNode]] = {
    exp.Subquery: _scalar,
    exp.Exists: _exists,
}
