"""Parser of a text that must be a single relation name or query.

Called by code that builds a SUBSCRIBE from a client's text. `parse_relation(text)` raises the same errors as
`parse.parse`. It returns a name or a tree and never composes text, so the client cannot inject clauses,
options or a second statement.
"""

from __future__ import annotations

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import Name, Query
from tidemill.sql.parse import check_size, hushed
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.depth import check_nesting
from tidemill.sql.parser.query import at_query, query_alone
from tidemill.sql.tokens import TokenKind, scan


def parse_relation(text: str) -> Name | Query:
    """The name or query in `text`; a final semicolon is allowed."""
    check_size(text)
    try:
        return _relation(text)
    except SyntaxError_ as e:
        raise hushed(e, text) from None


def _relation(text: str) -> Name | Query:
    tokens = scan(text)
    stop = len(tokens) - 1
    if stop and tokens[stop - 1].kind is TokenKind.SYMBOL and tokens[stop - 1].value == ";":
        stop -= 1
    check_nesting(tokens[:stop])
    cursor = TokenCursor(text, tokens, 0, stop)
    if not at_query(cursor):
        return _name(cursor)
    query = query_alone(cursor)
    if query.as_of is not None:
        raise Unsupported(
            "AS OF is not supported inside SUBSCRIBE (...)",
            hint="Give the time beside the query.",
            position=query.as_of.time.offset + 1,
        )
    return query


def _name(cursor: TokenCursor) -> Name:
    first = cursor.token
    try:
        name = cursor.name()
        cursor.expect_end()
    except SyntaxError_ as e:
        if first.kind is TokenKind.WORD:
            e.hint = e.hint or "Give the name of a relation or a query: SELECT, VALUES, TABLE or WITH."
        raise
    return name
