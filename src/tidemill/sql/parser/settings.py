"""SET, RESET, SHOW of variables, ALTER SYSTEM, DISCARD."""

from __future__ import annotations

from tidemill.sql.ast import (
    AlterSystem,
    Discard,
    DiscardKind,
    ResetVariable,
    SetVariable,
    ShowVariable,
    Statement,
)
from tidemill.sql.parser.compatibility import set_constraints
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.options import signed_token
from tidemill.sql.parser.roles import set_role
from tidemill.sql.parser.transactions import set_transaction
from tidemill.sql.tokens import TokenKind


def set_(cursor: TokenCursor) -> Statement:
    """After SET."""
    if cursor.accept("transaction"):
        return set_transaction(cursor, session=False)
    if cursor.accept("session", "characteristics"):
        cursor.expect("as", "transaction")
        return set_transaction(cursor, session=True)
    if cursor.accept("constraints"):
        return set_constraints(cursor)
    local = cursor.accept("local")
    if cursor.accept("session", "authorization") or cursor.accept("session", "session", "authorization"):
        return _authorization(cursor, local)
    if not local and cursor.peek_words("session") and cursor.following.key not in ("to", "="):
        cursor.expect("session")
    if cursor.peek_words("role") and cursor.following.key not in ("to", "="):
        cursor.expect("role")
        return SetVariable("role", set_role(cursor), local)
    if cursor.accept("time", "zone"):
        return SetVariable("timezone", _time_zone(cursor), local)
    if cursor.peek_words("schema") and cursor.following.kind is TokenKind.STRING:
        cursor.expect("schema")
        return SetVariable("search_path", (_value(cursor),), local)
    if cursor.accept("names"):
        return SetVariable("client_encoding", _values(cursor), local)
    name = _variable(cursor)
    if not cursor.accept("to"):
        cursor.expect_symbol("=")
    return SetVariable(name, _values(cursor), local)


def _authorization(cursor: TokenCursor, local: bool) -> Statement:
    """The login role cannot be changed; DEFAULT returns to it, as clients do with pooled sessions."""
    if not cursor.accept("default"):
        raise cursor.unsupported("SET SESSION AUTHORIZATION", hint="Use SET ROLE.")
    return SetVariable("role", None, local)


def reset(cursor: TokenCursor) -> Statement:
    """After RESET."""
    if cursor.accept("session", "authorization"):
        return ResetVariable("role")
    return ResetVariable(_variable_or_all(cursor))


def show_variable(cursor: TokenCursor) -> Statement:
    """After SHOW, if no other form matches."""
    return ShowVariable(_variable_or_all(cursor))


def alter_system(cursor: TokenCursor) -> Statement:
    """After ALTER SYSTEM."""
    if cursor.accept("reset"):
        return AlterSystem(None if cursor.accept("all") else _variable(cursor), None)
    cursor.expect("set")
    name = _variable(cursor)
    if not cursor.accept("to"):
        cursor.expect_symbol("=")
    return AlterSystem(name, _values(cursor))


def discard(cursor: TokenCursor) -> Statement:
    """After DISCARD."""
    for kind in DiscardKind:
        if cursor.accept(kind.value.lower()):
            return Discard(kind)
    if cursor.accept("temporary"):
        return Discard(DiscardKind.TEMP)
    raise cursor.error()


def _variable_or_all(cursor: TokenCursor) -> str | None:
    if cursor.accept("all"):
        return None
    if cursor.accept("time", "zone"):
        return "timezone"
    if cursor.accept("transaction", "isolation", "level"):
        return "transaction_isolation"
    if cursor.accept("session", "authorization"):
        return "session_authorization"
    return _variable(cursor)


def _variable(cursor: TokenCursor) -> str:
    """A variable's name: its case does not matter, also when it is quoted."""
    parts = [cursor.ident().value]
    while cursor.accept_symbol("."):
        parts.append(cursor.word())
    return ".".join(parts).lower()


def _time_zone(cursor: TokenCursor) -> tuple[str, ...] | None:
    if cursor.accept("default") or cursor.accept("local"):
        return None
    if cursor.accept("interval"):
        raise cursor.unsupported(
            "SET TIME ZONE INTERVAL", hint="Give the zone's name, or its hours east of Greenwich."
        )
    return (_value(cursor),)


def _values(cursor: TokenCursor) -> tuple[str, ...] | None:
    if cursor.accept("default"):
        return None
    values = [_value(cursor)]
    while cursor.accept_symbol(","):
        values.append(_value(cursor))
    return tuple(values)


def _value(cursor: TokenCursor) -> str:
    """A string, a word, or a number with its sign."""
    sign, token = signed_token(cursor)
    return sign + token.value
