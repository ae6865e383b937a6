"""Known statements that are not implemented: each raises an error with its name, and is never half parsed.

`compatibility` has the statements that are accepted and do nothing.
"""

from __future__ import annotations

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.names import words
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import TokenKind

# Statements of PostgreSQL that Tidemill does not have, by their first word, with an alternative.
_REFUSED = {
    **dict.fromkeys(("call", "do", "import", "load", "security")),
    "cluster": "Rows have no order of their own; say ORDER BY where they are read.",
    "listen": "SUBSCRIBE tells of changes as they happen.",
    "lock": "Nothing waits for a lock: a commit is refused (40001) where what it read has changed.",
    "merge": "Use INSERT, UPDATE and DELETE in one transaction.",
    "notify": "SUBSCRIBE tells of changes as they happen.",
}
_TWO_WORDS = frozenset({"import", "security"})
# The objects that PostgreSQL can CREATE, DROP or ALTER; any other word is a syntax error.
_OBJECTS = words(
    """
    access aggregate cast collation constraint conversion default domain event extension foreign function
    global group index language large local materialized operator owned policy procedural procedure
    publication recursive routine rule sequence server statistics tablespace temp temporary text transform
    trigger trusted type unlogged user
    """
)
_TWO_WORD_OBJECTS = frozenset({"access", "default", "event", "foreign", "large", "text", "user"})
_SHORT_LIVED = "Use WITH for results that one statement needs."
_HINTS = {
    **dict.fromkeys((("CREATE", w) for w in ("temp", "temporary", "local", "global")), _SHORT_LIVED),
    ("CREATE", "group"): "Use CREATE ROLE: a role with members is a group.",
    ("CREATE", "recursive"): "Write CREATE VIEW ... AS WITH RECURSIVE ...",
    ("CREATE", "sequence"): "Give values yourself, or use gen_random_uuid() where rows are inserted.",
    ("CREATE", "unlogged"): "Leave UNLOGGED out: what is written is durable in every table.",
    ("ALTER", "default"): "GRANT ... ON ALL TABLES IN SCHEMA is about those that are there.",
}


def refuse_object(cursor: TokenCursor, verb: str) -> TidemillError:
    """The error for CREATE, DROP or ALTER of the object at the cursor."""
    token = cursor.token
    if token.kind is not TokenKind.WORD or token.value not in _OBJECTS:
        return cursor.error()
    name = token.value.upper()
    if token.value in _TWO_WORD_OBJECTS and cursor.following.kind is TokenKind.WORD:
        name += f" {cursor.following.value.upper()}"
    return cursor.unsupported(f"{verb} {name}", hint=_HINTS.get((verb, token.value)))


def refuse_statement(cursor: TokenCursor) -> TidemillError:
    """The error for a statement whose first word no parser is registered for."""
    token = cursor.token
    if token.kind is TokenKind.WORD:
        if token.value == "tail":
            return SyntaxError_("TAIL has been renamed to SUBSCRIBE", position=token.start + 1)
        if token.value in _REFUSED:
            name = token.value.upper()
            if token.value in _TWO_WORDS and cursor.following.kind is TokenKind.WORD:
                name += f" {cursor.following.value.upper()}"
            return cursor.unsupported(name, hint=_REFUSED[token.value])
    return cursor.error()
