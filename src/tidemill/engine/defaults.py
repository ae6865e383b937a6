"""DEFAULT expressions: checked when they are declared, evaluated when a row does not give the column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.items import Table
from tidemill.errors import Internal, Unsupported
from tidemill.sql import ast
from tidemill.sql.bind import bind_scalar, evaluate_scalar
from tidemill.sql.parse import parse
from tidemill.sql.render import expression_sql
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column

if TYPE_CHECKING:
    from tidemill.engine.session import EngineSession


def default_text(session: EngineSession, default: ast.Expr, column: Column) -> str:
    """The expression as the catalog keeps it; raises if it is no constant of the column's type."""
    bound = bind_scalar(default.tree, (), session=session.info(), target=column.type, column=column.name)
    if evaluate_scalar(bound) is None:
        raise Unsupported(
            f'the default of column "{column.name}" must be a constant',
            hint="A literal, a cast of one, or now() will do.",
            position=default.offset + 1,
        )
    return expression_sql(default.tree)


def default_scalar(session: EngineSession, table: Table, index: int) -> pa.Scalar:
    """The column's default for rows that are written now; NULL if it has none."""
    column, text = table.desc.columns[index], table.defaults[index]
    if text is None:
        return pa.scalar(None, arrow_type(column.type))
    # The catalog keeps the text of an expression, the parser takes statements: SELECT makes one of it.
    query = parse(f"SELECT {text}")[0].statement
    if not isinstance(query, ast.Query):
        raise Internal(f"the default of {table.name}.{column.name} is no expression")
    tree = query.tree.expressions[0]
    scalar = evaluate_scalar(
        bind_scalar(tree, (), session=session.info(), target=column.type, column=column.name)
    )
    if scalar is None:
        raise Internal(f"the default of {table.name}.{column.name} is no constant")
    return scalar


def default_column(session: EngineSession, table: Table, index: int, rows: int) -> pa.Array:
    scalar = default_scalar(session, table, index)
    t = arrow_type(table.desc.columns[index].type)
    return pa.repeat(scalar, rows).cast(t) if scalar.is_valid else pa.nulls(rows, t)
