"""The rows of INSERT ... VALUES, read without sqlglot's parser where a cell is a plain literal.

A bulk INSERT is the largest text that clients send. Building a literal's node here takes a tenth of the time
of the full parser. All other cells go through `sqlglot_parser`, one at a time, so both ways give the same
trees.
"""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import Default, Expr, Values
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import Token, TokenKind

# After VALUES (...), (...) these make it a query: VALUES (1) ORDER BY 1.
_QUERY_TAIL = ("order", "limit", "offset", "fetch", "union", "intersect", "except", "as")


def values_rows(cursor: TokenCursor) -> Values | None:
    """VALUES (...), ... up to RETURNING, ON CONFLICT or the end; None, without moving, where this is
    another query."""
    start = cursor.index
    offset = cursor.offset
    if not cursor.accept("values"):
        return None
    rows: list[tuple[Expr | Default, ...]] = []
    while True:
        at = cursor.offset
        rows.append(_row(cursor))
        if len(rows[-1]) != len(rows[0]):
            raise SyntaxError_("VALUES lists must all be the same length", position=at + 1)
        if not cursor.accept_symbol(","):
            break
    if cursor.peek_any(*_QUERY_TAIL):
        cursor.rewind(start)
        return None
    return Values(tuple(rows), offset)


def _row(cursor: TokenCursor) -> tuple[Expr | Default, ...]:
    cursor.expect_symbol("(")
    cells = [value_or_default(cursor, ",")]
    while cursor.accept_symbol(","):
        cells.append(value_or_default(cursor, ","))
    cursor.expect_symbol(")")
    return tuple(cells)


def value_or_default(cursor: TokenCursor, *stops: str) -> Expr | Default:
    """A value up to one of `stops`, an unmatched closing parenthesis, or the end."""
    token = cursor.token
    kind, value, _, _ = cursor.following
    if kind is TokenKind.END or (
        kind in (TokenKind.SYMBOL, TokenKind.WORD) and (value == ")" or value in stops)
    ):
        if token[:2] == (TokenKind.WORD, "default"):
            cursor.advance()
            return Default(token.start)
        tree = _literal(token)
        if tree is not None:
            cursor.advance()
            return Expr(tree, token.start)
    return cursor.expression(*stops)


def _literal(token: Token) -> exp.Expr | None:
    kind, value, _, _ = token
    if kind is TokenKind.NUMBER:
        # Not Literal.number: it works out the Python value to look at its sign, which a token never has.
        return exp.Literal(this="0" + value if value[0] == "." else value, is_string=False)
    if kind is TokenKind.STRING:
        return exp.Literal.string(value)
    if kind is TokenKind.PARAM:
        return exp.Parameter(this=exp.Literal.number(value))
    if kind is TokenKind.WORD:
        if value == "null":
            return exp.Null()
        if value in ("true", "false"):
            return exp.Boolean(this=value == "true")
    return None
