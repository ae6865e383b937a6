"""Options from a fixed list: NAME [=] value. The statement's parser supplies the list.

Used by connections and Kafka sources. A name that is not in the list raises an error that shows the list.
Free-form properties of a client library can read files and load code, so nothing is passed through.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.parser.cursor import TokenCursor, spell
from tidemill.sql.tokens import Token, TokenKind

T = TypeVar("T")

# The words of an option's name, and the reader of its value.
Readers: TypeAlias = Mapping[tuple[str, ...], Callable[[TokenCursor], T]]

# The number of tokens shown of an unknown name.
_MAX_SHOWN = 12
# The similarity required for a suggestion: one or two letters of a word may be wrong.
_ALIKE = 0.7
# The options of more than one kind together are not listed.
_MAX_LISTED = 16


def accept_name(cursor: TokenCursor, readers: Readers[T], of: str) -> tuple[str, ...]:
    """The words of the next option; `of` names the options' owner for errors."""
    for words in sorted(readers, key=len, reverse=True):
        if cursor.accept(*words):
            return words
    raise _unknown(cursor, readers, of)


def accept_option(cursor: TokenCursor, readers: Readers[T], of: str) -> tuple[tuple[str, ...], T]:
    words = accept_name(cursor, readers, of)
    cursor.accept_symbol("=")
    return words, readers[words](cursor)


def refuse_twice(name: str, found: list[str], offset: int) -> None:
    """Raises for a repeated option; `found` are the names before it."""
    if name in found:
        raise SyntaxError_(f"{name} specified more than once", position=offset + 1)
    found.append(name)


def spelled(words: tuple[str, ...]) -> str:
    return " ".join(words).upper()


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint for an unknown name: the most similar name, before `otherwise`. Names of the client library
    (`security.protocol`) can be similar too.
    """
    spoken = " ".join(name.upper().replace("_", " ").replace(".", " ").replace('"', "").split())
    near = difflib.get_close_matches(spoken, list(known), n=1, cutoff=_ALIKE)
    return f"Perhaps you meant {near[0]}. {otherwise}" if near else otherwise


def boolean(cursor: TokenCursor) -> bool:
    """true, false, or nothing, which is true."""
    if cursor.accept("false"):
        return False
    if not cursor.accept("true") and not cursor.peek_symbol(",") and not cursor.peek_symbol(")"):
        raise cursor.error("Write true or false.")
    return True


def _unknown(cursor: TokenCursor, readers: Readers[T], of: str) -> TidemillError:
    """The error shows only the name: the value may be a password."""
    probe = cursor.fork()
    name: list[Token] = []
    if probe.token.kind is TokenKind.QUOTED:
        name.append(probe.advance())
    while len(name) < _MAX_SHOWN and (
        (probe.token.kind is TokenKind.WORD and not (name and name[0].kind is TokenKind.QUOTED))
        or (name and probe.peek_symbol("."))
    ):
        name.append(probe.advance())
    known = [spelled(words) for words in readers]
    hint = f"The options are {', '.join(known)}." if len(known) > 1 else f"There is {known[0]}."
    if len(known) > _MAX_LISTED:
        hint = "The options depend on the kind: SHOW CREATE shows what it has."
    if not name:
        return cursor.error(hint)
    shown = spell(name).upper() if name[0].kind is TokenKind.WORD else spell(name)
    if len(known) > 1:
        hint = nearest(shown, known, hint)
    return SyntaxError_(f"{of} has no option {shown}", hint=hint, position=cursor.offset + 1)


def refuse_kind(
    cursor: TokenCursor,
    what: str,
    clause: str,
    hint: str,
    not_yet: Iterable[tuple[str, ...]],
    known: Iterable[tuple[str, ...]] = (),
) -> TidemillError:
    """The error for a word that names no kind of `what`. `clause` precedes the word; `not_yet` are planned
    kinds, `known` the kinds to suggest.
    """
    position = cursor.offset + 1
    for words in not_yet:
        if cursor.peek_words(*words):
            text = f"{clause} {spelled(words)} is not supported yet"
            return Unsupported(text, hint=hint, position=position)
    if cursor.token.kind is not TokenKind.WORD:
        return cursor.error(hint)
    name = cursor.token.value.upper()
    hint = nearest(name, map(spelled, known), hint)
    return SyntaxError_(f"unknown {what}: {name}", hint=hint, position=position)


def accept_fields(cursor: TokenCursor, readers: Readers[Any], of: str) -> dict[str, Any]:
    """(NAME [=] value, ...) by the statement's fields, which have the options' names."""
    cursor.expect_symbol("(")
    said: list[str] = []
    found: dict[str, Any] = {}
    while True:
        offset = cursor.offset
        words, value = accept_option(cursor, readers, of)
        refuse_twice(spelled(words), said, offset)
        found["_".join(words)] = value
        if cursor.accept_symbol(")"):
            return found
        cursor.expect_symbol(",")
