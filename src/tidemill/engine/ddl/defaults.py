"""DEFAULT expressions: checked when they are declared, evaluated when a row does not give the column."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.items import Table
from tidemill.errors import Internal, Unsupported
from tidemill.sql import ast
from tidemill.sql.bind import SessionInfo, bind_scalar, constant_value
from tidemill.sql.parse import parse
from tidemill.sql.render import expression_sql
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column


def default_text(info: SessionInfo, default: ast.Expr, column: Column) -> str:
    """The expression in catalog form. Raises if it is not a constant of the type of the column."""
    if _value(info, default.tree, column) is None:
        raise Unsupported(
            f'the default of column "{column.name}" must be a constant',
            hint="A literal, a cast of one, now() or current_date will do.",
            position=default.offset + 1,
        )
    return expression_sql(default.tree)


def default_trees(table: Table) -> dict[str, exp.Expr]:
    """The defaults of the table, by column."""
    pairs = zip(table.desc.columns, table.defaults, strict=True)
    return {column.name: _tree(text) for column, text in pairs if text is not None}


def _tree(text: str) -> exp.Expr:
    # The catalog keeps the text of an expression, the parser takes statements: SELECT makes one of it.
    query = parse(f"SELECT {text}")[0].statement
    if not isinstance(query, ast.Query):
        raise Internal(f"the default {text} is no expression")
    return query.tree.expressions[0]


def _value(info: SessionInfo, tree: exp.Expr, column: Column) -> pa.Scalar | None:
    bound = bind_scalar(tree, session=info, target=column.type, target_column=column.name)
    return constant_value(bound)


def default_column(info: SessionInfo, table: Table, index: int, rows: int) -> pa.Array:
    """The default of the column for `rows` new rows; NULLs if it has none."""
    return default_value(info, table.desc.columns[index], table.defaults[index], rows)


def default_value(info: SessionInfo, column: Column, text: str | None, rows: int) -> pa.Array:
    """The current value of the default, repeated `rows` times."""
    scalar = None if text is None else _value(info, _tree(text), column)
    t = arrow_type(column.type)
    return pa.nulls(rows, t) if scalar is None or not scalar.is_valid else pa.repeat(scalar, rows).cast(t)
