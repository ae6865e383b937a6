"""The binder's entry points: whole queries, scalar expressions, and the source of INSERT.

UPDATE and DELETE are in `changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError, UndefinedObject
from tidemill.sql.ast.base import Default, Expr, Query
from tidemill.sql.ast.writes import Values
from tidemill.sql.bind.coerce import assign, settle, to_type
from tidemill.sql.bind.constant import Constants, evaluate
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import position_of
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.model import BoundExpr, BoundQuery, Lowered, NameResolver, Relation, SessionInfo
from tidemill.sql.bind.query import BoundParts, bind_level
from tidemill.sql.bind.scope import Item, Scope, columns_of
from tidemill.sql.bind.values import assigned_column, bound_rows
from tidemill.sql.lower.expressions import lower
from tidemill.sql.plan.expressions import BoundNode, BoundParam, Const, Ref, is_constant
from tidemill.sql.plan.operators import Named, Project, Rows, outputs
from tidemill.types.model import BOOL, Column, Kind, SqlType

_Default = Callable[[Column], BoundNode]


def bind_query(
    query: exp.Expr,
    names: NameResolver,
    *,
    param_types: Sequence[SqlType | None] = (),
    session: SessionInfo,
) -> BoundQuery:
    """Bind a whole query. Open types in `param_types` are determined (42P18 if that is not possible)."""
    ctx = BindContext(session, param_types)
    bound = bind_level(Env(ctx, names, {}), query, None)
    return finished(ctx, bound)


def finished(ctx: BindContext, bound: BoundParts) -> BoundQuery:
    """The bound query, with everything that the context recorded."""
    lowered = Lowered(bound.plan)
    if not isinstance(bound.plan, Rows) and not _plain(bound.constants):
        # What Spark has no form for is refused here. Rows of values have one, and may never need it.
        lowered.tree()
    return BoundQuery(
        bound.columns,
        lowered,
        dict(ctx.inputs),
        {p: frozenset(c) for p, c in ctx.used.items()},
        ctx.final_params(),
        ctx.session,
        ctx.determinism(),
        bound.constants,
    )


def _plain(constants: Constants | None) -> bool:
    return constants is not None and all(
        isinstance(column, tuple) and all(isinstance(n, Const | BoundParam) for n in column)
        for column in constants.columns
    )


def bind_scalar(
    expr: exp.Expr,
    columns: Sequence[Column] = (),
    *,
    session: SessionInfo,
    names: NameResolver | None = None,
    table: str = "t",
    physical: Sequence[str] | None = None,
    target: SqlType | None = None,
    target_column: str | None = None,
    clause: str = "this expression",
    param_types: Sequence[SqlType | None] = (),
) -> BoundExpr:
    """Bind a scalar expression over the columns of one relation, which the tree references as
    `table`.`physical name`. With `target` it is assigned to that type (to `target_column`, if it is a
    column's default or new value)."""
    ctx = BindContext(session, param_types)
    visible = columns_of(
        table,
        table,
        [c.name for c in columns],
        physical or [c.name for c in columns],
        [c.type for c in columns],
    )
    scope = Scope(ctx, [Item(table, visible)], list(visible))
    binder = Binder(Env(ctx, names or _NoNames(), {}), scope, clause)
    node = binder.bind(expr)
    if target is not None:
        if target_column is not None:
            node = assign(ctx, node, target, target_column, position_of(expr))
        elif target == BOOL:
            node = binder.boolean(expr, clause)
        else:
            node = assign(ctx, node, target, "?column?", position_of(expr))
    node = settle(ctx, node)
    constants = Constants(((node,),), (node.type,), 1) if is_constant(node) else None
    return BoundExpr(node.type, lower(node), ctx.final_params(), session, constants)


class _NoNames:
    """For expressions that must not reference relations (defaults)."""

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        raise UndefinedObject(
            f'relation "{".".join(parts)}" does not exist', sqlstate="42P01", position=position
        )


def constant_value(bound: BoundExpr) -> pa.Scalar | None:
    """The value of a constant expression without Spark; None if it needs Spark."""
    if bound.constants is None:
        return None
    table = evaluate(bound.constants, bound.session)
    return None if table is None else table.column(0)[0]


# --- writes


def bind_insert_source(
    source: Values | Query | exp.Expr | None,
    targets: Sequence[Column],
    names: NameResolver,
    *,
    session: SessionInfo,
    defaults: Mapping[str, exp.Expr] | None = None,
    columns: Sequence[str] | None = None,
    param_types: Sequence[SqlType | None] = (),
) -> BoundQuery:
    """Bind the rows of an INSERT as rows of the table: one output column per column of `targets`, with its
    type. `columns` are those that the statement lists (all if None); the others get their default or NULL.
    `source` None is DEFAULT VALUES."""
    ctx = BindContext(session, param_types)
    env = Env(ctx, names, {})
    listed = _listed(targets, columns)
    given = defaults or {}
    filler = Binder(env, Scope(ctx), "DEFAULT expressions")

    def default(column: Column) -> BoundNode:
        expression = given.get(column.name)
        if expression is None:
            return Const(column.type, None)
        return assign(ctx, filler.bind(expression), column.type, column.name, None)

    if source is None or isinstance(source, Values):
        rows = source.rows if source is not None else ((),)
        bound = _insert_rows(env, rows, targets, listed, default, explicit=columns is not None)
    else:
        tree = source.tree if isinstance(source, Query) else source
        bound = _insert_query(env, tree, targets, listed, default, explicit=columns is not None)
    return finished(ctx, bound)


def _listed(targets: Sequence[Column], columns: Sequence[str] | None) -> list[Column]:
    if columns is None:
        return list(targets)
    by_name = {c.name: c for c in targets}
    listed: list[Column] = []
    for name in columns:
        if name not in by_name:
            raise UndefinedObject(f'column "{name}" of relation does not exist', sqlstate="42703")
        if any(c.name == name for c in listed):
            raise UndefinedObject(f'column "{name}" specified more than once', sqlstate="42701")
        listed.append(by_name[name])
    return listed


def _check_width(given: int, listed: Sequence[Column], explicit: bool, surplus: int | None = None) -> None:
    """Without a column list there may be fewer values, which go to the first columns. `surplus` is the
    position of the first value that is too many."""
    if given > len(listed):
        raise SyntaxError_("INSERT has more expressions than target columns", position=surplus)
    if given < len(listed) and explicit:
        raise SyntaxError_("INSERT has more target columns than expressions")


def _insert_rows(
    env: Env,
    rows: Sequence[Sequence[Expr | Default]],
    targets: Sequence[Column],
    listed: Sequence[Column],
    default: _Default,
    *,
    explicit: bool,
) -> BoundParts:
    binder = Binder(env, Scope(env.ctx), "VALUES")
    width = len(rows[0])
    if width:
        surplus = rows[0][len(listed)] if width > len(listed) else None
        _check_width(width, listed, explicit, surplus.offset + 1 if isinstance(surplus, Expr) else None)
    cells_of = {c.name: cells for c, cells in zip(listed, zip(*rows, strict=True), strict=False)}
    values: list[pa.Array | tuple[BoundNode, ...]] = []
    for column in targets:
        cells = cells_of.get(column.name)
        if cells is None:
            values.append((default(column),) * len(rows))
        elif any(isinstance(c, Default) for c in cells):
            values.append(
                tuple(
                    default(column)
                    if isinstance(c, Default)
                    else assign(env.ctx, binder.bind(c.tree), column.type, column.name, position_of(c.tree))
                    for c in cells
                )
            )
        else:
            values.append(_placed(binder, [c for c in cells if isinstance(c, Expr)], column))
    typed = tuple(Column(c.name, c.type) for c in targets)
    return bound_rows(values, typed, len(rows), binder.scope)


def _placed(binder: Binder, cells: Sequence[Expr], column: Column) -> pa.Array | tuple[BoundNode, ...]:
    """Assign the column's cells. Errors contain the position of the cell."""
    try:
        return assigned_column(binder, [c.tree for c in cells], column)
    except TidemillError as e:
        if e.position is None:
            e.position = next((c.offset + 1 for c in cells if _refused(binder, c, column)), None)
        raise


def _refused(binder: Binder, cell: Expr, column: Column) -> bool:
    try:
        assigned_column(binder, [cell.tree], column)
    except TidemillError:
        return True
    return False


def _insert_query(
    env: Env,
    tree: exp.Expr,
    targets: Sequence[Column],
    listed: Sequence[Column],
    default: _Default,
    *,
    explicit: bool,
) -> BoundParts:
    bound = bind_level(env, tree, None)
    _check_width(len(bound.columns), listed, explicit)
    alias = env.ctx.alias()
    position = position_of(tree)
    by_name: dict[str, BoundNode] = {}
    for i, (column, output) in enumerate(zip(listed, bound.columns, strict=False)):
        raw = bound.nodes[i] if i < len(bound.nodes) else None
        node: BoundNode = Ref(output.type, alias, f"c{i}")
        if raw is not None and raw.type.kind is Kind.UNKNOWN:
            # A bare literal of the select list takes the column's type.
            node = raw
        by_name[column.name] = assign(env.ctx, node, column.type, column.name, position)
    nodes = [by_name[c.name] if c.name in by_name else default(c) for c in targets]
    columns = tuple(Column(c.name, c.type) for c in targets)
    plan = Project(Named(bound.plan, alias), outputs(nodes))
    constants = _assigned_constants(env.ctx, bound, listed, targets, default)
    return BoundParts(plan, columns, constants=constants)


def _assigned_constants(
    ctx: BindContext,
    bound: BoundParts,
    listed: Sequence[Column],
    targets: Sequence[Column],
    default: _Default,
) -> Constants | None:
    """INSERT ... SELECT of constants remains a list of constants."""
    if bound.constants is None:
        return None
    found: dict[str, tuple[BoundNode, ...]] = {}
    for i, (column, values) in enumerate(zip(listed, bound.constants.columns, strict=False)):
        t = bound.constants.types[i]
        cells = [Const(t, v) for v in values] if isinstance(values, pa.Array) else list(values)
        raw = bound.nodes[i] if i < len(bound.nodes) else None
        if raw is not None and raw.type.kind is Kind.UNKNOWN:
            cells = [raw]
        found[column.name] = tuple(to_type(ctx, n, column.type) for n in cells)
    rows = bound.constants.rows
    columns = tuple(found.get(c.name) or (default(c),) * rows for c in targets)
    return Constants(columns, tuple(c.type for c in targets), rows)
