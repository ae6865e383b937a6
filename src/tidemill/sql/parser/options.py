"""Options in parentheses: (NAME [=] value, ...), for sources and connections."""

from __future__ import annotations

from tidemill.errors import SyntaxError_
from tidemill.sql.ast import Option
from tidemill.sql.ast.sources import OptionValue
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import Token, TokenKind

_BOOLEANS = {"true": True, "false": False}
# More digits than any 64-bit number has are kept as text.
_MAX_DIGITS = 18


def options(cursor: TokenCursor) -> tuple[Option, ...]:
    """( NAME [=] value, ... ), or nothing. The caller checks names and values; this function only refuses a
    name that occurs twice.
    """
    if not cursor.accept_symbol("("):
        return ()
    found: list[Option] = []
    while True:
        option = _option(cursor)
        if any(o.name == option.name for o in found):
            raise SyntaxError_(f"{option.name} specified more than once", position=option.offset + 1)
        found.append(option)
        if cursor.accept_symbol(")"):
            return tuple(found)
        cursor.expect_symbol(",")


def _option(cursor: TokenCursor) -> Option:
    offset = cursor.offset
    words: list[str] = []
    while cursor.token.kind is TokenKind.WORD:
        words.append(cursor.word())
    if not words:
        raise cursor.error()
    if cursor.accept_symbol("="):
        return Option(_name(words), value(cursor), offset)
    if cursor.peek_symbol(",") or cursor.peek_symbol(")"):
        if len(words) > 1 and words[-1] in _BOOLEANS:
            return Option(_name(words[:-1]), _BOOLEANS[words[-1]], offset)
        return Option(_name(words), None, offset)
    return Option(_name(words), value(cursor), offset)


def _name(words: list[str]) -> str:
    return " ".join(words).upper()


def signed_token(cursor: TokenCursor) -> tuple[str, Token]:
    """A string, a word, or a number, and the sign before the number."""
    sign = ""
    if cursor.peek_symbol("-") or cursor.peek_symbol("+"):
        sign = cursor.advance().value.replace("+", "")
        if cursor.token.kind is not TokenKind.NUMBER:
            raise cursor.error()
    token = cursor.token
    if token.kind not in (TokenKind.STRING, TokenKind.WORD, TokenKind.QUOTED, TokenKind.NUMBER):
        raise cursor.error()
    cursor.advance()
    return sign, token


def value(cursor: TokenCursor) -> OptionValue:
    """A string, a number with its sign, true, false, or another word."""
    sign, token = signed_token(cursor)
    if token.kind is TokenKind.NUMBER and token.value.isdigit() and len(token.value) <= _MAX_DIGITS:
        return int(sign + token.value)
    if token.kind is TokenKind.WORD and token.value in _BOOLEANS:
        return _BOOLEANS[token.value]
    return sign + token.value
