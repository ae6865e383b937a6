"""The prepared statements and portals of a session. A portal is a statement with parameters, perhaps
partly read.

Owned by `extended`. Named ones belong to the session: SQL also accesses its statements
(`api.Statements`) and portals (`api.Portals`). Promises: counts and bytes are limited. A closed portal
closes its rows, which releases the engine's holds and jobs. A new unnamed statement or portal replaces
the previous one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pyarrow as pa

from tidemill.engine.api import Bound, BoundPortal, Portals, PreparedStatement, Statements
from tidemill.errors import LimitExceeded, UndefinedObject
from tidemill.server import limits
from tidemill.server.pgwire.results import RowStream
from tidemill.types.model import Column

log = logging.getLogger(__name__)

# Verbs of statements whose text may be shown. Others may contain a password.
_SHOWN_VERBS = frozenset({"SELECT", "VALUES", "TABLE", "WITH", "INSERT", "UPDATE", "DELETE", "SUBSCRIBE"})


class WirePortal(BoundPortal):
    """A portal created by Bind, and the rows that it sends."""

    # The rows, from the execution of the portal until all are sent.
    stream: RowStream | None = None
    # The tag of a repeated Execute if it returned rows (there are no more), otherwise None.
    tag_when_empty: str | None = None

    def __init__(
        self,
        prepared: PreparedStatement,
        columns: tuple[Column, ...] | None,
        params: Bound,
        size: int,
        result_formats: tuple[int, ...],
        releasing: set[asyncio.Task[None]],
    ) -> None:
        """`columns`: the result columns as of Bind. `size`: the size of the parameters in bytes.
        `result_formats` as in Bind; they are checked against the columns when these are known. `releasing`
        collects the tasks that closing starts."""
        super().__init__(columns, prepared.text if prepared.verb in _SHOWN_VERBS else None)
        self.prepared = prepared
        self.params = params
        self.size = size
        self.result_formats = result_formats
        self._releasing = releasing

    def unsent(self) -> AsyncIterator[pa.RecordBatch] | None:
        stream, self.stream = self.stream, None
        return None if stream is None else stream.unsent()

    def close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()
        if self.stream is not None:
            task = asyncio.ensure_future(self.stream.close())
            self.stream = None
            self._releasing.add(task)  # the event loop keeps only a weak reference
            task.add_done_callback(self._released)

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releasing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the rows of a portal could not be released: %s", error)


class SessionPortals:
    """The prepared statements and portals of one session."""

    __slots__ = ("_named", "_portals", "_unnamed", "releasing")

    def __init__(self, named: Statements, portals: Portals) -> None:
        # Shared with PREPARE and DEALLOCATE.
        self._named = named
        self._unnamed: PreparedStatement | None = None
        # Shared with DECLARE, FETCH and CLOSE.
        self._portals = portals
        # Pending close operations.
        self.releasing: set[asyncio.Task[None]] = set()

    def statement(self, name: str) -> PreparedStatement:
        if name or self._unnamed is None:
            return self._named.get(name)
        return self._unnamed

    def add_statement(self, name: str, prepared: PreparedStatement) -> None:
        if name:
            self._named.add(name, prepared)
        else:
            self._unnamed = prepared

    def drop_statement(self, name: str) -> None:
        if name:
            self._named.drop(name)
        else:
            self._unnamed = None

    def check_new_portal(self, name: str, size: int) -> None:
        """Check before reading the parameters. An existing unnamed portal is closed."""
        self._portals.check_new(name)
        if self._portals.bytes + size > limits.MAX_KEPT_BYTES:
            raise LimitExceeded(
                f"parameters of a session's portals exceed {limits.MAX_KEPT_BYTES} bytes",
                hint="Close portals that are no longer needed.",
            )

    def drop_portal(self, name: str) -> None:
        self._portals.drop(name)

    async def released(self) -> None:
        """Wait until all closed portals have released their resources."""
        if self.releasing:
            await asyncio.wait(set(self.releasing))


def no_such_portal(name: str) -> UndefinedObject:
    return UndefinedObject(f'portal "{name}" does not exist', sqlstate="34000")
