"""Subscriptions and live tables of the asyncio client: the awaitable forms of `subscription` and
`live_table`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from tidemill.client.aio_driver import AsyncDriver
from tidemill.client.course import Course, News
from tidemill.client.errors import Closed
from tidemill.client.following import BatchQueue, CourseState
from tidemill.client.frames import Batch, Changes
from tidemill.client.live import LiveState


class AsyncFollowing(CourseState[AsyncDriver]):
    """A course, driven by whoever asks for news: one task at a time."""

    def __init__(self, driver: AsyncDriver, course: Course) -> None:
        CourseState.__init__(self, driver, course)
        # Held while one asks for news; `close` does not wait for it.
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """End it, from any task. Whoever waits for it is let go."""
        self._driver.close()
        async with self._turn:
            self._end()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _news(self) -> News | None:
        """The next; None at the end. The caller holds the turn."""
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
    """An iterator of complete times. Ends at UP TO, where the relation is constant, and by `close()`."""

    def __init__(self, driver: AsyncDriver, course: Course, *, progress: bool) -> None:
        AsyncFollowing.__init__(self, driver, course)
        BatchQueue.__init__(self, progress=progress)

    async def __aenter__(self) -> AsyncSubscription:
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


class AsyncLiveTable(AsyncFollowing, LiveState):
    """A relation or query in memory, as it is at one complete time, and then at the next.

    Iterate over it (each round is one time at which something changed), or `run()` it with callbacks, in a
    task of its own if you like. `on_snapshot(table)` is called when the first snapshot is complete,
    `on_update(table, changes)` after each time at which something changed; never in between. They may be
    coroutine functions.
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
        """What changed, time by time, the snapshot first; callbacks are called before each round."""
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
        """Until it is closed, or ends by itself (a constant relation)."""
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
