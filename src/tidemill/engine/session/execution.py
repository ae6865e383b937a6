"""How a session's statement runs: blocking calls on worker threads, its cancel and time-out, notices.

One per session; plans keep it. Promises that what a thread opens is closed if the statement that waited for
it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tidemill.engine.session.client_events import ClientEvents
from tidemill.engine.session.interrupt import Interrupt
from tidemill.errors import Notice
from tidemill.query.spark import SparkHost

T = TypeVar("T")

# Statements that wait longer than this for Spark send their client a notice.
SPARK_NOTICE_SECONDS = 0.5


class StatementExecution:
    def __init__(self, workers: ThreadPoolExecutor, interrupt: Interrupt, events: ClientEvents) -> None:
        self.interrupt = interrupt
        # Sends a notice to the client if its level passes client_min_messages.
        self.notice: Callable[[Notice], None] = events.notice
        self._workers = workers

    async def blocking(self, fn: Callable[..., T], *args: object) -> T:
        """Runs it on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, fn, *args)

    async def open(
        self, open_: Callable[[], T], close: Callable[[T], object], stop: Callable[[], None] | None = None
    ) -> T:
        """Runs it on a worker thread. If the caller is cancelled, `stop` is called. The thread continues
        until it notices that; what it opens by then is closed."""
        opening = self._workers.submit(open_)
        try:
            return await asyncio.wrap_future(opening)
        except BaseException:
            if stop is not None:
                stop()
            opening.add_done_callback(lambda done: _abandon(done, close))
            raise

    def release(self, what: Callable[[], object]) -> None:
        """Runs it on a worker thread, without waiting; at once if the server is stopping."""
        try:
            self._workers.submit(what)
        except RuntimeError:  # the workers are gone
            what()

    async def wait_for_spark(self, spark: SparkHost) -> None:
        """Waits until a Spark session exists; sends the client a notice if that takes long. Raises the error
        that prevents Spark from starting."""
        if spark.usable:
            return
        waiting = asyncio.ensure_future(self.blocking(spark.wait_usable))
        done, _ = await asyncio.wait({waiting}, timeout=SPARK_NOTICE_SECONDS)
        if not done:
            self.notice(Notice("Spark is starting; the statement runs as soon as it is there"))
        await self.interrupt.guard(waiting)


def _abandon(opening: Future[T], close: Callable[[T], object]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        close(opening.result())
