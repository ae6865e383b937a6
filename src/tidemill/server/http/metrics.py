"""What `/metrics` shows of the HTTP door and of the event loop. Other layers register theirs in the same
registry."""

from __future__ import annotations

import asyncio
import contextlib

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("tidemill_http_requests", "HTTP requests answered.", ["path", "status"])
STATEMENTS = Counter("tidemill_http_statements", "Statements run over HTTP.", ["outcome"])
HELD_BYTES = Gauge("tidemill_http_held_bytes", "Bytes of answers that are held before they are sent.")
LOOP_LAG = Histogram(
    "tidemill_event_loop_lag_seconds",
    "How late the event loop wakes a timer: the time for which something blocked it.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)

# Four samples a second see any stall that a person would notice, for next to no work while idle.
_INTERVAL = 0.25


class LagProbe:
    """Sleeps, and notes by how much it overslept."""

    def __init__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="loop-lag")

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _INTERVAL
            await asyncio.sleep(_INTERVAL)
            LOOP_LAG.observe(max(0.0, clock() - due))

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
