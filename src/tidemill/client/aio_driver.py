"""The driver of step generators on an event loop: waits for sockets without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import psycopg

from tidemill.client import target
from tidemill.client.course import Dial, News, Pause, Steps
from tidemill.client.driver import Notices
from tidemill.client.errors import ClientError, Closed, ConnectionFailed
from tidemill.client.link import Ready, Waits

T = TypeVar("T")


class AsyncDriver:
    """Used by one task at a time, except `close`, which any task of the loop may call."""

    def __init__(self, conninfo: str, on_notice: Notices | None = None) -> None:
        self._conninfo = conninfo
        self._on_notice = on_notice
        self._closing = asyncio.Event()
        # Why there is no connection now; None while connected.
        self.trouble: ClientError | None = None

    @property
    def closed(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        """All waits raise Closed, now and from now on."""
        self._closing.set()

    async def dial(self) -> psycopg.AsyncConnection[Any]:
        try:
            connection = await self._unless_closed(
                psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
            )
        except psycopg.OperationalError as e:
            raise target.failed(self._conninfo, e) from e
        tell = self._on_notice
        if tell is not None:
            connection.add_notice_handler(lambda notice: tell(notice.message_primary or ""))
        return connection

    async def run(self, work: Waits[T]) -> T:
        """Run a generator that only waits to its end."""
        try:
            while True:
                await self._wait(next(work))
        except StopIteration as end:
            return end.value
        finally:
            work.close()

    async def next(self, steps: Steps) -> News | None:
        """Return the next news; None at the end."""
        try:
            step = next(steps)
            while True:
                match step:
                    case News():
                        return step
                    case Ready():
                        await self._wait(step)
                        step = next(steps)
                    case Dial():
                        try:
                            connection = await self.dial()
                        except ConnectionFailed as e:
                            step = steps.throw(e)
                        else:
                            # The requested event may take long.
                            self.trouble = None
                            step = steps.send(connection)
                    case Pause():
                        self.trouble = step.error
                        await self._unless_closed(asyncio.sleep(step.seconds))
                        step = next(steps)
        except StopIteration:
            return None

    async def _wait(self, ready: Ready) -> None:
        loop = asyncio.get_running_loop()
        happened: asyncio.Future[None] = loop.create_future()

        def happen() -> None:
            if not happened.done():
                happened.set_result(None)

        loop.add_reader(ready.fd, happen)
        if ready.write:
            loop.add_writer(ready.fd, happen)
        try:
            await self._unless_closed(happened)
        finally:
            loop.remove_reader(ready.fd)
            if ready.write:
                loop.remove_writer(ready.fd)

    async def _unless_closed(self, awaited: Awaitable[T]) -> T:
        """Await the result, or raise Closed, whichever is first. A late result is cancelled."""
        work = asyncio.ensure_future(awaited)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({work, closing}, return_when=asyncio.FIRST_COMPLETED)
            if self.closed:
                raise Closed("it is closed")
            return work.result()
        finally:
            closing.cancel()
            if not work.done():
                work.cancel()
