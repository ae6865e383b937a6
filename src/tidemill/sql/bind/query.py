"""Queries: SELECT, VALUES, set operations, WITH, ORDER BY and LIMIT.

`bind_level` binds one query at any depth and returns its plan, whose outputs are c0, c1, ... In a grouped
query, the select list is computed from the columns of the groups. So the binder, and not Spark, decides by
PostgreSQL's rules which names are valid after grouping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.bind.coerce import unify
from tidemill.sql.bind.constant import Constants
from tidemill.sql.bind.errors import mismatch, position_of, unsupported
from tidemill.sql.bind.expr import Env
from tidemill.sql.bind.limits import limited, ties
from tidemill.sql.bind.ordering import OutputColumn, order_output
from tidemill.sql.bind.scope import Scope
from tidemill.sql.bind.tables import columns_named
from tidemill.sql.functions.comparison import check_grouped
from tidemill.sql.functions.lattice import common_type
from tidemill.sql.plan.expressions import BoundNode, Ref, SortKey, is_constant
from tidemill.sql.plan.operators import Named, Operator, Project, SetOperation, Sort, outputs
from tidemill.types.model import Column, SqlType


@dataclass(frozen=True, slots=True)
class BoundParts:
    """A query bound at some depth; the outputs of its plan are c0, c1, ... `outer` are the columns of
    enclosing queries that the plan references."""

    plan: Operator
    columns: tuple[Column, ...]
    outer: Sequence[Ref] = field(default=())
    constants: Constants | None = None
    # The output expressions, if they are plain (those of a SELECT). Set operations coerce them.
    nodes: tuple[BoundNode, ...] = ()

    @property
    def types(self) -> list[SqlType]:
        return [c.type for c in self.columns]


def bind_level(env: Env, query: exp.Expr, parent: Scope | None) -> BoundParts:
    """Binds one query, with its WITH, ORDER BY and LIMIT."""
    with_ = query.args.get("with_")
    if with_ is not None:
        env = _with(env, with_, parent)
    if isinstance(query, exp.Subquery):
        return _parenthesised(env, query, parent)
    if isinstance(query, exp.Select):
        from tidemill.sql.bind.select import bind_select

        return bind_select(env, query, parent)
    if isinstance(query, exp.SetOperation):
        return _set_operation(env, query, parent)
    if isinstance(query, exp.Values):
        from tidemill.sql.bind.values import bind_values

        return _finish(env, bind_values(env, query, parent), query, parent)
    if isinstance(query, exp.Table):
        select = exp.Select(expressions=[exp.Star()])
        select.set("from_", exp.From(this=query.copy()))
        return bind_level(env, select, parent)
    raise unsupported(f"{type(query).__name__} as a query", position_of(query))


def named(columns: Sequence[Column], names: Sequence[str], item: exp.CTE) -> tuple[Column, ...]:
    """The columns of a WITH query, the first ones with the names from its column list."""
    if len(names) > len(columns):
        raise TidemillError(
            f'WITH query "{item.alias}" has {len(columns)} columns available '
            f"but {len(names)} columns specified",
            sqlstate="42P10",
            position=position_of(item),
        )
    return tuple(replace(c, name=names[i]) if i < len(names) else c for i, c in enumerate(columns))


def _with(env: Env, with_: exp.With, parent: Scope | None) -> Env:
    ctes = dict(env.ctes)
    own: set[str] = set()
    for item in with_.expressions:
        name = item.alias
        if name in own:
            raise TidemillError(
                f'WITH query name "{name}" specified more than once',
                sqlstate="42712",
                position=position_of(item),
            )
        own.add(name)
        names = [c.name for c in (item.args["alias"].args.get("columns") or ())]
        here = replace(env, ctes=ctes)
        if with_.args.get("recursive") and names_itself(item):
            from tidemill.sql.bind.recursive import bind_recursive

            bound = bind_recursive(here, item, names, parent)
        else:
            bound = bind_level(here, item.this, parent)
        columns = named(bound.columns, names, item)
        ctes[name] = replace(bound, columns=columns)
    return replace(env, ctes=ctes)


def names_itself(item: exp.CTE) -> bool:
    return any(t.name == item.alias and not t.args.get("db") for t in item.this.find_all(exp.Table))


def _parenthesised(env: Env, query: exp.Subquery, parent: Scope | None) -> BoundParts:
    inner = bind_level(env, query.this, parent)
    if any(query.args.get(k) for k in ("order", "limit", "offset")):
        return _finish(env, inner, query, parent)
    return inner


def _set_operation(env: Env, query: exp.SetOperation, parent: Scope | None) -> BoundParts:
    name = type(query).__name__.upper()
    sides = [bind_level(env, query.this, parent), bind_level(env, query.expression, parent)]
    if len(sides[0].columns) != len(sides[1].columns):
        raise SyntaxError_(
            f"each {name} query must have the same number of columns", position=position_of(query.expression)
        )
    aliases = [env.ctx.alias(), env.ctx.alias()]
    nodes_of: list[list[BoundNode]] = [[], []]
    columns: list[Column] = []
    for i, (left, right) in enumerate(zip(sides[0].columns, sides[1].columns, strict=True)):
        raw = [_raw_output(s, i) for s in sides]
        target, pair = common_type([n.type for n in raw])
        if target is None:
            assert pair is not None
            raise mismatch(
                f"{name} types {pair[0]} and {pair[1]} cannot be matched", position_of(query.expression)
            )
        refs = [Ref(c.type, a, f"c{i}") for c, a in zip((left, right), aliases, strict=True)]
        typed, t = _through(env, raw, refs)
        columns.append(Column(left.name, t))
        if query.args.get("distinct"):
            check_grouped(typed[0].type, name)
        for nodes, node in zip(nodes_of, typed, strict=True):
            nodes.append(node)
    left, right = (
        Project(Named(s.plan, a), outputs(nodes))
        for s, a, nodes in zip(sides, aliases, nodes_of, strict=True)
    )
    plan = SetOperation(name, bool(query.args.get("distinct")), left, right)
    outer = [*sides[0].outer, *(r for r in sides[1].outer if r not in sides[0].outer)]
    return _finish(env, BoundParts(plan, tuple(columns), outer), query, parent)


def _raw_output(side: BoundParts, index: int) -> BoundNode:
    """A literal of unknown type in one side's select list takes the type of the other side."""
    if index < len(side.nodes):
        return side.nodes[index]
    return Ref(side.columns[index].type, "", "")


