"""FROM: tables, views, subqueries, VALUES, functions and joins, as operators and a scope.

Every item gets a separate alias that is unique in the statement. Only the scope uses the alias that the user
wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError, UndefinedObject
from tidemill.sql.bind.coerce import unify
from tidemill.sql.bind.colname import column_name
from tidemill.sql.bind.context import MAX_VIEW_DEPTH
from tidemill.sql.bind.errors import AmbiguousColumn, position_of, unsupported
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.forms.special import conjunction
from tidemill.sql.bind.forms.table_functions import NAMED_COLUMN, bind_table_function
from tidemill.sql.bind.scope import Item, Scope, Visible, columns_of
from tidemill.sql.functions.tree import call
from tidemill.sql.plan.expressions import BoundNode, Op, Ref, walk
from tidemill.sql.plan.operators import Join, Named, OneRow, Operator, Scan
from tidemill.types.model import SqlType, for_spark

if TYPE_CHECKING:
    from tidemill.sql.bind.query import BoundParts


@dataclass(slots=True)
class From:
    """A FROM item or join, and the names that it makes visible."""

    plan: Operator
    items: list[Item]
    columns: list[Visible]
    # Columns of enclosing queries (or of items to the left) that its subqueries reference.
    outer: list[Ref] = field(default_factory=lambda: list[Ref]())


def columns_named(alias: str, types: Sequence[SqlType]) -> list[Ref]:
    """The outputs c0, c1, ... of the query named `alias`."""
    return [Ref(t, alias, f"c{i}") for i, t in enumerate(types)]


def bind_from(env: Env, query: exp.Select, parent: Scope | None) -> tuple[Operator, Scope]:
    """The FROM clause of a SELECT (with the joins that follow it) and its scope."""
    scope = Scope(env.ctx, parent=parent)
    clause = query.args.get("from_")
    joins: list[exp.Join] = list(query.args.get("joins") or ())
    if clause is None:
        return OneRow(), scope
    whole = _joined(env, clause.this, joins, parent, [])
    _check_names(whole.items)
    scope.items, scope.columns = whole.items, whole.columns
    own = {part.table for v in whole.columns for part in walk(v.node) if isinstance(part, Ref)}
    own |= {
        part.table for i in whole.items for v in i.columns for part in walk(v.node) if isinstance(part, Ref)
    }
    scope.outer += [ref for ref in dict.fromkeys(whole.outer) if ref.table not in own]
    return whole.plan, scope


def _check_names(items: Sequence[Item]) -> None:
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for item in items:
        key = (item.name, item.qualified[:-1] if item.qualified else ())
        if item.name and key in seen:
            raise TidemillError(f'table name "{item.name}" specified more than once', sqlstate="42712")
        seen.add(key)


def _joined(
    env: Env, first: exp.Expr, joins: Sequence[exp.Join], parent: Scope | None, before: Sequence[From]
) -> From:
    left = _item(env, first, parent, before)
    for join in joins:
        left = _join(env, left, join, parent, before)
    return left


def _item(env: Env, node: exp.Expr, parent: Scope | None, left: Sequence[From]) -> From:
    """One item. `left` are the items that a LATERAL item may reference."""
    if isinstance(node, exp.Table):
        if isinstance(node.this, exp.Func):
            inner = _function(env, node, node.this, parent, left)
        else:
            inner = _relation(env, node)
        return _own_joins(env, inner, node, parent, left)
    if isinstance(node, exp.Subquery):
        if isinstance(node.this, exp.Query) and not isinstance(node.this, exp.Table | exp.Subquery):
            return _own_joins(env, _subquery(env, node, node.this, parent), node, parent, left)
        if (
            isinstance(node.this, exp.Subquery)
            and node.this.args.get("alias") is None
            and not node.this.args.get("joins")
        ):
            return _item(env, _realiased(node), parent, left)
        inner = _joined(env, node.this, node.this.args.get("joins") or (), parent, left)
        return _own_joins(env, _parenthesised(inner, node), node, parent, left)
    if isinstance(node, exp.Values):
        return _subquery(env, node, node, parent)
    if isinstance(node, exp.Lateral):
        return _lateral(env, node, parent, left)
    if isinstance(node, exp.Unnest):
        return _function(env, node, node, parent, left)
    raise unsupported(f"{type(node).__name__} in FROM", position_of(node))


def _realiased(node: exp.Subquery) -> exp.Expr:
    """((query)) AS a."""
    inner = node.this.copy()
    inner.set("alias", node.args.get("alias"))
    inner.set("joins", node.args.get("joins"))
    return inner


def _own_joins(env: Env, item: From, node: exp.Expr, parent: Scope | None, left: Sequence[From]) -> From:
    """Joins that the parser attached to the item itself (inside parentheses, the caller handles them)."""
    if isinstance(node.parent, exp.Subquery) and node.parent.this is node:
        return item
    for join in node.args.get("joins") or ():
        item = _join(env, item, join, parent, left)
    return item


def _parenthesised(inner: From, node: exp.Subquery) -> From:
    """(a JOIN b) [AS x (names)]."""
    alias = _alias(node)
    if alias is None:
        return inner
    shown = [v for v in inner.columns if not v.hidden]
    names = _renamed([v.name for v in shown], alias, node)
    columns = tuple(Visible(n, v.node) for n, v in zip(names, shown, strict=True))
    return From(inner.plan, [Item(alias.name, columns)], list(columns), inner.outer)


def _alias(node: exp.Expr) -> exp.TableAlias | None:
    found = node.args.get("alias")
    return found if isinstance(found, exp.TableAlias) and found.this is not None else None


def _renamed(names: Sequence[str], alias: exp.TableAlias | None, node: exp.Expr) -> list[str]:
    """Column names after AS x (a, b, ...)."""
    given = [c.name for c in (alias.args.get("columns") or ())] if alias is not None else []
    if len(given) > len(names):
        label = alias.name if alias is not None else ""
        raise InvalidColumnReferenceError(
            f'table "{label}" has {len(names)} columns available but {len(given)} columns specified',
            position=position_of(node),
        )
    return [*given, *names[len(given) :]]


class InvalidColumnReferenceError(TidemillError):
    sqlstate = "42P10"


def _relation(env: Env, node: exp.Table) -> From:
    parts = tuple(p.name for p in (node.args.get("catalog"), node.args.get("db"), node.this) if p)
    alias_node = _alias(node)
    position = position_of(node)
    if len(parts) == 1 and parts[0] in env.ctes:
        bound = env.ctes[parts[0]]
        env.ctx.write_out(id(bound), bound.plan)
        return _bound_item(env, bound, alias_node, parts[0], node)
    relation = env.names.relation(parts, position)
    if relation.view is not None:
        from tidemill.sql.bind.query import bind_level

        env.ctx.view_depth += 1
        if env.ctx.view_depth > MAX_VIEW_DEPTH:
            raise TidemillError(f"views nest deeper than {MAX_VIEW_DEPTH} levels", sqlstate="54001")
        names = relation.view_scope or env.names
        bound = bind_level(Env(env.ctx, names, {}), relation.view, None)
        env.ctx.view_depth -= 1
        if len(bound.columns) != len(relation.desc.columns):
            raise UndefinedObject(f'view "{relation.name}" no longer fits its query', sqlstate="42P16")
        env.ctx.write_out(relation.id, bound.plan)
        typed = tuple(replace(c, name=n) for c, n in zip(bound.columns, relation.desc.names, strict=True))
        return _bound_item(env, replace(bound, columns=typed), alias_node, parts[-1], node, relation.path)
    alias = env.ctx.alias()
    placeholder = env.ctx.input(relation, alias)
    label = alias_node.name if alias_node is not None else parts[-1]
    names = _renamed(relation.desc.names, alias_node, node)
    columns = columns_of(alias, label, names, relation.physical, for_spark(relation.desc).types)
    for column, physical in relation.hidden:
        columns += columns_of(alias, label, [column.name], [physical], [column.type], hidden=True)
    hidden = parts[-1] if alias_node is not None else ""
    qualified = () if alias_node is not None else relation.path
    return From(Scan(placeholder, alias), [Item(label, columns, qualified, hidden)], list(columns))


def _bound_item(
    env: Env,
    bound: BoundParts,
    alias_node: exp.TableAlias | None,
    name: str,
    node: exp.Expr,
    qualified: tuple[str, ...] = (),
    *,
    lateral: bool = False,
) -> From:
    alias = env.ctx.alias()
    label = alias_node.name if alias_node is not None else name
    names = _renamed([c.name for c in bound.columns], alias_node, node)
    physical = [f"c{i}" for i in range(len(names))]
    columns = columns_of(alias, label, names, physical, [c.type for c in bound.columns])
    item = Item(label, columns, qualified if alias_node is None else ())
    return From(Named(bound.plan, alias, lateral), [item], list(columns), list(bound.outer))


def _subquery(env: Env, node: exp.Expr, query: exp.Expr, parent: Scope | None) -> From:
    from tidemill.sql.bind.query import bind_level

    alias = _alias(node)
    inner = query
    if isinstance(query, exp.Values) and query.args.get("alias") is not None:
        inner = query.copy()
        inner.set("alias", None)
    bound = bind_level(env, inner, parent)
    return _bound_item(env, bound, alias, "", node)


def _lateral(env: Env, node: exp.Lateral, parent: Scope | None, left: Sequence[From]) -> From:
    from tidemill.sql.bind.query import bind_level

    scope = _left_scope(env, left, parent)
    inner = node.this
    if isinstance(inner, exp.Subquery):
        bound = bind_level(env, inner.this, scope)
        return _bound_item(env, bound, _alias(node), "", node, lateral=True)
    return _function(env, node, inner, parent, left)


def _left_scope(env: Env, left: Sequence[From], parent: Scope | None) -> Scope:
    scope = Scope(env.ctx, parent=parent)
    for item in left:
        scope.items.extend(item.items)
        scope.columns.extend(item.columns)
    return scope


def _function(
    env: Env, node: exp.Expr, function: exp.Expr, parent: Scope | None, left: Sequence[From]
) -> From:
    scope = _left_scope(env, left, parent)
    bound, uses_left = bind_table_function(env, scope, node, function)
    name = bound.columns[0].name if isinstance(function, exp.Unnest) else column_name(function)
    alias = _function_alias(node, function)
    own = [c for c in bound.columns if c.name != "ordinality"]
    single = alias is not None and len(own) == 1 and not alias.args.get("columns")
    if alias is None or not single or own[0].name == NAMED_COLUMN:
        made = _bound_item(env, bound, alias, name, node, lateral=uses_left)
        if alias is not None and len(bound.columns) == 1:
            # FROM jsonb_array_elements(j) AS e: the column has its own name, and e is also the value.
            made.columns.append(Visible(alias.name, made.columns[0].node, hidden=True))
        return made
    # FROM generate_series(1, 3) AS g: the column is also named g.
    bound = replace(bound, columns=(replace(own[0], name=alias.name), *bound.columns[1:]))
    return _bound_item(env, bound, alias, name, node, lateral=uses_left)


# sqlglot's name for the unnamed column of WITH ORDINALITY after UNNEST; users cannot have a column of this
# name.
_UNNAMED_OFFSET = "offset"


def _function_alias(node: exp.Expr, function: exp.Expr) -> exp.TableAlias | None:
    """The alias with all its column names. For UNNEST ... WITH ORDINALITY, sqlglot takes the last name as
    that of the number."""
    alias = _alias(node)
    offset = node.args.get("offset") or function.args.get("offset")
    if alias is None or not isinstance(offset, exp.Identifier) or offset.name == _UNNAMED_OFFSET:
        return alias
    names = [*(alias.args.get("columns") or ()), offset]
    return exp.TableAlias(this=alias.this.copy(), columns=[n.copy() for n in names])


# --- joins


def _join(env: Env, left: From, join: exp.Join, parent: Scope | None, before: Sequence[From]) -> From:
    right = _item(env, join.this, parent, [*before, left])
    side = str(join.args.get("side") or "").upper()
    natural = str(join.args.get("method") or "").upper() == "NATURAL"
    using = [i.name for i in (join.args.get("using") or ())]
    on = join.args.get("on")
    if natural:
        right_names = {v.name for v in right.columns if not v.hidden}
        using = [v.name for v in left.columns if v.name in right_names and not v.hidden]
    items = [*left.items, *right.items]
    _check_names(items)
    condition: BoundNode | None = None
    columns = [*left.columns, *right.columns]
    if using:
        condition, columns = _using(env, left, right, using, side, position_of(join))
    elif on is not None:
        scope = Scope(env.ctx, items, columns, parent)
        condition = Binder(env, scope, "JOIN conditions").boolean(on, "JOIN/ON")
    elif side:
        raise SyntaxError_("an outer join needs ON, USING or NATURAL", position=position_of(join))
    lateral = isinstance(right.plan, Named) and right.plan.lateral
    if lateral and side in ("RIGHT", "FULL"):
        raise InvalidColumnReferenceError(
            "invalid reference to FROM-clause entry: the combining JOIN type must be INNER or LEFT",
            position=position_of(join),
        )
    plan = Join(left.plan, right.plan, side, condition)
    return From(plan, items, columns, [*left.outer, *right.outer])


def _using(
    env: Env, left: From, right: From, using: Sequence[str], side: str, position: int | None
) -> tuple[BoundNode, list[Visible]]:
    """The condition of USING, and the visible columns, the merged ones first."""
    scope = Scope(env.ctx, [*left.items, *right.items], [], None)
    binder = Binder(env, scope, "JOIN/USING")
    conditions: list[BoundNode] = []
    merged: list[Visible] = []
    for name in using:
        a, b = (_single(side_, name, where, position) for side_, where in ((left, "left"), (right, "right")))
        conditions.append(binder.operator("=", [scope.use(a), scope.use(b)], position))
        node = {"": a.node, "LEFT": a.node, "RIGHT": b.node}.get(side)
        if node is None:
            (x, y), t = unify(env.ctx, [a.node, b.node], "JOIN/USING")
            node = Op(t, "coalesce", (x, y), lambda args: call("coalesce", *args))
        elif a.node.type != b.node.type:
            (x, y), _ = unify(env.ctx, [a.node, b.node], "JOIN/USING")
            node = y if side == "RIGHT" else x
        merged.append(Visible(name, node))
    names = set(using)
    rest = [v for v in (*left.columns, *right.columns) if v.name not in names]
    return conjunction(conditions), [*merged, *rest]


def _single(side: From, name: str, where: str, position: int | None) -> Visible:
    found = [v for v in side.columns if v.name == name]
    if not found:
        raise UndefinedObject(
            f'column "{name}" specified in USING clause does not exist in {where} table',
            sqlstate="42703",
            position=position,
        )
    if len(found) > 1:
        raise AmbiguousColumn(
            f'common column name "{name}" appears more than once in {where} table', position=position
        )
    return found[0]


def star_columns(scope: Scope, columns: Sequence[Visible]) -> list[tuple[str, BoundNode]]:
    """The columns of `*` or `t.*`."""
    return [(v.name, scope.use(v)) for v in columns if not v.hidden]
