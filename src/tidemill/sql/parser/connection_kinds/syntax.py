"""The options of a kind of connection as statements write them; readers of values that kinds share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.sql.ast import ConnectionValue, SecretName
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import spelled
from tidemill.sql.tokens import TokenKind


@dataclass(frozen=True, slots=True)
class ConnectionSyntax:
    called: str  # in errors: "a <called> connection has no option ..."
    # The words of each option, and the reader of its value.
    readers: dict[tuple[str, ...], Callable[[TokenCursor], ConnectionValue]]
    # Options that are another spelling of an option: their words, and its name.
    same: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])

    @property
    def article(self) -> str:
        return "an" if self.called[0] in "AEIO" else "a"

    def name(self, words: tuple[str, ...]) -> str:
        """The option's name in `ast.ConnectionOption`."""
        return self.same.get(words, spelled(words))


def text(cursor: TokenCursor) -> ConnectionValue:
    """A string, or SECRET name."""
    if cursor.accept("secret"):
        return SecretName(cursor.name())
    return cursor.string()


def word(cursor: TokenCursor) -> ConnectionValue:
    """A name from a short list, as a string or bare."""
    found = cursor.string() if cursor.token.kind is TokenKind.STRING else cursor.word()
    return found.upper()


_WRITE_PORT = "Write PORT n."


def port(cursor: TokenCursor) -> ConnectionValue:
    """A number, which may be written as text."""
    if cursor.token.kind is not TokenKind.STRING:
        return cursor.integer(_WRITE_PORT)
    if not (cursor.token.value.isascii() and cursor.token.value.isdigit()):
        raise cursor.error(_WRITE_PORT)
    return int(cursor.string()[:18])


TLS = {
    ("ssl", "certificate", "authority"): text,
    ("ssl", "certificate"): text,
    ("ssl", "key"): text,
}
