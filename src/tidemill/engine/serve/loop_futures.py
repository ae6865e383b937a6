"""Results from other threads, passed to the event loop in batches.

A group commit completes many transactions at once. `asyncio.wrap_future` would wake the loop once for each,
with a system call and contention for the interpreter's lock every time. Here the first result of a batch
wakes the loop, and the loop takes all results that are complete.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class LoopFutures:
    """One per event loop. `result` is called on the loop; futures may complete on any thread."""

    def __init__(self) -> None:
        # Completed and not yet passed on; while it is not empty, a wake-up is pending.
        self._done: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    async def result(self, future: Future[T]) -> T:
        """The future's result. Cancelling the caller does not cancel the work."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def completed(_: Future[T]) -> None:
            with self._lock:
                first = not self._done
                self._done.append(waiter)
            if first:
                try:
                    loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    pass  # the loop is closed: no caller waits any more

        future.add_done_callback(completed)
        await waiter
        return future.result()

    def _deliver(self) -> None:
        with self._lock:
            done, self._done = self._done, deque()
        for waiter in done:
            if not waiter.done():
                waiter.set_result(None)
