"""COPY t FROM STDIN; COPY t, (query) or (SUBSCRIBE ...) TO STDOUT."""

from __future__ import annotations

from tidemill.sql.ast import CopyFrom, CopyTo, Ident, Name, Query, Statement, Subscribe
from tidemill.sql.parser.copy_options import CopyOptionReader
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import query_to_end
from tidemill.sql.parser.subscribe import accept_subscribe, subscribe
from tidemill.sql.tokens import TokenKind


def copy(cursor: TokenCursor) -> Statement:
    """After COPY."""
    binary = cursor.accept("binary")
    source: Name | Query | Subscribe
    columns: tuple[Ident, ...] = ()
    if cursor.accept_symbol("("):
        if cursor.peek_any("insert", "update", "delete"):
            raise cursor.unsupported(f"COPY of {cursor.token.value.upper()}")
        source = subscribe(cursor) if accept_subscribe(cursor) else query_to_end(cursor)
        cursor.expect_symbol(")")
    else:
        source = cursor.name()
        named = cursor.peek_any("to", "from") or cursor.token.kind is not TokenKind.WORD
        if source.parts == ("subscribe",) and not named:
            raise cursor.error("Write COPY (SUBSCRIBE ...) TO STDOUT.")
        if cursor.peek_symbol("("):
            columns = cursor.idents_in_parentheses()
    incoming = isinstance(source, Name) and cursor.accept("from")
    if not incoming:
        cursor.expect("to")
    _stream(cursor, "stdin" if incoming else "stdout")
    options = CopyOptionReader(incoming, {"format": "binary"} if binary else {})
    options.read(cursor)
    if isinstance(source, Name) and incoming:
        where = cursor.expression() if cursor.accept("where") else None
        return CopyFrom(source, columns, options.resolve(), where)
    return CopyTo(source, columns, options.resolve())


def _stream(cursor: TokenCursor, wanted: str) -> None:
    if cursor.token.kind is TokenKind.STRING or cursor.peek_any("program"):
        raise cursor.unsupported("COPY with a file or program of the server", hint=f"Use {wanted.upper()}.")
    # PostgreSQL takes STDIN and STDOUT for each other.
    if not cursor.accept("stdin"):
        cursor.expect("stdout")
