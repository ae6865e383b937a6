"""Hints for clients that write SUBSCRIBE as a SELECT, or as part of one.

This module adds a hint to the parser's errors. Called by `subscribe` where its grammar ends before the
statement does, and by `query` for a query with a syntax error.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import TidemillError
from tidemill.sql.ast import Name, Query
from tidemill.sql.names import words
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import Token, TokenKind, syntax_error

RELATION_OR_QUERY = (
    "SUBSCRIBE takes the name of a relation, or a query in parentheses: SUBSCRIBE (SELECT ...)."
)
OPTIONS = "Write WITH (PROGRESS), WITH (SNAPSHOT = false) or both, separated by a comma."
KEY = "Write ENVELOPE {} (KEY (column, ...))."
NO_QUERY = (
    "SUBSCRIBE is a statement by itself and no part of a query. Write SUBSCRIBE (SELECT ...), or make a view "
    "and SUBSCRIBE to it."
)
_ORDER = "Times come in order. For the order of the rows of one time write WITHIN TIMESTAMP ORDER BY."
# Clauses of a SELECT behind its first relation.
_OF_A_QUERY = words(
    """
    where group having window limit offset fetch join inner left right full cross natural union
    intersect except as
    """
)
_KINDS = frozenset({"view", "source", "materialized"})
_OPTIONS = frozenset({"progress", "snapshot"})
_BEFORE_A_RELATION = frozenset({"(", "from", "join", "as"})


def start_hint(cursor: TokenCursor) -> str:
    """The hint where a relation is expected; `cursor` is at SELECT, TABLE or similar."""
    word = cursor.token.value.upper()
    after = cursor.fork(cursor.index + 1)
    if word == "TABLE" and after.token.kind in (TokenKind.WORD, TokenKind.QUOTED):
        return f"Write the name alone: SUBSCRIBE {_spelled(after)}."
    return f"Write SUBSCRIBE ({word} ...)."


def paren_hint(cursor: TokenCursor) -> str:
    """The hint after a parenthesis in which no query starts."""
    token = cursor.token
    if token.kind in (TokenKind.WORD, TokenKind.QUOTED) and cursor.peek_symbol(")", 1):
        return f"Write a relation's name without parentheses: SUBSCRIBE {_spelled(cursor)}."
    return "In the parentheses stands a query: SELECT, VALUES, TABLE or WITH."


def check_end(cursor: TokenCursor, relation: Name | Query) -> None:
    """Raises with a hint if text follows the last clause."""
    if not cursor.at_end and not cursor.peek_symbol(")"):
        raise cursor.error(_end_hint(cursor, relation))


def _end_hint(cursor: TokenCursor, relation: Name | Query) -> str:
    key = cursor.token.key
    if key == "order":
        return _ORDER
    if key == "with":
        return "WITH (...) stands once, before AS OF and UP TO."
    if cursor.peek_words("as", "of"):
        return "AS OF stands before UP TO."
    if key == "at":
        return "Write AS OF AT LEAST time."
    if key in ("upsert", "debezium"):
        return KEY.format(key.upper())
    if (cursor.following.key if key == "(" else key) in _OPTIONS:
        return OPTIONS
    if isinstance(relation, Query):
        return "Write it into the query, within the parentheses." if key in _OF_A_QUERY else RELATION_OR_QUERY
    if cursor.find_word("from") is None:
        if relation.parts[0] in _KINDS and cursor.token.kind in (TokenKind.WORD, TokenKind.QUOTED):
            name = cursor.fork(cursor.index + 1) if cursor.peek_any("view") else cursor
            return f"Write the name alone: SUBSCRIBE {_spelled(name)}."
        if key in _OF_A_QUERY or key == ",":
            more = ", ..." if key == "," else f" {key.upper()}{' BY' if key == 'group' else ''} ..."
            return f"Write a query in parentheses: SUBSCRIBE (SELECT * FROM {relation}{more})."
    return RELATION_OR_QUERY


def inside_query(text: str, tokens: Sequence[Token]) -> TidemillError | None:
    """The error for a query with a syntax error, if it contains a SUBSCRIBE."""
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (
            token.kind is TokenKind.WORD
            and token.value == "subscribe"
            and before.kind in (TokenKind.WORD, TokenKind.SYMBOL)
            and before.value in _BEFORE_A_RELATION
            and (after.kind in (TokenKind.WORD, TokenKind.QUOTED) or after.value == "(")
        ):
            error = syntax_error(text, token.start, token.end)
            error.hint = NO_QUERY
            return error
    return None


def _spelled(cursor: TokenCursor) -> str:
    """The name at the cursor, as written."""
    probe = cursor.fork()
    end = probe.advance().end
    while probe.peek_symbol(".") and probe.following.kind in (TokenKind.WORD, TokenKind.QUOTED):
        probe.advance()
        end = probe.advance().end
    return cursor.text[cursor.offset : end]
