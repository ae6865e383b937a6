"""DECLARE, FETCH, CLOSE, MOVE."""

from __future__ import annotations

import re

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.ast import Close, Declare, Fetch, Statement
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import query_to_end
from tidemill.sql.parser.subscribe import accept_subscribe, subscribe
from tidemill.sql.parser.subscriptions import at_subscription, fetch_subscription
from tidemill.sql.tokens import TokenKind

# No exponent, no other base: intervals have none.
_SECONDS = re.compile(r"\d+(\.\d*)?|\.\d+")


def declare(cursor: TokenCursor) -> Statement:
    """After DECLARE."""
    name = cursor.ident()
    binary = False
    while not cursor.peek_any("cursor"):
        if cursor.accept("binary"):
            binary = True
        elif cursor.peek_any("scroll"):
            raise cursor.unsupported("SCROLL", hint="Cursors go forward only.")
        elif not (
            cursor.accept("no", "scroll") or cursor.accept("insensitive") or cursor.accept("asensitive")
        ):
            raise cursor.error()
    cursor.expect("cursor")
    at = cursor.fork(cursor.index)
    hold = cursor.accept("with", "hold")
    if not hold:
        cursor.accept("without", "hold")
    cursor.expect("for")
    if not accept_subscribe(cursor):
        return Declare(name, query_to_end(cursor), binary, hold)
    if hold:
        raise at.unsupported(
            "SUBSCRIBE of a cursor WITH HOLD", hint="Its rows have no end: leave out WITH HOLD."
        )
    return Declare(name, subscribe(cursor), binary)


def fetch(cursor: TokenCursor) -> Statement:
    """After FETCH."""
    count = _count(cursor)
    if not cursor.accept("from"):
        cursor.accept("in")
    if at_subscription(cursor):
        return fetch_subscription(cursor, count, _timeout)
    name = cursor.ident()
    timeout = None
    if cursor.accept("with"):
        cursor.expect_symbol("(")
        if not cursor.accept("timeout"):
            raise _option_error(cursor)
        cursor.accept_symbol("=")
        timeout = _timeout(cursor)
        cursor.expect_symbol(")")
    return Fetch(name, count, timeout)


def move(cursor: TokenCursor) -> Statement:
    """After MOVE."""
    count = _count(cursor, "MOVE")
    if not cursor.accept("from"):
        cursor.accept("in")
    return Fetch(cursor.ident(), count, move=True)


def _timeout(cursor: TokenCursor) -> str:
    """An interval in quotes, or seconds, which are an interval as well."""
    token = cursor.token
    if token.kind is TokenKind.NUMBER and _SECONDS.fullmatch(token.value):
        return cursor.advance().value
    return cursor.string("Write seconds, as in TIMEOUT = 0.5, or an interval, as in TIMEOUT = '500 ms'.")


def _option_error(cursor: TokenCursor) -> TidemillError:
    if cursor.at_end:
        return cursor.error()
    return SyntaxError_(f"Expected TIMEOUT, found {cursor.token.value}", position=cursor.offset + 1)


def _count(cursor: TokenCursor, verb: str = "FETCH") -> int | None:
    """How many rows; None = all. A word of the grammar may also be the cursor's name: FETCH next, FETCH all
    FROM next."""
    if cursor.peek_any("prior", "first", "last", "absolute", "relative", "backward") and not _is_name(cursor):
        raise cursor.unsupported(f"{verb} {cursor.token.value.upper()}", hint="Cursors go forward only.")
    if cursor.peek_symbol("-"):
        raise cursor.unsupported(f"{verb} of a negative count", hint="Cursors go forward only.")
    if cursor.peek_any("forward") and not _is_name(cursor):
        cursor.expect("forward")
    if cursor.peek_any("next") and not _is_name(cursor):
        cursor.expect("next")
        return 1
    if cursor.accept("all"):
        return None
    cursor.accept_symbol("+")
    return cursor.integer() if cursor.token.kind is TokenKind.NUMBER else 1


def _is_name(cursor: TokenCursor) -> bool:
    """Whether this word is the last before the end or WITH: then it names the cursor."""
    after = cursor.fork(cursor.index + 1)
    return after.at_end or after.peek_any("with")


def close(cursor: TokenCursor) -> Statement:
    """After CLOSE."""
    return Close(None if cursor.accept("all") else cursor.ident())
