"""EXPLAIN, EXPLAIN TIMESTAMP and EXPLAIN MATERIALIZED VIEW."""

from __future__ import annotations

from tidemill.sql.ast import Explain, ExplainMaterializedView, ExplainTimestamp, Statement
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import at_query, query_to_end
from tidemill.sql.parser.subscribe import accept_subscribe, subscribe
from tidemill.sql.tokens import TokenKind


def explain(cursor: TokenCursor) -> Statement:
    """After EXPLAIN."""
    if cursor.accept("timestamp"):
        cursor.expect("for")
        if cursor.peek_any("subscribe"):
            raise cursor.unsupported("EXPLAIN TIMESTAMP FOR SUBSCRIBE", hint="Use EXPLAIN SUBSCRIBE.")
        return ExplainTimestamp(query_to_end(cursor))
    if cursor.accept("materialized", "view"):
        return ExplainMaterializedView(cursor.name())
    options: list[tuple[str, str | None]] = []
    if cursor.peek_symbol("(") and _is_options(cursor):
        cursor.expect_symbol("(")
        while True:
            name = cursor.word()
            value = None
            if not cursor.peek_symbol(",") and not cursor.peek_symbol(")"):
                token = cursor.advance()
                if token.kind not in (TokenKind.WORD, TokenKind.STRING, TokenKind.NUMBER):
                    cursor.rewind(cursor.index - (token.kind is not TokenKind.END))
                    raise cursor.error()
                value = token.value.lower()
            options.append((name, value))
            if cursor.accept_symbol(")"):
                break
            cursor.expect_symbol(",")
    else:
        for name in ("analyze", "verbose"):
            if cursor.accept(name):
                options.append((name, None))
    if accept_subscribe(cursor):
        return Explain(subscribe(cursor), tuple(options))
    if not at_query(cursor):
        if cursor.peek_any("insert", "update", "delete", "create", "declare", "execute"):
            raise cursor.unsupported(f"EXPLAIN {cursor.token.value.upper()}")
        raise cursor.error()
    return Explain(query_to_end(cursor), tuple(options))


def _is_options(cursor: TokenCursor) -> bool:
    """EXPLAIN (ANALYZE) SELECT ... has options, EXPLAIN (SELECT 1) does not."""
    after = cursor.fork(cursor.index + 1)
    return not at_query(after)
