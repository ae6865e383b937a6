"""Statements back to SQL text, for SHOW CREATE and for the catalog.

`to_sql` is the inverse of `parse`: `parse(to_sql(s))` gives a statement equal to `s`. It supports only the
statements that SHOW CREATE or the catalog needs. It writes names as the statement has them; the caller
qualifies them first. Raises `Unsupported` for a query that the PostgreSQL generator cannot write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from sqlglot import exp

from tidemill.sql import ast
from tidemill.sql.names import quote_literal
from tidemill.sql.render_connections import create_connection_sql
from tidemill.sql.render_sinks import create_sink_sql
from tidemill.sql.render_sources import create_source_sql, create_table_from_source_sql
from tidemill.sql.render_subscriptions import create_subscription_sql
from tidemill.sql.render_trees import expression_sql, query_sql

__all__ = ["Rendered", "expression_sql", "query_sql", "to_sql"]

Rendered: TypeAlias = (
    ast.Query
    | ast.CreateTable
    | ast.CreateSource
    | ast.CreateTableFromSource
    | ast.CreateSink
    | ast.CreateSubscription
    | ast.CreateConnection
)


def to_sql(statement: Rendered) -> str:
    """`statement` as canonical text, without a semicolon."""
    match statement:
        case ast.Query():
            return query_sql(statement)
        case ast.CreateTable():
            return _create_table_sql(statement)
        case ast.CreateSource():
            return create_source_sql(statement)
        case ast.CreateTableFromSource():
            return create_table_from_source_sql(statement)
        case ast.CreateSink():
            return create_sink_sql(statement)
        case ast.CreateSubscription():
            return create_subscription_sql(statement)
        case ast.CreateConnection():
            return create_connection_sql(statement)


def _create_table_sql(s: ast.CreateTable) -> str:
    elements = _list([*map(_column_def, s.columns), *map(_constraint, s.constraints)])
    history = (
        "" if s.retain_history is None else f" WITH (RETAIN HISTORY FOR {quote_literal(s.retain_history)})"
    )
    return f"CREATE TABLE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name} ({elements}){history}"


def _column_def(column: ast.ColumnDef) -> str:
    text = f"{column.name} {column.type}"
    if column.not_null:
        text += " NOT NULL"
    if column.default is not None:
        text += f" DEFAULT {_default(column.default)}"
    if column.primary_key:
        text += " PRIMARY KEY"
    if column.unique:
        text += " UNIQUE"
    return text


def _default(default: ast.Expr) -> str:
    """A default ends where a constraint could start (NOT, NULL, ...), so an expression that may contain such
    words is written in parentheses.
    """
    text = expression_sql(default.tree)
    plain = isinstance(default.tree, exp.Literal | exp.Neg | exp.Null | exp.Boolean | exp.Cast | exp.Func)
    return text if plain else f"({text})"


def _constraint(constraint: ast.TableConstraint) -> str:
    named = f"CONSTRAINT {constraint.name} " if constraint.name else ""
    return f"{named}{constraint.kind.value} ({_list(constraint.columns)})"


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
