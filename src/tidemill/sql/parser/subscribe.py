"""SUBSCRIBE, as a statement or inside COPY, DECLARE, EXPLAIN and PREPARE.

    SUBSCRIBE [TO] name | (query) [output] [WITH (options)] [AS OF [AT LEAST] t] [UP TO t] [output]

`dispatch` calls `subscribe` for a statement; the others call `accept_subscribe` to check for one. None of its
words is reserved: a relation may be called `envelope`, a column `up`.
"""

from __future__ import annotations

from typing import Literal

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.ast import (
    AsOf,
    EnvelopeDebezium,
    EnvelopeUpsert,
    Expr,
    Ident,
    Name,
    OrderItem,
    Query,
    Subscribe,
    SubscribeOutput,
    SubscribePlain,
    TimeBound,
    WithinTimestampOrderBy,
)
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import boolean, refuse_twice
from tidemill.sql.parser.query import STARTS, at_query, query_to_end
from tidemill.sql.parser.refused import refuse_statement
from tidemill.sql.parser.subscribe_hints import (
    KEY,
    OPTIONS,
    RELATION_OR_QUERY,
    check_end,
    paren_hint,
    start_hint,
)
from tidemill.sql.tokens import TokenKind

# An expression ends before one of these words, if one of those follows it: alone it may be a column. No word:
# it is reserved.
_CLAUSES: dict[str, tuple[str, ...]] = {
    "with": (),
    "as": (),
    "up": ("to",),
    "within": ("timestamp",),
    "envelope": ("upsert", "debezium"),
}
_ORDER_ENDS: dict[str, tuple[str, ...]] = {",": (), "asc": (), "desc": (), "nulls": ("first", "last")}


def accept_subscribe(cursor: TokenCursor) -> bool:
    """Whether a SUBSCRIBE starts here; if so, the cursor moves past the word."""
    if cursor.peek_any("tail"):
        raise refuse_statement(cursor)
    return cursor.accept("subscribe")


def subscribe(cursor: TokenCursor) -> Subscribe:
    """After SUBSCRIBE; up to its last clause."""
    offset = cursor.fork(cursor.index - 1).offset
    cursor.accept("to")
    relation = followed(cursor)
    output = output_clause(cursor, None)
    snapshot, progress = _options(cursor)
    as_of = _as_of(cursor)
    up_to = _up_to(cursor)
    output = output_clause(cursor, output)
    output_clause(cursor, output)  # a third is refused as a second is
    check_end(cursor, relation)
    return Subscribe(relation, output or SubscribePlain(), snapshot, progress, as_of, up_to, offset)


def followed(cursor: TokenCursor) -> Name | Query:
    """A relation's name, or a query in parentheses."""
    if cursor.peek_any(*STARTS):
        raise SyntaxError_(
            f"SUBSCRIBE {cursor.token.value.upper()} needs parentheses",
            hint=start_hint(cursor),
            position=cursor.offset + 1,
        )
    if not cursor.accept_symbol("("):
        return _name(cursor)
    if not at_query(cursor):
        raise cursor.error(paren_hint(cursor))
    query = query_to_end(cursor)
    if query.as_of is not None:
        raise Unsupported(
            "AS OF is not supported inside SUBSCRIBE (...)",
            hint="Write it behind the query: SUBSCRIBE (query) AS OF ...",
            position=query.as_of.time.offset + 1,
        )
    cursor.expect_symbol(")")
    return query


def _name(cursor: TokenCursor) -> Name:
    try:
        return cursor.name()
    except SyntaxError_ as e:
        e.hint = e.hint or RELATION_OR_QUERY
        raise


# -- the output


def output_clause(cursor: TokenCursor, before: SubscribeOutput | None) -> SubscribeOutput | None:
    """The output clause if one follows, else `before`, the one already read."""
    offset = cursor.offset
    if not cursor.peek_any("within", "envelope"):
        return before
    if before is not None:
        raise _expected("end of statement", cursor)
    if cursor.accept("within"):
        cursor.expect("timestamp", "order", "by")
        items = [_order_item(cursor)]
        while cursor.accept_symbol(","):
            items.append(_order_item(cursor))
        return WithinTimestampOrderBy(tuple(items), offset)
    cursor.expect("envelope")
    if cursor.accept("upsert"):
        return EnvelopeUpsert(_keys(cursor, "UPSERT"), offset)
    if cursor.accept("debezium"):
        return EnvelopeDebezium(_keys(cursor, "DEBEZIUM"), offset)
    raise _expected("one of UPSERT or DEBEZIUM", cursor)


