"""The open portals of a session: cursors of DECLARE and portals of Bind, in one name space.

SQL creates and fetches from them (`read.select`); the server layer does the same for the protocol. Promises:
names are unique (but the unnamed portal is replaced); closing a portal releases its rows; the end of a
transaction closes all portals except those WITH HOLD. Their number and bytes are limited.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import DuplicateObject, InvalidTransactionState, LimitExceeded, TidemillError
from tidemill.types.model import Column

if TYPE_CHECKING:
    from tidemill.engine.api import Bound, PreparedStatement
    from tidemill.engine.session.cursors import SqlCursor

# Portals per session: their rows are held in memory until they are closed.
MAX_PORTALS = 1000


class Portal:
    """An open portal."""

    # The end of its transaction does not close it.
    hold = False
    # FETCH returns its rows in binary.
    binary = False
    # The bytes of the client's message that it keeps.
    size = 0
    # Its rows as SQL fetches them; for a portal of Bind only after the first FETCH.
    cursor: SqlCursor | None = None
    # Its statement runs now: it cannot be closed or fetched from.
    active = False
    # Its statement failed.
    failed = False
    # Of an Execute that has sent all rows; `counted` as in `api.Rows`.
    tag = "SELECT"
    counted = True
    # The client has received a description of its columns.
    described = False

    def __init__(self, columns: tuple[Column, ...] | None, text: str | None) -> None:
        self.columns = columns
        # The statement; None if pg_cursors must not show it.
        self.text = text
        self.created = time.time()

    def close(self) -> None:
        """Release the rows. Returns at once; idempotent."""
        if self.cursor is not None:
            self.cursor.close()


class BoundPortal(Portal):
    """A portal of Bind: a prepared statement with its parameters, perhaps partly executed. Its `columns` are
    the result columns as of Bind."""

    prepared: PreparedStatement
    params: Bound
    # Execution has started, and may not be complete.
    started = False

    def unsent(self) -> AsyncIterator[pa.RecordBatch] | None:
        """The rows that Execute has not sent yet, which belong to SQL from now on; None if there are none."""
        return None


class Portals:
    """The open portals of one session, by their names; the unnamed one is ''."""

    def __init__(self) -> None:
        self._open: dict[str, Portal] = {}
        # The bytes that the open portals keep.
        self.bytes = 0

    def find(self, name: str) -> Portal | None:
        return self._open.get(name)

    def __iter__(self) -> Iterator[tuple[str, Portal]]:
        return iter(self._open.items())

    def names(self) -> frozenset[str]:
        return frozenset(self._open)

    def check_new(self, name: str) -> None:
        """Raises if a portal of this name cannot be added. Closes the unnamed portal if its name is asked
        for: the new one replaces it."""
        if not name:
            self.drop(name)
        elif name in self._open:
            raise DuplicateObject(f'cursor "{name}" already exists', sqlstate="42P03")
        if len(self._open) >= MAX_PORTALS:
            raise LimitExceeded(f"too many open cursors (limit {MAX_PORTALS})", hint="CLOSE some.")

    def add(self, name: str, portal: Portal) -> None:
        """Called after `check_new`; no other statement of the session runs between the two."""
        self._open[name] = portal
        self.bytes += portal.size

    def drop(self, name: str) -> bool:
        """Returns False if no portal has the name."""
        portal = self._open.get(name)
        if portal is None:
            return False
        if portal.active:
            raise TidemillError(f'cannot drop active portal "{name}"', sqlstate="24000")
        self._forget(name, portal)
        return True

    def _forget(self, name: str, portal: Portal) -> None:
        del self._open[name]
        self.bytes -= portal.size
        portal.close()

    def clear(self, *, active: bool = False) -> None:
        """Closes all portals; those whose statement is running only with `active`."""
        for name, portal in list(self._open.items()):
            if active or not portal.active:
                self._forget(name, portal)

    def close_new(self, known: frozenset[str]) -> None:
        """Closes the portals that are not among the known ones: ROLLBACK TO a savepoint."""
        for name in [n for n in self._open if n not in known]:
            self._forget(name, self._open[name])

    def held(self) -> list[SqlCursor]:
        """The cursors WITH HOLD."""
        found: list[SqlCursor] = []
        for portal in self._open.values():
            if portal.hold and portal.cursor is not None:
                found.append(portal.cursor)
        return found

    def fail(self, names: frozenset[str]) -> None:
        """Called when a transaction block fails: its portals that are not among `names`, which existed
        before, cannot run any more."""
        for name, portal in self._open.items():
            if name not in names and not (portal.cursor is not None and portal.cursor.kept_before):
                portal.failed = True

    def end(self, *, committed: bool) -> None:
        """Called when the transaction has ended."""
        if not self._open:
            return
        ended, self._open, self.bytes = self._open, {}, 0
        for name, portal in ended.items():
            cursor = portal.cursor
            if cursor is not None and cursor.kept and (committed or cursor.kept_before):
                cursor.kept_before = True
                self.add(name, portal)
            else:
                portal.close()


def cannot_run(name: str) -> InvalidTransactionState:
    return InvalidTransactionState(f'portal "{name}" cannot be run', sqlstate="55000")
