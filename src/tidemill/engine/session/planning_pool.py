"""Parsing and planning off the event loop: short texts run at once, others on worker threads, long ones in
turns.

Called by sessions. A text of many thousand tokens becomes millions of objects: seconds of one core, hundreds
of megabytes. Promises that at most `AT_ONCE` long texts are processed at a time. Meanwhile the cyclic garbage
collector is off, because a collection stops every session (measured for 400,000 tokens: ten stops of up to
half a second; 50 ms at most without it). Such texts leave cycles of up to a million objects. Collecting these
stops every session once, for a second or two on two busy cores. A busy server collects them in its normal
course. An idle server might keep them for hours, so it runs a collection soon after the last long text.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

# Texts of up to this many characters are parsed and planned on the event loop. Most take a fraction of a
# millisecond (measured: 0.15 ms for a short INSERT). A thread switch costs as much, and far more on a busy
# machine.
SHORT = 500
# Characters. A shorter text takes some tens of milliseconds.
LONG = 64 * 1024
# They share the interpreter: more at once would not be faster, and would need the memory of all of them.
AT_ONCE = 2
# The delay between a long text and the collection. Often more long texts follow, or the statement is
# executed.
LEAVINGS_SECONDS = 2.0

_lock = threading.Lock()
_calm = 0


@contextmanager
def _without_collections() -> Generator[None]:
    """Turns the cyclic collector off while any caller is inside. Reference counting still frees everything
    else."""
    global _calm
    with _lock:
        _calm += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _calm -= 1
            if not _calm:
                gc.enable()


class PlanningPool:
    """One per engine."""

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._turns = asyncio.Semaphore(AT_ONCE)
        # When to collect the remaining cycles; None: there are none.
        self._tidying: asyncio.TimerHandle | None = None

    async def run(self, size: int, fn: Callable[..., T], *args: object) -> T:
        """Runs `fn`, which processes a text of `size` characters."""
        if size <= SHORT:
            return fn(*args)
        loop = asyncio.get_running_loop()
        if size <= LONG:
            return await loop.run_in_executor(self._workers, fn, *args)

        def work() -> T:
            with _without_collections():
                return fn(*args)

        async with self._turns:
            try:
                return await loop.run_in_executor(self._workers, work)
            finally:
                if self._tidying is not None:
                    self._tidying.cancel()
                self._tidying = loop.call_later(LEAVINGS_SECONDS, self._tidy)

    def _tidy(self) -> None:
        self._tidying = None
        # If long texts are being processed, the last of them schedules this again.
        if not _calm:
            gc.collect()