def _keys(cursor: TokenCursor, envelope: str) -> tuple[Ident, ...]:
    """(KEY (column, ...))"""
    try:
        cursor.expect_symbol("(")
        cursor.expect("key")
        keys = cursor.idents_in_parentheses()
        cursor.expect_symbol(")")
    except SyntaxError_ as e:
        e.hint = KEY.format(envelope)
        raise
    return keys


def _order_item(cursor: TokenCursor) -> OrderItem:
    expression = _expression(cursor, ordered=True)
    descending = cursor.accept("desc")
    if not descending:
        cursor.accept("asc")
    nulls_first = descending
    if cursor.accept("nulls"):
        nulls_first = cursor.accept("first")
        if not nulls_first:
            cursor.expect("last")
    return OrderItem(expression, descending, nulls_first)


# -- options and times


def _options(cursor: TokenCursor) -> tuple[bool, bool]:
    """[WITH (SNAPSHOT [[=] bool], PROGRESS [[=] bool])]: snapshot, progress."""
    said = {"snapshot": True, "progress": False}
    if not cursor.accept("with"):
        return said["snapshot"], said["progress"]
    cursor.expect_symbol("(", OPTIONS)
    found: list[str] = []
    while True:
        if not cursor.peek_any(*said):
            raise _expected("one of PROGRESS or SNAPSHOT", cursor)
        refuse_twice(cursor.token.value.upper(), found, cursor.offset)
        name = cursor.word()
        if cursor.accept_symbol("=") and (cursor.peek_symbol(",") or cursor.peek_symbol(")")):
            raise cursor.error()
        said[name] = boolean(cursor)
        if cursor.accept_symbol(")"):
            return said["snapshot"], said["progress"]
        cursor.expect_symbol(",")


def _as_of(cursor: TokenCursor) -> AsOf | Literal[TimeBound.EARLIEST] | None:
    if not cursor.accept("as", "of"):
        return None
    at_least = cursor.accept("at", "least")
    if cursor.peek_any("earliest"):
        if at_least:
            raise cursor.error()
        cursor.expect("earliest")
        return TimeBound.EARLIEST
    if cursor.peek_any("latest"):
        raise cursor.error("LATEST is for UP TO. Without AS OF a subscription begins now.")
    return AsOf(_expression(cursor), at_least)


def _up_to(cursor: TokenCursor) -> Expr | Literal[TimeBound.LATEST] | None:
    if not cursor.accept("up", "to"):
        return None
    if cursor.accept("latest"):
        return TimeBound.LATEST
    if cursor.peek_any("earliest"):
        raise cursor.error("EARLIEST is for AS OF.")
    return _expression(cursor)


def _expression(cursor: TokenCursor, *, ordered: bool = False) -> Expr:
    """An expression up to the next clause; with `ordered` one of a list, which ASC, DESC or NULLS may
    follow."""
    ends = _CLAUSES | (_ORDER_ENDS if ordered else {})
    probe = cursor.fork()
    while True:
        end = probe.find(*ends)
        probe.rewind(end)
        after = ends.get(probe.token.value, ())
        # The end, a closing parenthesis, or a word that with its successor cannot be an operand.
        if probe.at_end or not after or probe.following.key in after:
            return cursor.sub(end).expression()
        probe.advance()


def _expected(what: str, cursor: TokenCursor) -> TidemillError:
    token = cursor.token
    if token.kind is TokenKind.END:
        found = "the end"
    else:
        found = cursor.text[token.start : token.end]
        found = found.upper() if token.kind is TokenKind.WORD else found
    return SyntaxError_(f"Expected {what}, found {found}", position=cursor.offset + 1)
