"""Query bodies: where they start, AS OF at their end, and the body itself through `sqlglot_parser`.

Called by `dispatch` for a query statement and by every statement parser that contains a query.
"""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import AsOf, Expr, Query
from tidemill.sql.names import words
from tidemill.sql.parser import sqlglot_parser
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.subscribe_hints import NO_QUERY, inside_query
from tidemill.sql.tokens import Token, TokenKind

STARTS = frozenset({"select", "with", "values", "table"})
# Tokens that may follow a column or table named `of` (SELECT a AS of FROM t): there AS OF is not a time.
_NO_TIME = frozenset({",", ")", "]"})
_NO_TIME_WORDS = words(
    """
    from where group having window order limit offset fetch union intersect except for on using join
    left right full inner cross natural
    """
)


def at_query(cursor: TokenCursor) -> bool:
    """Whether a query starts here."""
    return cursor.peek_any(*STARTS) or cursor.peek_symbol("(")


def query_alone(cursor: TokenCursor) -> Query:
    """A query that is the whole statement. WITH before a write gets a hint."""
    if cursor.peek_any("with"):
        found = _statement_behind_with(cursor)
        if found is not None and found[1].value not in STARTS:
            write = found[1]
            raise Unsupported(
                f"WITH before {write.value.upper()} is not supported",
                hint="Put the query itself into FROM, USING or WHERE.",
                position=write.start + 1,
            )
    query = query_to_end(cursor)
    cursor.expect_end()
    return query


def with_before_insert(cursor: TokenCursor) -> exp.With | None:
    """WITH ... INSERT: the CTEs, for the query that is inserted; moves past INSERT. None, without moving, for
    anything else.
    """
    found = _statement_behind_with(cursor) if cursor.peek_any("with") else None
    if found is None or found[1].value != "insert":
        return None
    tokens, base = cursor.cut(found[0])
    end = tokens.pop()
    # A separate query, as the grammar requires.
    tail = [
        Token(TokenKind.WORD, "select", end.start, end.end),
        Token(TokenKind.NUMBER, "1", end.start, end.end),
    ]
    tree = _body(cursor.text, [*tokens, *tail, end], base)
    cursor.expect("insert")
    ctes = tree.args.get("with_")
    if not isinstance(ctes, exp.With):
        raise cursor.error()
    return ctes


def _statement_behind_with(cursor: TokenCursor) -> tuple[int, Token] | None:
    """The first word of the statement after WITH, and its index."""
    return cursor.find_behind_parenthesis("select", "values", "table", "insert", "update", "delete", "merge")


def query_to_end(cursor: TokenCursor, *stops: str, allow_as_of: bool = True) -> Query:
    """A query up to one of `stops` outside parentheses, an unmatched closing parenthesis, or the end."""
    if not at_query(cursor):
        raise cursor.error(NO_QUERY if cursor.peek_any("subscribe") else None)
    offset = cursor.offset
    end = cursor.find(*stops)
    tokens, base = cursor.cut(end)
    at = _as_of(tokens)
    if at is None:
        return Query(_body(cursor.text, tokens, base), None, offset)
    if not allow_as_of:
        raise Unsupported(
            "AS OF is not supported here",
            hint="A view or table has no time of its own: say AS OF where it is read.",
            position=tokens[at].start + 1,
        )
    rest = tokens[at + 2 :]
    at_least = [t[:2] for t in rest[:2]] == [(TokenKind.WORD, "at"), (TokenKind.WORD, "least")]
    skipped = at + (4 if at_least else 2)
    head = [*tokens[:at], Token(TokenKind.END, "", tokens[at].start, tokens[at].end)]
    tree = _body(cursor.text, head, base)
    time = Expr(
        sqlglot_parser.parse_scalar(cursor.text, tokens[skipped:], base + skipped), tokens[skipped].start
    )
    return Query(tree, AsOf(time, at_least), offset)


def _body(text: str, tokens: list[Token], base: int) -> exp.Query | exp.Values:
    try:
        return sqlglot_parser.parse_body(text, tokens, base)
    except SyntaxError_ as e:
        raise inside_query(text, tokens) or e from None


def _as_of(tokens: list[Token]) -> int | None:
    """The index of the last AS OF outside parentheses that is followed by something that can be a time."""
    depth = 0
    found = None
    for at, (kind, value, _, _) in enumerate(tokens):
        if kind is TokenKind.SYMBOL:
            depth += (value in ("(", "[")) - (value in (")", "]"))
        elif (
            kind is TokenKind.WORD
            and value == "as"
            and not depth
            and tokens[at + 1][:2] == (TokenKind.WORD, "of")
        ):
            after = tokens[at + 2]
            if (
                after.kind is not TokenKind.END
                and not (after.kind is TokenKind.SYMBOL and after.value in _NO_TIME)
                and not (after.kind is TokenKind.WORD and after.value in _NO_TIME_WORDS)
            ):
                found = at
    return found
