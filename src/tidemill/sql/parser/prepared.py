"""PREPARE, EXECUTE, DEALLOCATE."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.sql.ast import (
    Deallocate,
    Delete,
    Execute,
    Expr,
    Insert,
    Prepare,
    Query,
    Statement,
    Subscribe,
    Update,
)
from tidemill.sql.parser.cursor import TokenCursor

_PREPARABLE = (Query, Subscribe, Insert, Update, Delete)


def prepare(cursor: TokenCursor, statement: Callable[[TokenCursor], Statement]) -> Statement:
    """After PREPARE; `statement` parses the statement that follows AS."""
    if cursor.peek_any("transaction"):
        raise cursor.unsupported("PREPARE TRANSACTION")
    name = cursor.ident()
    types: list[str] = []
    if cursor.accept_symbol("("):
        types.append(cursor.type_text())
        while cursor.accept_symbol(","):
            types.append(cursor.type_text())
        cursor.expect_symbol(")")
    cursor.expect("as")
    start = cursor.fork()
    inner = statement(cursor)
    if not isinstance(inner, _PREPARABLE):
        raise start.error()
    return Prepare(name, inner, tuple(types))


def execute(cursor: TokenCursor) -> Statement:
    """After EXECUTE."""
    name = cursor.ident()
    arguments: list[Expr] = []
    if cursor.accept_symbol("("):
        arguments.append(cursor.expression(","))
        while cursor.accept_symbol(","):
            arguments.append(cursor.expression(","))
        cursor.expect_symbol(")")
    return Execute(name, tuple(arguments))


def deallocate(cursor: TokenCursor) -> Statement:
    """After DEALLOCATE."""
    if cursor.peek_words("prepare") and cursor.following.value:
        cursor.expect("prepare")
    return Deallocate(None if cursor.accept("all") else cursor.ident())