def _through(env: Env, raw: Sequence[BoundNode], refs: Sequence[Ref]) -> tuple[list[BoundNode], SqlType]:
    """The columns of the sides, converted to their common type: by reference, or, for untyped literals, as
    the literal itself."""
    from tidemill.types.model import Kind

    nodes = [r if n.type.kind is not Kind.UNKNOWN else n for n, r in zip(raw, refs, strict=True)]
    return unify(env.ctx, nodes, "UNION")


def _finish(env: Env, bound: BoundParts, query: exp.Expr, parent: Scope | None) -> BoundParts:
    """ORDER BY, LIMIT and OFFSET of a set operation, VALUES or a query in parentheses. They see only output
    columns."""
    order = query.args.get("order")
    if ties(query) is not None:
        return _finish_ties(env, bound, query)
    if order is None and not query.args.get("limit") and not query.args.get("offset"):
        return bound
    plan = bound.plan
    if order is not None:
        alias = env.ctx.alias()
        refs, keys = _order_keys(bound, alias, order)
        plan = Sort(Project(Named(plan, alias), outputs(refs)), keys)
    plan = limited(env, plan, query)
    return bound if plan is bound.plan else replace(bound, plan=plan, constants=None)


def _finish_ties(env: Env, bound: BoundParts, query: exp.Expr) -> BoundParts:
    """FETCH FIRST n ROWS WITH TIES, in a separate SELECT."""
    from tidemill.sql.bind.distinct import with_ties

    limit = ties(query)
    assert limit is not None
    keys = _order_keys(bound, env.ctx.alias(), query.args.get("order"))[1]
    alias = env.ctx.alias()
    whole = Project(Named(bound.plan, alias), outputs(columns_named(alias, bound.types)))
    outer = env.ctx.alias()
    kept = Named(with_ties(env, whole, keys, query, limit), outer)
    plan = Sort(Project(kept, outputs(columns_named(outer, bound.types))), keys)
    return replace(bound, plan=plan, constants=None)


def _order_keys(
    bound: BoundParts, alias: str, order: exp.Order | None
) -> tuple[list[Ref], tuple[SortKey, ...]]:
    """The outputs as columns of `alias`, and the keys of ORDER BY over them."""
    refs = [Ref(c.type, alias, f"c{i}", c.name) for i, c in enumerate(bound.columns)]
    named = [OutputColumn(c.name, r) for c, r in zip(bound.columns, refs, strict=True)]
    if order is None:
        return refs, ()
    return refs, tuple(k.key for k in order_output(order, named, None, "this query's ORDER BY"))


def constants_of(nodes: Sequence[BoundNode]) -> Constants | None:
    """One row, if it consists of constants."""
    if not all(is_constant(n) for n in nodes):
        return None
    return Constants(tuple((n,) for n in nodes), tuple(n.type for n in nodes), 1)
