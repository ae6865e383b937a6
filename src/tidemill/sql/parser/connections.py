"""CREATE and ALTER of secrets and connections. An error never shows the text of a secret."""

from __future__ import annotations

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import (
    AlterConnection,
    AlterSecret,
    ConnectionKind,
    ConnectionOption,
    ConnectionValue,
    CreateConnection,
    CreateSecret,
    Name,
    SecretName,
    Statement,
)
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import (
    Readers,
    accept_name,
    accept_option,
    boolean,
    refuse_kind,
    refuse_twice,
    spelled,
)
from tidemill.sql.tokens import TokenKind

# Kinds of connections that are planned or not supported.
_OTHER_KINDS = (
    ("postgres",),
    ("mysql",),
    ("sql", "server"),
    ("aws", "privatelink"),
    ("aws",),
    ("ssh", "tunnel"),
)


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
    kind = _kind(cursor)
    of = f"a {_CALLED[kind]} connection"
    found: list[ConnectionOption] = []
    closed = cursor.accept_symbol("(")
    _options(cursor, _READERS[kind], of, found)
    if closed:
        cursor.expect_symbol(")")
    return CreateConnection(name, kind, tuple(found), if_not_exists, validate(cursor))


def _kind(cursor: TokenCursor) -> ConnectionKind:
    for kind in ConnectionKind:
        if cursor.accept(*kind.value.lower().split()):
            return kind
    hint = f"A connection can be made TO {' or '.join(k.value for k in ConnectionKind)}."
    raise refuse_kind(cursor, "kind of connection", "CREATE CONNECTION ... TO", hint, _OTHER_KINDS)


def alter_connection(cursor: TokenCursor, name: Name, if_exists: bool) -> Statement:
    """After ALTER CONNECTION [IF EXISTS] name, where no RENAME follows."""
    changed: list[ConnectionOption] = []
    reset: list[str] = []
    while True:
        if cursor.accept("set"):
            cursor.expect_symbol("(")
            _options(cursor, _ALL_READERS, "a connection", changed)
        elif cursor.accept("reset") or cursor.accept("drop"):
            cursor.expect_symbol("(")
            _names(cursor, reset)
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


def _options(
    cursor: TokenCursor, readers: Readers[ConnectionValue], of: str, found: list[ConnectionOption]
) -> None:
    """option, ...; appended to the options already found."""
    names = [o.name for o in found]
    while True:
        offset = cursor.offset
        words, value = accept_option(cursor, readers, of)
        name = _canonical(words)
        refuse_twice(name, names, offset)
        found.append(ConnectionOption(name, value, offset))
        if not cursor.accept_symbol(","):
            return


def _names(cursor: TokenCursor, found: list[str]) -> None:
    while True:
        offset = cursor.offset
        refuse_twice(_canonical(accept_name(cursor, _ALL_READERS, "a connection")), found, offset)
        if not cursor.accept_symbol(","):
            return


def _canonical(words: tuple[str, ...]) -> str:
    return _SAME.get(words, spelled(words))


# -- values


def _text(cursor: TokenCursor) -> ConnectionValue:
    """A string, or SECRET name."""
    if cursor.accept("secret"):
        return SecretName(cursor.name())
    return cursor.string()


def _word(cursor: TokenCursor) -> ConnectionValue:
    """A name from a short list, as a string or bare."""
    text = cursor.string() if cursor.token.kind is TokenKind.STRING else cursor.word()
    return text.upper()


def brokers(cursor: TokenCursor) -> tuple[str, ...]:
    """'h:p', or several in brackets or parentheses."""
    for opening, closing in (("[", "]"), ("(", ")")):
        if cursor.accept_symbol(opening):
            found = [_broker(cursor)]
            while cursor.accept_symbol(","):
                found.append(_broker(cursor))
            cursor.expect_symbol(closing)
            return tuple(found)
    return (_broker(cursor),)


def _broker(cursor: TokenCursor) -> str:
    address = cursor.string("Write the address of a broker as 'host:port'.")
    if cursor.peek_any("using"):
        raise cursor.unsupported(
            "BROKER ... USING", hint="Give the address at which the server reaches the broker."
        )
    return address


_SAME: dict[tuple[str, ...], str] = {("broker",): "BROKERS", ("sasl", "mechanism"): "SASL MECHANISMS"}
_CALLED = {ConnectionKind.KAFKA: "Kafka", ConnectionKind.SCHEMA_REGISTRY: "schema registry"}
_TLS: Readers[ConnectionValue] = {
    ("ssl", "certificate", "authority"): _text,
    ("ssl", "certificate"): _text,
    ("ssl", "key"): _text,
}
_READERS: dict[ConnectionKind, Readers[ConnectionValue]] = {
    ConnectionKind.KAFKA: {
        ("broker",): brokers,
        ("brokers",): brokers,
        ("security", "protocol"): _word,
        ("sasl", "mechanisms"): _word,
        ("sasl", "mechanism"): _word,
        ("sasl", "username"): _text,
        ("sasl", "password"): _text,
        **_TLS,
    },
    ConnectionKind.SCHEMA_REGISTRY: {
        ("url",): _text,
        ("username",): _text,
        ("password",): _text,
        **_TLS,
    },
}
_ALL_READERS: Readers[ConnectionValue] = {
    words: reader for readers in _READERS.values() for words, reader in readers.items()
}
