"""CREATE SUBSCRIPTION, FETCH ... FROM SUBSCRIPTION and ACKNOWLEDGE.

    CREATE SUBSCRIPTION [IF NOT EXISTS] name FOR relation | (query) [ENVELOPE ...] [WITH (options)]
    FETCH [n | ALL] FROM SUBSCRIPTION name [WITH (TIMEOUT = '1 s', POSITION = p, SHARE = i)]
    ACKNOWLEDGE SUBSCRIPTION name [SHARE i] [TO p]

SUBSCRIPTION is not reserved: FETCH FROM subscription reads a cursor of that name.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import (
    Acknowledge,
    CreateSubscription,
    Expr,
    FetchSubscription,
    Statement,
    SubscribePlain,
    WithinTimestampOrderBy,
)
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_fields, boolean
from tidemill.sql.parser.subscribe import followed, output_clause
from tidemill.sql.tokens import TokenKind

_OPTIONS: dict[tuple[str, ...], Callable[[TokenCursor], object]] = {
    ("snapshot",): boolean,
    ("retain",): TokenCursor.string,
    ("retain", "size"): TokenCursor.string,
    ("shares",): TokenCursor.integer,
    ("share", "key"): TokenCursor.idents_in_parentheses,
}


def create_subscription(cursor: TokenCursor) -> Statement:
    """After CREATE SUBSCRIPTION."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    cursor.expect("for")
    relation = followed(cursor)
    at = cursor.fork()
    output = output_clause(cursor, None)
    if isinstance(output, SubscribePlain | WithinTimestampOrderBy):
        raise at.unsupported(
            "WITHIN TIMESTAMP ORDER BY of a subscription", hint="Sort the rows of a time where they are read."
        )
    options = accept_fields(cursor, _OPTIONS, "a subscription") if cursor.accept("with") else {}
    return CreateSubscription(name, relation, output, if_not_exists, **options)


def at_subscription(cursor: TokenCursor) -> bool:
    """Whether SUBSCRIPTION and a name follow, and not a cursor called `subscription`."""
    if not cursor.peek_any("subscription"):
        return False
    after = cursor.fork(cursor.index + 1)
    return not (after.at_end or after.peek_any("with"))


def fetch_subscription(
    cursor: TokenCursor, count: int | None, timeout: Callable[[TokenCursor], str]
) -> Statement:
    """After FETCH ... FROM."""
    cursor.expect("subscription")
    name = cursor.name()
    readers: dict[tuple[str, ...], Callable[[TokenCursor], object]] = {
        ("timeout",): timeout,
        ("position",): _position,
        ("share",): TokenCursor.integer,
    }
    options = accept_fields(cursor, readers, "FETCH") if cursor.accept("with") else {}
    return FetchSubscription(name, count, **options)


def acknowledge(cursor: TokenCursor) -> Statement:
    """After ACKNOWLEDGE."""
    cursor.expect("subscription")
    name = cursor.name()
    share = cursor.integer() if cursor.accept("share") else None
    return Acknowledge(name, _position(cursor) if cursor.accept("to") else None, share)


def _position(cursor: TokenCursor) -> Expr:
    """A number, also in quotes, or a parameter."""
    kind, offset = cursor.token.kind, cursor.offset
    number = kind in (TokenKind.NUMBER, TokenKind.STRING) and cursor.token.value.isdigit()
    if not number and kind is not TokenKind.PARAM:
        raise SyntaxError_(
            "a position is a number",
            hint="It is the mz_timestamp of a row whose mz_progressed is true.",
            position=offset + 1,
        )
    value = cursor.advance().value
    tree = exp.Literal.number(value) if number else exp.Parameter(this=exp.Literal.number(value))
    return Expr(tree, offset=offset)
