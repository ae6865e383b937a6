"""Options that are known by name: NAME [=] value, out of a list that the statement's parser brings.

Connections and Kafka sources are written with it. A name that is not in the list is refused with the list:
what a client library would take beside (free-form properties) can read files and load code, so nothing is
handed through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.parser.cursor import Cursor, spell
from tidemill.sql.tokens import Kind, Token

T = TypeVar("T")

# The words of an option's name, and who reads its value.
Readers: TypeAlias = Mapping[tuple[str, ...], Callable[[Cursor], T]]

# How many tokens of a name that is not known are shown.
_MAX_SHOWN = 12


def accept_name(cursor: Cursor, readers: Readers[T], of: str) -> tuple[str, ...]:
    """The words of the option that comes next; `of` says whose options they are."""
    for words in sorted(readers, key=len, reverse=True):
        if cursor.accept(*words):
            return words
    raise _unknown(cursor, readers, of)


def accept_option(cursor: Cursor, readers: Readers[T], of: str) -> tuple[tuple[str, ...], T]:
    words = accept_name(cursor, readers, of)
    cursor.accept_symbol("=")
    return words, readers[words](cursor)


def refuse_twice(name: str, found: list[str], offset: int) -> None:
    """`found` are the names before it."""
    if name in found:
        raise SyntaxError_(f"{name} specified more than once", position=offset + 1)
    found.append(name)


def spelled(words: tuple[str, ...]) -> str:
    return " ".join(words).upper()


def boolean(cursor: Cursor) -> bool:
    """true, false, or nothing, which is true."""
    if cursor.accept("false"):
        return False
    if not cursor.accept("true") and not cursor.peek_symbol(",") and not cursor.peek_symbol(")"):
        raise cursor.error()
    return True


def _unknown(cursor: Cursor, readers: Readers[T], of: str) -> TidemillError:
    """Only the name is shown, for the value may be a password."""
    probe = cursor.fork()
    name: list[Token] = []
    if probe.token.kind is Kind.QUOTED:
        name.append(probe.advance())
    while len(name) < _MAX_SHOWN and (
        (probe.token.kind is Kind.WORD and not (name and name[0].kind is Kind.QUOTED))
        or (name and probe.peek_symbol("."))
    ):
        name.append(probe.advance())
    if not name:
        return cursor.error()
    known = [spelled(words) for words in readers]
    return SyntaxError_(
        f"{of} has no option {spell(name).upper() if name[0].kind is Kind.WORD else spell(name)}",
        hint=f"The options are {', '.join(known)}." if len(known) > 1 else f"There is {known[0]}.",
        position=cursor.offset + 1,
    )
