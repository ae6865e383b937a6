"""What a session keeps between messages: prepared statements, and portals (a statement with parameters,
perhaps half read).

Owned by `extended`. Promises: counts and bytes are limited; a portal that goes away closes its rows, so that
the engine's holds and jobs are released; the unnamed ones are replaced by the next of their kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tidemill.engine.api import Param, Prepared
from tidemill.errors import DuplicateObject, LimitExceeded, UndefinedObject
from tidemill.server import limits
from tidemill.server.pgwire.results import RowStream


@dataclass(slots=True)
class KeptStatement:
    name: str
    prepared: Prepared

    @property
    def size(self) -> int:
        return len(self.prepared.text)


@dataclass(slots=True)
class Portal:
    name: str
    prepared: Prepared
    params: tuple[Param, ...]
    # As Bind carried them; they are checked against the columns when these are known.
    result_formats: tuple[int, ...]
    # The rows, once the portal was executed and until they are all sent.
    stream: RowStream | None = None
    # Executed to its end. The tag of a further Execute if it returned rows (there are no more), else None.
    finished: bool = False
    tag_when_empty: str | None = None

    @property
    def size(self) -> int:
        return sum(len(p.data) for p in self.params if p.data is not None)

    async def close(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            await stream.close()


K = TypeVar("K", KeptStatement, Portal)


class Kept:
    """The prepared statements and portals of one session."""

    __slots__ = ("_bytes", "_portals", "_statements")

    def __init__(self) -> None:
        self._statements: dict[str, KeptStatement] = {}
        self._portals: dict[str, Portal] = {}
        self._bytes = 0

    def statement(self, name: str) -> KeptStatement:
        found = self._statements.get(name)
        if found is None:
            text = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise UndefinedObject(f"{text} does not exist", sqlstate="26000")
        return found

    def portal(self, name: str) -> Portal:
        found = self._portals.get(name)
        if found is None:
            raise UndefinedObject(f'portal "{name}" does not exist', sqlstate="34000")
        return found

    def check_new_statement(self, name: str) -> None:
        """Before the work of preparing: may a statement of this name be added?"""
        if name and name in self._statements:
            raise DuplicateObject(f'prepared statement "{name}" already exists', sqlstate="42P05")
        if len(self._statements) >= limits.MAX_PREPARED_STATEMENTS:
            raise LimitExceeded(
                f"session keeps more than {limits.MAX_PREPARED_STATEMENTS} prepared statements",
                hint="Close statements that are no longer needed.",
            )

    def add_statement(self, kept: KeptStatement) -> None:
        self.drop_statement(kept.name)
        self._charge(kept.size)
        self._statements[kept.name] = kept

    async def add_portal(self, portal: Portal) -> None:
        if portal.name and portal.name in self._portals:
            raise DuplicateObject(f'portal "{portal.name}" already exists', sqlstate="42P03")
        await self.drop_portal(portal.name)
        if len(self._portals) >= limits.MAX_PORTALS:
            raise LimitExceeded(f"session keeps more than {limits.MAX_PORTALS} portals")
        self._charge(portal.size)
        self._portals[portal.name] = portal

    def _charge(self, size: int) -> None:
        if self._bytes + size > limits.MAX_KEPT_BYTES:
            raise LimitExceeded(
                f"prepared statements and portals of a session exceed {limits.MAX_KEPT_BYTES} bytes",
                hint="Close statements and portals that are no longer needed.",
            )
        self._bytes += size

    def drop_statement(self, name: str) -> None:
        gone = self._statements.pop(name, None)
        if gone is not None:
            self._bytes -= gone.size

    def drop_statements(self) -> None:
        for name in list(self._statements):
            self.drop_statement(name)

    async def drop_portal(self, name: str) -> None:
        gone = self._portals.pop(name, None)
        if gone is not None:
            self._bytes -= gone.size
            await gone.close()

    async def drop_portals(self) -> None:
        """The transaction is over: portals do not outlive it."""
        for name in list(self._portals):
            await self.drop_portal(name)
