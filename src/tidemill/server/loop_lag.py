"""A measure of event loop latency: how late the loop runs its timers. Detects blocking code.

Started once per loop by the code that opens the ports. Promise: four wake-ups a second, and no other work.
"""

from __future__ import annotations

import asyncio

from tidemill.server.metrics import LOOP_LAG, LOOP_LAG_LAST

# Seconds between two measurements: often enough to meet a stall of half a second, rare enough to cost nothing
# when idle.
INTERVAL = 0.25


class LoopLag:
    """A repeating timer that reports its delay."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        # The worst lag since the start, in seconds; for tests and for the log at shutdown.
        self.worst = 0.0

    def start(self) -> None:
        if self._handle is None:
            self._arm(asyncio.get_running_loop())

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL
        self._handle = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = max(0.0, loop.time() - due)
        LOOP_LAG.observe(lag)
        LOOP_LAG_LAST.set(lag)
        self.worst = max(self.worst, lag)
        self._arm(loop)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
