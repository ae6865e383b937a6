"""What a session keeps between messages: prepared statements, and portals (a statement with parameters,
perhaps half read).

Owned by `extended`. Statements with a name are the session's (`engine.prepared_statements`): SQL reaches them
too. Promises: counts and bytes are limited; a portal that goes away closes its rows, so that the engine's
holds and jobs are released; the unnamed ones are replaced by the next of their kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.engine.api import Param, Prepared, Statements
from tidemill.errors import DuplicateObject, LimitExceeded, UndefinedObject
from tidemill.server import limits
from tidemill.server.pgwire.results import RowStream
from tidemill.types.model import Column


@dataclass(slots=True)
class Portal:
    name: str
    prepared: Prepared
    params: tuple[Param, ...]
    # As Bind carried them; they are checked against the columns when these are known.
    result_formats: tuple[int, ...]
    # What it returns, as of Bind; and whether the client was told.
    columns: tuple[Column, ...] | None = None
    described: bool = False
    # The rows, once the portal was executed and until they are all sent.
    stream: RowStream | None = None
    # Executed to its end. The tag of a further Execute if it returned rows (there are no more), else None.
    finished: bool = False
    tag_when_empty: str | None = None

    # Bytes of the parameters.
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum([len(p.data) for p in self.params if p.data is not None])

    async def close(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            await stream.close()


class Kept:
    """The prepared statements and portals of one session."""

    __slots__ = ("_bytes", "_named", "_portals", "_unnamed")

    def __init__(self, named: Statements) -> None:
        # Shared with PREPARE and DEALLOCATE.
        self._named = named
        self._unnamed: Prepared | None = None
        self._portals: dict[str, Portal] = {}
        # Of the portals' parameters.
        self._bytes = 0

    def statement(self, name: str) -> Prepared:
        if name or self._unnamed is None:
            return self._named.get(name)
        return self._unnamed

    def add_statement(self, name: str, prepared: Prepared) -> None:
        if name:
            self._named.add(name, prepared)
        else:
            self._unnamed = prepared

    def drop_statement(self, name: str) -> None:
        if name:
            self._named.drop(name)
        else:
            self._unnamed = None

    def portal(self, name: str) -> Portal:
        found = self._portals.get(name)
        if found is None:
            raise UndefinedObject(f'portal "{name}" does not exist', sqlstate="34000")
        return found

    async def add_portal(self, portal: Portal) -> None:
        if portal.name and portal.name in self._portals:
            raise DuplicateObject(f'portal "{portal.name}" already exists', sqlstate="42P03")
        await self.drop_portal(portal.name)
        if len(self._portals) >= limits.MAX_PORTALS:
            raise LimitExceeded(f"session keeps more than {limits.MAX_PORTALS} portals")
        if self._bytes + portal.size > limits.MAX_KEPT_BYTES:
            raise LimitExceeded(
                f"parameters of a session's portals exceed {limits.MAX_KEPT_BYTES} bytes",
                hint="Close portals that are no longer needed.",
            )
        self._bytes += portal.size
        self._portals[portal.name] = portal

    async def drop_portal(self, name: str) -> None:
        gone = self._portals.pop(name, None)
        if gone is not None:
            self._bytes -= gone.size
            await gone.close()

    async def drop_portals(self) -> None:
        """The transaction is over: portals do not outlive it."""
        if self._portals:
            for name in list(self._portals):
                await self.drop_portal(name)
