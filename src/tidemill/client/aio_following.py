"""Subscriptions and live tables of the asyncio client: the awaitable forms of `subscription` and
`live_table`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, cast

from tidemill.client.aio_driver import AsyncDriver
from tidemill.client.consume import Consuming
from tidemill.client.course import Course, News
from tidemill.client.errors import Closed
from tidemill.client.following import BatchQueue, CourseState
from tidemill.client.frames import Batch, Changes
from tidemill.client.live import LiveState


class AsyncFollowing(CourseState[AsyncDriver]):
    """A course, driven by the task that waits for news; one task at a time."""

    def __init__(self, driver: AsyncDriver, course: Course) -> None:
        CourseState.__init__(self, driver, course)
        # Held while a task waits for news; `close` does not wait for it.
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """End the course, from any task. Waiting tasks return."""
        self._driver.close()
        async with self._turn:
            self._end()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _news(self) -> News | None:
        """Return the next news; None at the end. The caller holds the turn."""
        news: News | None = None
        try:
            if not self._driver.closed:
                news = await self._driver.next(self._steps)
        except Closed:
            pass
        except BaseException:
            self._end()
            raise
        if news is None:
            self._end()
        return news

    def _end(self) -> None:
        self._driver.close()
        self._steps.close()


class AsyncSubscription(AsyncFollowing, BatchQueue, AsyncIterator[Batch]):
    """An iterator over complete times. It ends at UP TO, if the relation is constant, and after `close()`."""

    def __init__(self, driver: AsyncDriver, course: Course, *, progress: bool) -> None:
        AsyncFollowing.__init__(self, driver, course)
        BatchQueue.__init__(self, progress=progress)

    async def __aenter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        async with self._turn:
            while not self._waiting:
                self._time = self._after
                news = await self._news()
                if news is None:
                    raise StopAsyncIteration
                self._put(news, self._course)
            if self._driver.closed:
                raise StopAsyncIteration
            return self._pop()


class AsyncConsumer(AsyncSubscription):
    """A reader of a durable subscription: an iterator over complete times. The contents come first, as
    changes of an empty relation."""

    def __init__(
        self,
        driver: AsyncDriver,
        course: Consuming,
        *,
        progress: bool,
        execute: Callable[[str], Awaitable[str]],
    ) -> None:
        super().__init__(driver, course, progress=progress)
        self._execute = execute

    @property
    def position(self) -> int | None:
        """As for `Consumer`."""
        return None if self.time is None else self.time + 1

    async def acknowledge(self, position: int | None = None) -> None:
        """As for `Consumer`."""
        done = self.position if position is None else position
        if done is not None:
            await self._execute(cast("Consuming", self._course).acknowledge(done))


class AsyncLiveTable(AsyncFollowing, LiveState):
    """A relation or query in memory, always as of one complete time.

    Iterate over it (each round is one time with changes), or call `run()` with callbacks, for example in a
    separate task. `on_snapshot(table)` is called when the first snapshot is complete, and `on_update(table,
    changes)` after each time with changes, never between them. They may be coroutine functions.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        course: Course,
        key: Sequence[str],
        on_snapshot: Callable[[AsyncLiveTable], object] | None,
        on_update: Callable[[AsyncLiveTable, Changes], object] | None,
    ) -> None:
        AsyncFollowing.__init__(self, driver, course)
        LiveState.__init__(self, key)
        self._on_snapshot = on_snapshot
        self._on_update = on_update

    async def __aenter__(self) -> AsyncLiveTable:
        return self

    async def __aiter__(self) -> AsyncIterator[Changes]:
        """Yield the changes of each time, the snapshot first. Callbacks are called before each round."""
        while (changes := await self._next()) is not None:
            told: object = None
            if changes.snapshot:
                told = None if self._on_snapshot is None else self._on_snapshot(self)
            elif self._on_update is not None:
                told = self._on_update(self, changes)
            if inspect.isawaitable(told):
                await told
            yield changes

    async def run(self) -> None:
        """Run until the table is closed, or ends because the relation is constant."""
        async for _ in self:
            pass

    async def _next(self) -> Changes | None:
        async with self._turn:
            while (changes := self._take_next(self._course.fields or ())) is None:
                news = await self._news()
                if news is None:
                    return None
                self._put(news)
            return changes
