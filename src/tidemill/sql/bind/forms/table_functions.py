"""Functions that return rows: in FROM (also with several columns and WITH ORDINALITY), and in a select list.

Each becomes an array of its values or, if it has several columns, of structs with the fields c0, c1, ... The
array is then expanded into rows. The functions themselves are in `row_sources`. Any other function in FROM is
a table of one row, its value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import FunctionCall, call_of
from tidemill.sql.bind.coerce import settle
from tidemill.sql.bind.colname import column_name
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.forms.row_sources import SOURCES
from tidemill.sql.bind.scope import Scope
from tidemill.sql.plan.expressions import BoundNode, Const, FromRows, Ref, walk
from tidemill.sql.plan.operators import OneRow, Operator, Project, TableFunction, outputs
from tidemill.types.model import INT8, Column

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder, Env
    from tidemill.sql.bind.query import BoundParts

SET_RETURNING = frozenset(SOURCES)
# PostgreSQL's column names for functions whose result has a name. For others, the alias is the column name.
NAMED_COLUMN = "value"


def bind_table_function(
    env: Env, scope: Scope, node: exp.Expr, function: exp.Expr
) -> tuple[BoundParts, bool]:
    """The function's rows as a query, and whether it references columns of items to its left."""
    from tidemill.sql.bind.expr import Binder
    from tidemill.sql.bind.query import BoundParts

    position = position_of(node)
    binder = Binder(env, scope, "functions in FROM")
    ordinality = bool(node.args.get("ordinality") or node.args.get("offset") or function.args.get("offset"))
    call_ = (
        FunctionCall("unnest", tuple(function.expressions))
        if isinstance(function, exp.Unnest)
        else call_of(function)
    )
    if call_ is None or call_.name not in SOURCES:
        return _one_row(binder, function, ordinality=ordinality)
    nodes = binder.bind_all(call_.args)
    source = SOURCES[call_.name](binder, nodes, position)
    columns = tuple(Column(name, t) for name, t in source.columns)
    if source.counted is not None:
        plan: Operator = replace(source.counted, numbered=ordinality)
    else:
        types = tuple(c.type for c in columns)
        plan = TableFunction(call_.name, source.args, types, source.build, ordinality)
    if ordinality:
        columns = (*columns, Column("ordinality", INT8))
    outer = [n for arg in source.args for n in walk(arg) if isinstance(n, Ref)]
    return BoundParts(plan, columns, outer), bool(outer)


def _one_row(binder: Binder, function: exp.Expr, *, ordinality: bool) -> tuple[BoundParts, bool]:
    """A function of one value: a table with one row."""
    from tidemill.sql.bind.query import BoundParts

    value = settle(binder.ctx, binder.bind(function))
    columns = (Column(column_name(function), value.type),)
    nodes: list[BoundNode] = [value]
    if ordinality:
        columns = (*columns, Column("ordinality", INT8))
        nodes.append(Const(INT8, pa.scalar(1, pa.int64())))
    outer = [n for n in walk(value) if isinstance(n, Ref)]
    return BoundParts(Project(OneRow(), outputs(nodes)), columns, outer), bool(outer)


def returns_rows(tree: exp.Expr) -> bool:
    """Whether the tree contains a call of a set-returning function."""
    for node in tree.find_all(exp.Func):
        if isinstance(node, exp.Unnest):
            return True
        found = call_of(node)
        if found is not None and found.name in SOURCES:
            return True
    return False


def bind_rows(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """A set-returning function in an expression."""
    if call_.star or call_.distinct or call_.order:
        raise b.no_function(call_.name, b.bind_all(call_.args), position)
    if b.in_aggregate:
        raise TidemillError(
            "aggregate function calls cannot contain set-returning function calls",
            hint="You might be able to move the set-returning function into a LATERAL FROM item.",
            sqlstate="0A000",
            position=position,
        )
    if not b.rows_allowed:
        raise TidemillError(
            f"set-returning functions are not allowed in {b.clause}", sqlstate="0A000", position=position
        )
    b.rows_allowed = False
    try:
        nodes = b.bind_all(call_.args)
    finally:
        b.rows_allowed = True
    source = SOURCES[call_.name](b, nodes, position)
    (_, t), *more = source.columns
    if more:
        raise unsupported(
            f"{call_.name}() of several columns in a select list",
            position,
            "Use it in FROM: it gives columns there.",
        )
    return FromRows(t, call_.name, source.args, source.build)
