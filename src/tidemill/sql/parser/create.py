"""CREATE TABLE, CREATE TABLE AS, CREATE [MATERIALIZED] VIEW, CREATE SCHEMA, CREATE DATABASE."""

from __future__ import annotations

from tidemill.sql.ast import (
    CreateDatabase,
    CreateMaterializedView,
    CreateSchema,
    CreateTable,
    CreateTableAs,
    CreateView,
    Ident,
    Statement,
)
from tidemill.sql.parser.columns import retain_history, table_elements, view_options
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import query_to_end
from tidemill.sql.parser.sources import NAMES_ALONE, create_table_from_source
from tidemill.sql.tokens import TokenKind


def create_table(cursor: TokenCursor) -> Statement:
    """After CREATE TABLE."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    if cursor.accept("from"):
        return create_table_from_source(cursor, name, (), if_not_exists)
    if cursor.peek_any("of", "partition"):
        raise cursor.unsupported(f"CREATE TABLE ... {cursor.token.value.upper()}")
    names = _column_names(cursor)
    if names is not None and cursor.accept("from"):
        return create_table_from_source(cursor, name, names, if_not_exists)
    if names is None and cursor.peek_symbol("("):
        columns, constraints = table_elements(cursor)
        if cursor.peek_any("inherits", "partition", "on", "tablespace", "using"):
            raise cursor.unsupported(f"CREATE TABLE ... {cursor.token.value.upper()}")
        if cursor.peek_words("from", "source"):
            raise cursor.error(NAMES_ALONE)
        return CreateTable(name, columns, constraints, if_not_exists, retain_history(cursor))
    history = retain_history(cursor)
    cursor.expect("as")
    if cursor.peek_any("execute"):
        raise cursor.unsupported("CREATE TABLE AS EXECUTE")
    tail = 3 if cursor.peek_last("with", "no", "data") else 2 if cursor.peek_last("with", "data") else 0
    body = cursor.sub(cursor.stop - tail)
    query = query_to_end(body)
    body.expect_end()
    while cursor.advance().kind is not TokenKind.END:
        pass  # WITH [NO] DATA, seen above
    return CreateTableAs(name, query, names or (), if_not_exists, tail != 3, history)


def _column_names(cursor: TokenCursor) -> tuple[Ident, ...] | None:
    """(a, b) before AS, WITH (...) AS or FROM SOURCE; None, without moving, where it is a list of definitions
    or none."""
    if not cursor.peek_symbol("("):
        return None
    probe = cursor.fork()
    probe.advance()
    probe.advance()
    if not probe.peek_symbol(",") and not probe.peek_symbol(")"):
        return None
    return cursor.idents_in_parentheses()


def create_view(cursor: TokenCursor, or_replace: bool = False) -> Statement:
    """After CREATE [OR REPLACE] VIEW."""
    if_not_exists = cursor.accept_if_not_exists()
    if if_not_exists and or_replace:
        raise cursor.error()
    name = cursor.name()
    columns = cursor.idents_in_parentheses() if cursor.peek_symbol("(") else ()
    if cursor.peek_words("with") and cursor.peek_symbol("(", 1):
        raise cursor.unsupported("WITH options of CREATE VIEW")
    cursor.expect("as")
    if cursor.peek_last("check", "option"):
        raise cursor.unsupported("WITH CHECK OPTION")
    return CreateView(name, query_to_end(cursor, allow_as_of=False), columns, if_not_exists, or_replace)


def create_materialized_view(cursor: TokenCursor, or_replace: bool = False) -> Statement:
    """After CREATE [OR REPLACE] MATERIALIZED."""
    cursor.expect("view")
    if_not_exists = cursor.accept_if_not_exists()
    if if_not_exists and or_replace:
        raise cursor.error()
    name = cursor.name()
    columns = cursor.idents_in_parentheses() if cursor.peek_symbol("(") else ()
    cluster = cursor.ident() if cursor.accept("in", "cluster") else None
    history, incremental = view_options(cursor)
    cursor.expect("as")
    if cursor.peek_last("with", "no", "data"):
        raise cursor.unsupported(
            "WITH NO DATA of CREATE MATERIALIZED VIEW", hint="It is filled at once and stays up to date."
        )
    query = query_to_end(cursor, allow_as_of=False)
    return CreateMaterializedView(
        name, query, columns, if_not_exists, cluster, history, or_replace, incremental
    )


def create_schema(cursor: TokenCursor) -> Statement:
    """After CREATE SCHEMA."""
    if_not_exists = cursor.accept_if_not_exists()
    if cursor.peek_any("authorization"):
        raise cursor.unsupported("CREATE SCHEMA AUTHORIZATION")
    name = cursor.name(max_parts=2)
    if cursor.peek_any("authorization", "create", "grant"):
        raise cursor.unsupported(f"CREATE SCHEMA ... {cursor.token.value.upper()}")
    return CreateSchema(name, if_not_exists)


def create_database(cursor: TokenCursor) -> Statement:
    """After CREATE DATABASE."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.ident()
    if not cursor.at_end:
        raise cursor.unsupported("CREATE DATABASE with options")
    return CreateDatabase(name, if_not_exists)
