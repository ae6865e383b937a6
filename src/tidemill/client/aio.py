"""The asyncio client. The API matches `sync`, with awaitable methods."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import psycopg

from tidemill.client import statements
from tidemill.client.aio_driver import AsyncDriver
from tidemill.client.aio_following import AsyncConsumer, AsyncFollowing, AsyncLiveTable, AsyncSubscription
from tidemill.client.assemble import MAX_BYTES
from tidemill.client.consume import Consuming
from tidemill.client.course import Course
from tidemill.client.driver import Notices
from tidemill.client.errors import Closed
from tidemill.client.frames import Changes, Frame
from tidemill.client.link import Link, Waits
from tidemill.client.request import Envelope, Moment, request
from tidemill.client.retry import Retry
from tidemill.client.target import conninfo

T = TypeVar("T")
Params = Sequence[Any] | dict[str, Any] | None


async def connect_async(
    url: str = "",
    *,
    retry: Retry | None = None,
    on_notice: Notices | None = None,
    **parameters: object,
) -> AsyncClient:
    """Connect a client for the running event loop. The arguments are those of `connect`."""
    client = AsyncClient(conninfo(url, parameters), retry or Retry(), on_notice)
    try:
        await client.execute("")
    except BaseException:
        await client.close()
        raise
    return client


class AsyncClient:
    """A client for any number of tasks of one loop. Statements run one after another on one connection."""

    def __init__(self, target: str, retry: Retry, on_notice: Notices | None) -> None:
        self._target = target
        self._retry = retry
        self._on_notice = on_notice
        self._driver = AsyncDriver(target, on_notice)
        # Held while a statement runs.
        self._lock = asyncio.Lock()
        self._link: Link | None = None
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._followings: weakref.WeakSet[AsyncFollowing] = weakref.WeakSet()

    async def query(self, sql: str, params: Params = None) -> Frame:
        """Return the rows of one statement, all in memory. `params` replace %s or %(name)s."""
        return await self._run(statements.query, sql, params)

    async def execute(self, sql: str, params: Params = None) -> str:
        """Run statements; return the tag of the last, such as `INSERT 0 3`. For transactions over several
        calls use psycopg."""
        return await self._run(statements.execute, sql, params)

    async def subscribe(
        self,
        query: str,
        *,
        key: Sequence[str] = (),
        envelope: Envelope | None = None,
        order_by: str | Sequence[str] = (),
        snapshot: bool = True,
        as_of: Moment | Literal["earliest"] | None = None,
        at_least: bool = False,
        up_to: Moment | Literal["latest"] | None = None,
        progress: bool = False,
        params: Params = None,
        retry: Retry | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> AsyncSubscription:
        """Return an iterator over the changes of a relation or query: one `Batch` for each time with changes.
        docs/client.md explains all options."""
        wanted = request(
            await self._composed(query, params),
            key=key,
            envelope=envelope,
            order_by=order_by,
            snapshot=snapshot,
            as_of=as_of,
            at_least=at_least,
            up_to=up_to,
        )
        course = Course(wanted, retry or self._retry, max_bytes=max_bytes)
        made = AsyncSubscription(self._new_driver(), course, progress=progress)
        self._followings.add(made)
        return made

    async def consume(
        self,
        name: str,
        *,
        position: int | None = None,
        share: int | None = None,
        progress: bool = False,
        retry: Retry | None = None,
    ) -> AsyncConsumer:
        """Read a durable subscription; as for `Client.consume`."""
        course = Consuming(name, position, retry or self._retry, share=share)
        made = AsyncConsumer(self._new_driver(), course, progress=progress, execute=self.execute)
        self._followings.add(made)
        return made

    async def live_table(
        self,
        query: str,
        *,
        key: Sequence[str] = (),
        on_snapshot: Callable[[AsyncLiveTable], object] | None = None,
        on_update: Callable[[AsyncLiveTable, Changes], object] | None = None,
        params: Params = None,
        retry: Retry | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> AsyncLiveTable:
        """Return a relation or query in memory that follows all changes. docs/client.md explains
        all options."""
        wanted = request(await self._composed(query, params), key=key, envelope="diff")
        course = Course(wanted, retry or self._retry, renew=True, max_bytes=max_bytes)
        made = AsyncLiveTable(self._new_driver(), course, key, on_snapshot, on_update)
        self._followings.add(made)
        return made

    async def close(self) -> None:
        """Close the client and its subscriptions."""
        for following in list(self._followings):
            await following.close()
        self._driver.close()
        async with self._lock:
            self._drop()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _new_driver(self) -> AsyncDriver:
        if self._driver.closed:
            raise Closed("the client is closed")
        return AsyncDriver(self._target, self._on_notice)

    async def _composed(self, sql: str, params: Params) -> str:
        """The statement with its parameters inserted as literals."""
        if params is None:
            return sql
        async with self._lock:
            await self._linked()
            assert self._connection is not None
            return psycopg.AsyncClientCursor(self._connection).mogrify(sql.encode(), params)

    async def _run(self, work: Callable[[Link, str], Waits[T]], sql: str, params: Params) -> T:
        text = await self._composed(sql, params)
        async with self._lock:
            link = await self._linked()
            try:
                return await self._driver.run(work(link, text))
            finally:
                # Interrupted by close() or a cancelled task: the connection cannot run the next statement.
                if link.busy or not link.alive:
                    self._drop()

    async def _linked(self) -> Link:
        if self._link is None or not self._link.alive:
            self._drop()
            self._connection = await self._driver.dial()
            self._link = Link(self._connection)
        return self._link

    def _drop(self) -> None:
        link, self._link, self._connection = self._link, None, None
        if link is not None:
            link.close()
