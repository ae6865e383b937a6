"""CREATE and ALTER of secrets and connections. An error never shows the text of a secret."""

from __future__ import annotations

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import (
    AlterConnection,
    AlterSecret,
    ConnectionOption,
    CreateConnection,
    CreateSecret,
    Name,
    Statement,
)
from tidemill.sql.parser.connection_kinds import ConnectionSyntax, any_kind, connection_kind
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_name, accept_option, boolean, refuse_twice
from tidemill.sql.tokens import TokenKind

# -- secrets


def create_secret(cursor: TokenCursor) -> Statement:
    """After CREATE SECRET."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    return CreateSecret(name, _secret_text(cursor, "CREATE SECRET"), if_not_exists)


def alter_secret(cursor: TokenCursor, name: Name, if_exists: bool) -> Statement:
    """After ALTER SECRET [IF EXISTS] name, where no RENAME follows."""
    return AlterSecret(name, _secret_text(cursor, "ALTER SECRET"), if_exists)


def _secret_text(cursor: TokenCursor, statement: str) -> str:
    """AS '...' and the end of the statement. Any other text may hold the secret, so the error does not quote
    it.
    """
    position = cursor.offset + 1
    if cursor.accept("as") and cursor.token.kind is TokenKind.STRING:
        text = cursor.string()
        if cursor.at_end:
            return text
        position = cursor.offset + 1
    raise SyntaxError_(
        f"syntax error in {statement}", hint=f"Write {statement} name AS '...'.", position=position
    )


# -- connections


def create_connection(cursor: TokenCursor) -> Statement:
    """After CREATE CONNECTION. FOR kind option, ... is the older spelling of TO kind (option, ...)."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    if not cursor.accept("for"):
        cursor.expect("to", hint="Write CREATE CONNECTION name TO KAFKA (BROKER 'host:port').")
    kind, syntax = connection_kind(cursor)
    found: list[ConnectionOption] = []
    closed = cursor.accept_symbol("(")
    _options(cursor, syntax, f"{syntax.article} {syntax.called} connection", found)
    if closed:
        cursor.expect_symbol(")")
    return CreateConnection(name, kind, tuple(found), if_not_exists, validate(cursor))


def alter_connection(cursor: TokenCursor, name: Name, if_exists: bool) -> Statement:
    """After ALTER CONNECTION [IF EXISTS] name, where no RENAME follows."""
    changed: list[ConnectionOption] = []
    reset: list[str] = []
    syntax = any_kind()
    while True:
        if cursor.accept("set"):
            cursor.expect_symbol("(")
            _options(cursor, syntax, "a connection", changed)
        elif cursor.accept("reset") or cursor.accept("drop"):
            cursor.expect_symbol("(")
            _names(cursor, syntax, reset)
        elif cursor.peek_any("rotate", "owner"):
            raise cursor.unsupported(f"ALTER CONNECTION ... {cursor.token.value.upper()}")
        else:
            raise cursor.error()
        cursor.expect_symbol(")")
        if not cursor.accept_symbol(","):
            break
    both = [o for o in changed if o.name in reset]
    if both:
        raise SyntaxError_(f"{both[0].name} is both set and reset", position=both[0].offset + 1)
    return AlterConnection(name, tuple(changed), tuple(reset), if_exists, validate(cursor))


def validate(cursor: TokenCursor) -> bool:
    """[WITH (VALIDATE [=] true | false)]"""
    if not cursor.accept("with"):
        return True
    cursor.expect_symbol("(")
    _, value = accept_option(cursor, {("validate",): boolean}, "the statement")
    cursor.expect_symbol(")")
    return value


def _options(cursor: TokenCursor, syntax: ConnectionSyntax, of: str, found: list[ConnectionOption]) -> None:
    """option, ...; appended to the options already found."""
    names = [o.name for o in found]
    while True:
        offset = cursor.offset
        words, value = accept_option(cursor, syntax.readers, of)
        name = syntax.name(words)
        refuse_twice(name, names, offset)
        found.append(ConnectionOption(name, value, offset))
        if not cursor.accept_symbol(","):
            return


def _names(cursor: TokenCursor, syntax: ConnectionSyntax, found: list[str]) -> None:
    while True:
        offset = cursor.offset
        refuse_twice(syntax.name(accept_name(cursor, syntax.readers, "a connection")), found, offset)
        if not cursor.accept_symbol(","):
            return
