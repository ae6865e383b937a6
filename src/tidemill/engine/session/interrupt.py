"""The interruption of the running statement: a cancel request, or its time-out.

One `Interrupt` per session. `begin` arms it for a statement, `guard` awaits work that may be stopped,
`end` disarms it. A cancel between statements does nothing, as in PostgreSQL. The time-out counts the
time that the server works, not the time that a client takes to fetch its rows. Work that must be atomic
(a commit in flight) is awaited without the guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidemill.errors import QueryCanceled

T = TypeVar("T")


class Interrupt:
    def __init__(self) -> None:
        # Whether a statement runs, and its number in the session.
        self.running = False
        self.statement = 0
        # Set by a cancel. Each waiter in `guard` has a future that is resolved while it waits.
        self._canceled = False
        self._waiting: list[asyncio.Future[None]] = []
        # The remaining seconds of guarded waiting for the statement; None: no limit.
        self._left: float | None = None

    def begin(self, timeout_ms: int) -> None:
        self.running = True
        self.statement += 1
        self._canceled = False
        self._left = timeout_ms / 1000 if timeout_ms else None

    def end(self, statement: int | None = None) -> None:
        """Disarms the interrupt, but only if `statement` is the one that runs."""
        if statement is not None and statement != self.statement:
            return
        self.running = False
        self._canceled = False
        self._left = None

    def cancel(self) -> None:
        if self.running:
            self._canceled = True
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)

    def check(self) -> None:
        """Raise if the statement should stop; for loops that do not await."""
        if self._canceled:
            raise QueryCanceled("canceling statement due to user request")
        if self._left is not None and self._left <= 0:
            raise QueryCanceled("canceling statement due to statement timeout")

    async def guard(self, awaitable: Awaitable[T], stop: Callable[[], None] | None = None) -> T:
        """Awaits the work, or stops it: calls `stop` (once), so that work on other threads ends too, and
        raises QueryCanceled at once. The outcome of the abandoned work is ignored."""
        work = asyncio.ensure_future(awaitable)
        if not self.running:
            return await work
        loop = asyncio.get_running_loop()
        began = loop.time()
        canceled: asyncio.Future[None] = loop.create_future()
        if self._canceled:
            canceled.set_result(None)
        self._waiting.append(canceled)
        try:
            done, _ = await asyncio.wait(
                {work, canceled}, timeout=self._left, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            self._abandon(work, stop)
            raise
        finally:
            self._waiting.remove(canceled)
            if self._left is not None:
                self._left = max(0.0, self._left - (loop.time() - began))
        if work in done:
            return work.result()
        self._abandon(work, stop)
        self.check()
        raise QueryCanceled("canceling statement due to statement timeout")

    @staticmethod
    def _abandon(work: asyncio.Future[T], stop: Callable[[], None] | None) -> None:
        if stop is not None:
            stop()
        work.cancel()
        # The thread may still finish or fail: read its exception so that asyncio does not report it as lost.
        work.add_done_callback(lambda f: None if f.cancelled() else f.exception())
