"""The prepared statements of one session, by name.

SQL uses them through PREPARE, EXECUTE and DEALLOCATE, the protocol through Parse, Bind, Describe and Close.
To a client they are the same statements, as in PostgreSQL. The unnamed statement belongs to the protocol and
is not kept here. Promises that their number and the bytes of their texts are limited.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tidemill.engine.relations.pg.session_objects import SHOWN_VERBS, PreparedRow
from tidemill.errors import DuplicateObject, LimitExceeded, UndefinedObject
from tidemill.sql import ast

if TYPE_CHECKING:
    from tidemill.engine.api import PreparedStatement

# Statements are kept until they are closed. Drivers that prepare automatically keep some hundreds. A driver
# that never closes any gets an error before it uses the memory of other sessions. A plan needs about ten
# times the size of its text.
MAX_STATEMENTS = 10_000
MAX_STATEMENT_BYTES = 64 * 1024 * 1024


class Statements:
    """The named prepared statements of one session."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: dict[str, PreparedStatement] = {}
        self._bytes = 0

    def get(self, name: str) -> PreparedStatement:
        found = self._kept.get(name)
        if found is None:
            raise no_such_statement(name)
        return found

    def find(self, name: str) -> PreparedStatement | None:
        return self._kept.get(name)

    def check_new(self, name: str) -> None:
        """Checks, before the work of preparing, that a statement of this name can be added."""
        if name in self._kept:
            raise DuplicateObject(f'prepared statement "{name}" already exists', sqlstate="42P05")
        if len(self._kept) >= MAX_STATEMENTS:
            raise LimitExceeded(
                f"session keeps more than {MAX_STATEMENTS} prepared statements",
                hint="DEALLOCATE statements that are no longer needed.",
            )

    def add(self, name: str, prepared: PreparedStatement) -> None:
        self.check_new(name)
        size = len(prepared.text)
        if self._bytes + size > MAX_STATEMENT_BYTES:
            raise LimitExceeded(
                f"prepared statements of a session exceed {MAX_STATEMENT_BYTES} bytes",
                hint="DEALLOCATE statements that are no longer needed.",
            )
        self._bytes += size
        self._kept[name] = prepared

    def drop(self, name: str) -> bool:
        """Returns False if there was none."""
        gone = self._kept.pop(name, None)
        if gone is not None:
            self._bytes -= len(gone.text)
        return gone is not None

    def table(self) -> list[PreparedRow]:
        return [
            PreparedRow(
                name,
                p.text if p.verb in SHOWN_VERBS else None,
                tuple(p.param_types),
                None if p.columns is None else tuple(c.type for c in p.columns),
                p.text.lstrip()[:7].lower() == "prepare",
            )
            for name, p in list(self._kept.items())
        ]

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0


def no_such_statement(name: str) -> UndefinedObject:
    text = f'prepared statement "{name}"' if name else "unnamed prepared statement"
    return UndefinedObject(f"{text} does not exist", sqlstate="26000")


# The verbs that are not the first word of the class.
_VERBS: dict[type[ast.Statement], str] = {
    ast.Query: "SELECT",
    ast.Rename: "ALTER",
    ast.ReassignOwned: "ALTER",
    ast.ResetSubscription: "ALTER",
    ast.ReadSubscription: "SUBSCRIBE",
    ast.NoOp: "NOOP",
}
_FIRST_WORD = re.compile("[A-Z][a-z]+")


def verb_of(statement: ast.Statement) -> str:
    """The verb for logs and metrics: one of a small fixed set."""
    known = _VERBS.get(type(statement))
    return known or _FIRST_WORD.findall(type(statement).__name__)[0].upper()
