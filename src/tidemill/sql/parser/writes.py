"""INSERT, UPDATE, DELETE, TRUNCATE."""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import (
    Assignment,
    Delete,
    Expr,
    Ident,
    Insert,
    Query,
    Statement,
    Truncate,
    Update,
    Values,
)
from tidemill.sql.parser import sqlglot_parser
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import STARTS, query_to_end
from tidemill.sql.parser.rows import value_or_default, values_rows
from tidemill.sql.tokens import Token, TokenKind


def insert(cursor: TokenCursor, ctes: exp.With | None = None) -> Statement:
    """After INSERT; `ctes` preceded it."""
    cursor.expect("into")
    table = cursor.name()
    alias = cursor.ident() if cursor.accept("as") else None
    columns: tuple[Ident, ...] = ()
    # INSERT INTO t (a, b) ... is a column list, INSERT INTO t (SELECT ...) a query.
    if cursor.peek_symbol("(") and not _is_query(cursor):
        columns = cursor.idents_in_parentheses()
    if cursor.peek_any("overriding"):
        raise cursor.unsupported("OVERRIDING")
    source: Values | Query | None = None
    if columns or not cursor.accept("default", "values"):
        _refuse_on_conflict(cursor)
        if ctes is not None and cursor.peek_any("values"):
            raise cursor.unsupported("WITH before INSERT ... VALUES", hint="Insert a SELECT.")
        source = values_rows(cursor)
        if source is None:
            source = query_to_end(cursor, "returning")
        if ctes is not None and isinstance(source, Query):
            _give(source, ctes)
    return Insert(table, source, columns, alias, _returning(cursor))


def _give(query: Query, ctes: exp.With) -> None:
    """Adds the CTEs before the query's own."""
    own = query.tree.args.get("with_")
    if own is not None:
        names = {cte.alias for cte in own.expressions} & {cte.alias for cte in ctes.expressions}
        if names or bool(own.args.get("recursive")) != bool(ctes.args.get("recursive")):
            raise Unsupported(
                "WITH before INSERT, and another one like it in the query, is not supported",
                hint="Put all of it into the query.",
                position=query.offset + 1,
            )
        ctes.set("expressions", ctes.expressions + own.expressions)
    query.tree.set("with_", ctes)


def _refuse_on_conflict(cursor: TokenCursor) -> None:
    at = cursor.find("conflict")
    if at == cursor.index:
        return
    clause = cursor.fork(at - 1)
    if clause.accept("on", "conflict") and (clause.peek_symbol("(") or clause.peek_any("do", "on")):
        raise cursor.fork(at - 1).unsupported(
            "ON CONFLICT",
            hint="Keys are not enforced: DELETE the old row and INSERT the new one in one transaction.",
        )


def _is_query(cursor: TokenCursor) -> bool:
    """Whether what follows an opening parenthesis is a query and not a list of names or values."""
    token = cursor.following
    if token[:2] == (TokenKind.WORD, "values") and not cursor.peek_symbol("(", ahead=2):
        return False  # a column's name
    return (token.kind is TokenKind.WORD and token.value in STARTS) or token[:2] == (TokenKind.SYMBOL, "(")


def update(cursor: TokenCursor) -> Statement:
    """After UPDATE."""
    cursor.accept("only")
    table = cursor.name()
    alias = _alias(cursor, "set")
    cursor.expect("set")
    assignments = _assignments(cursor)
    while cursor.accept_symbol(","):
        assignments += _assignments(cursor)
    from_ = _relations(cursor) if cursor.accept("from") else None
    return Update(table, tuple(assignments), alias, from_, _where(cursor), _returning(cursor))


def delete(cursor: TokenCursor) -> Statement:
    """After DELETE."""
    cursor.expect("from")
    cursor.accept("only")
    table = cursor.name()
    alias = _alias(cursor, "using", "where", "returning")
    using = _relations(cursor) if cursor.accept("using") else None
    return Delete(table, alias, using, _where(cursor), _returning(cursor))


def truncate(cursor: TokenCursor) -> Statement:
    """After TRUNCATE."""
    cursor.accept("table")
    cursor.accept("only")
    tables = cursor.names()
    # Tidemill has neither identity columns nor foreign keys.
    if not cursor.accept("continue", "identity"):
        cursor.accept("restart", "identity")
    if not cursor.accept("restrict"):
        cursor.accept("cascade")
    return Truncate(tables)


def _alias(cursor: TokenCursor, *not_one: str) -> Ident | None:
    if cursor.accept("as"):
        return cursor.ident()
    if cursor.at_end or cursor.peek_any(*not_one):
        return None
    return cursor.ident()


def _assignments(cursor: TokenCursor) -> list[Assignment]:
    """c = value, or (c, ...) = (value, ...), ROW (value, ...) or (SELECT ...)."""
    if not cursor.peek_symbol("("):
        column = cursor.ident()
        if cursor.peek_symbol(".") or cursor.peek_symbol("["):
            raise cursor.unsupported("assignment to a part of a column")
        cursor.expect_symbol("=")
        return [Assignment((column,), value_or_default(cursor, ",", "from", "where", "returning"))]
    columns = cursor.idents_in_parentheses()
    cursor.expect_symbol("=")
    offset = cursor.offset
    cursor.accept("row")
    if not cursor.peek_symbol("("):
        raise cursor.error()
    if _is_query(cursor):
        return [Assignment(columns, cursor.expression(",", "from", "where", "returning"))]
    cursor.expect_symbol("(")
    values = [value_or_default(cursor, ",")]
    while cursor.accept_symbol(","):
        values.append(value_or_default(cursor, ","))
    cursor.expect_symbol(")")
    if len(values) != len(columns):
        raise SyntaxError_("number of columns does not match number of values", position=offset + 1)
    return [Assignment((c,), v) for c, v in zip(columns, values, strict=True)]


def _relations(cursor: TokenCursor) -> Query:
    """The items of FROM or USING, as SELECT * FROM items."""
    offset = cursor.offset
    tokens, base = cursor.cut(cursor.find("where", "returning"))
    head = [
        Token(TokenKind.WORD, "select", offset, offset),
        Token(TokenKind.SYMBOL, "*", offset, offset),
        Token(TokenKind.WORD, "from", offset, offset),
    ]
    return Query(sqlglot_parser.parse_body(cursor.text, head + tokens, base - len(head)), None, offset)


def _where(cursor: TokenCursor) -> Expr | None:
    if not cursor.accept("where"):
        return None
    if cursor.peek_words("current", "of"):
        raise cursor.unsupported("WHERE CURRENT OF")
    return cursor.expression("returning")


def _returning(cursor: TokenCursor) -> tuple[Expr, ...]:
    return cursor.items() if cursor.accept("returning") else ()
