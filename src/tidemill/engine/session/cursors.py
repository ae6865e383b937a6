"""The rows of a portal as SQL fetches them: a few at a time.

A cursor belongs to its transaction and reads at the transaction's time. It keeps the rows of a batch that a
FETCH did not take, and a read that was in progress when a FETCH timed out, so that no row is lost or
repeated. A cursor WITH HOLD outlives its transaction: at commit, the remaining rows are read into memory. The
rows of a subscription have no end: a FETCH of them waits for the first rows and returns those available.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa

from tidemill.engine.api import close_batches
from tidemill.engine.session.interrupt import Interrupt
from tidemill.errors import LimitExceeded, TidemillError

# The memory that a cursor WITH HOLD may use after its transaction has ended.
HOLD_LIMIT_BYTES = 64 << 20

# The polling interval for rows that are being converted.
LOOK_SECONDS = 0.01

_releasing: set[asyncio.Future[None]] = set()


class SqlCursor:
    """An open cursor."""

    def __init__(
        self, batches: AsyncIterator[pa.RecordBatch], interrupt: Interrupt, *, endless: bool = False
    ) -> None:
        """`interrupt` is the session's. `endless`: the rows are those of a subscription
        (`subscribe.stream.Subscription`)."""
        self.kept = False  # its rows are here; no transaction is needed any more
        self.kept_before = False  # since a transaction that committed
        self._batches = batches
        self._interrupt = interrupt
        self._endless = endless
        self._rest: pa.RecordBatch | None = None  # read and not yet fetched
        self._coming: asyncio.Task[pa.RecordBatch | None] | None = (
            None  # a read that no FETCH has waited out yet
        )
        self._done = False
        # The row on which the last FETCH ended: FETCH 0 returns it again. None if it is not kept.
        self.on_row = False
        self.current: pa.RecordBatch | None = None

    async def fetch(self, count: int | None, timeout: float | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Returns up to `count` rows (None: all), or the rows that arrive within `timeout` seconds. None as
        time-out waits without limit; for endless rows, until the first rows arrive."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        left = count
        given = False
        while left is None or left > 0:
            within = None if deadline is None else deadline - loop.time()
            batch = await self._next(within, given=given)
            if batch is None:
                self.on_row = False
                return
            given = True
            if not batch.num_rows:
                continue
            if left is not None and batch.num_rows > left:
                self._rest = batch.slice(left)
                batch = batch.slice(0, left)
            if left is not None:
                left -= batch.num_rows
            self.on_row, self.current = True, batch.slice(batch.num_rows - 1)
            yield batch
            if self._endless and deadline is None:
                deadline = loop.time()

    async def _next(self, timeout: float | None, *, given: bool) -> pa.RecordBatch | None:
        """The next rows; None at the end, or if none arrive in time. `given`: this FETCH already has some."""
        if self._rest is not None:
            rest, self._rest = self._rest, None
            return rest
        if self._done:
            return None
        coming = self._coming
        if coming is None:
            coming = self._coming = asyncio.ensure_future(_read(self._batches))
        if timeout is not None:
            done, _ = await asyncio.wait({coming}, timeout=max(timeout, 0))
            while not done and self._ready():
                done, _ = await asyncio.wait({coming}, timeout=LOOK_SECONDS)
            if not done:
                return None
            # Clients discard the rows of a statement that fails, so the next FETCH raises the error.
            if given and self._endless and not coming.cancelled() and coming.exception() is not None:
                return None
        self._coming = None
        batch = await self._interrupt.guard(coming)
        self._done = batch is None
        return batch

    async def keep(self) -> None:
        """Reads the remaining rows into memory, for use after the transaction. Raises `LimitExceeded` if they
        are too large."""
        if self.kept:
            return
        rows: list[pa.RecordBatch] = []
        size = 0
        async for batch in self.fetch(None):
            size += batch.nbytes
            if size > HOLD_LIMIT_BYTES:
                raise LimitExceeded(
                    f"the rows of a cursor WITH HOLD exceed {HOLD_LIMIT_BYTES >> 20} MB",
                    hint="Fetch within the transaction, or CREATE TABLE AS and read that.",
                )
            rows.append(batch)
        self.kept = True
        if rows:
            self._batches, self._done = _again(rows), False

    def _ready(self) -> bool:
        """Whether rows are available and only have to be converted."""
        return self._endless and bool(getattr(self._batches, "ready", False))

    def close(self) -> None:
        """Releases what the cursor holds; the release itself runs in the event loop."""
        self._done = True
        self._rest = None
        coming, self._coming = self._coming, None
        task = asyncio.ensure_future(_release(self._batches, coming))
        _releasing.add(task)  # the loop itself keeps no reference
        task.add_done_callback(_releasing.discard)


async def _again(batches: list[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    while batches:
        yield batches.pop(0)


async def _read(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return await anext(batches)
    except StopAsyncIteration:
        return None


async def _release(
    batches: AsyncIterator[pa.RecordBatch], coming: asyncio.Task[pa.RecordBatch | None] | None
) -> None:
    if coming is not None:
        coming.cancel()
        await asyncio.wait({coming})
    try:
        await close_batches(batches)
    except (TidemillError, RuntimeError):
        pass  # it was closed while it failed; its reader has the error
