"""A session's place in a durable subscription: the rows of one FETCH after another.

Made by the first FETCH of a session, kept by the session (`Readings`). A FETCH returns whole times, and ends
with the row that says that they are complete; `frontier` is that row's time. A FETCH that fails, is cancelled
or is not read to its end has returned nothing: the next one begins again at `frontier`. So a client that
ignores the rows of a failed statement, as all do, misses none and gets none twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import pyarrow as pa

from tidemill.errors import Internal, QueryCanceled, TidemillError
from tidemill.subscribe.stream import SubscriptionStream
from tidemill.subscribe.tail import FellBehind
from tidemill.subscriptions.query import Place

# The stream of changes from a position on.
Open: TypeAlias = Callable[[int], Awaitable[SubscriptionStream]]

# The polling interval for rows that are being converted.
LOOK_SECONDS = 0.01
# How often one FETCH begins again because its session read too slowly, or cancelled another statement.
MAX_AGAIN = 3


class Reading:
    """Runs on the event loop; only `end` may be called on other threads."""

    def __init__(self, place: Place, frontier: int, on_close: Callable[[Reading], None]) -> None:
        self.place = place
        # Every change before it was returned.
        self.frontier = frontier
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        # Resolved with the error of a reader whose place was taken.
        self._ended: asyncio.Future[TidemillError] = self._loop.create_future()
        self._stream: SubscriptionStream | None = None
        # A read that no FETCH has waited out yet.
        self._coming: asyncio.Future[pa.RecordBatch] | None = None
        self._active = False

    @property
    def error(self) -> TidemillError | None:
        """Why it cannot be continued."""
        return self._ended.result() if self._ended.done() else None

    def end(self, error: TidemillError) -> None:
        def now() -> None:
            if not self._ended.done():
                self._ended.set_result(error)

        self._loop.call_soon_threadsafe(now)

    def seek(self, frontier: int) -> None:
        """The next FETCH begins there."""
        if frontier != self.frontier:
            self._drop()
            self.frontier = frontier

    async def fetch(
        self, count: int | None, timeout: float, until: int, open_: Open
    ) -> AsyncGenerator[pa.RecordBatch]:
        """Whole times, as far as they are there, until there are `count` rows or more (None: those of times
        before `until`). Waits up to `timeout` seconds for the first row."""
        if self._active:
            raise TidemillError(f"{self.place} is being fetched from in this session", sqlstate="55006")
        self._active, done = True, False
        try:
            async for batch in self._rows(count, timeout, until, open_):
                yield batch
            done = True
        finally:
            self._active = False
            if not done:
                self._drop()

    async def _rows(
        self, count: int | None, timeout: float, until: int, open_: Open
    ) -> AsyncGenerator[pa.RecordBatch]:
        deadline = self._loop.time() + timeout
        frontier, rows = self.frontier, 0
        # Rows of a time were returned that is not complete; a time that was complete without rows.
        partial, idle = False, None
        while True:
            wait = None if partial else 0.0 if rows else max(0.0, deadline - self._loop.time())
            batch = await self._next(wait, frontier, open_, again=not partial)
            if batch is None:
                break
            if not batch.num_rows:
                continue  # nothing of it belongs to the share
            complete = _complete(batch)
            if complete is None or batch.num_rows > 1:
                yield batch
                rows += batch.num_rows
                partial, idle = complete is None, None
            elif complete <= frontier:
                continue
            elif partial:
                yield batch
                partial = False
            else:
                idle = batch
            frontier = frontier if complete is None else complete
            if rows and not partial and (frontier > until if count is None else rows >= count):
                break
        if idle is not None:
            yield idle
        self.frontier = frontier

    async def _next(
        self, wait: float | None, frontier: int, open_: Open, *, again: bool
    ) -> pa.RecordBatch | None:
        """None if nothing comes in time. `again`: it may begin again at `frontier`."""
        for attempt in range(MAX_AGAIN + 1):
            if self.error is not None:
                raise self.error
            if self._stream is None:
                self._stream = await open_(frontier)
            coming = self._coming = self._coming or asyncio.ensure_future(_read(self._stream))
            done, _ = await asyncio.wait({coming, self._ended}, timeout=wait, return_when=_FIRST)
            while not done and self._stream.ready:
                done, _ = await asyncio.wait({coming, self._ended}, timeout=LOOK_SECONDS, return_when=_FIRST)
            if not coming.done():
                if not done:
                    return None
                continue
            self._coming = None
            try:
                return self.place.rows(coming.result())
            except (FellBehind, QueryCanceled):
                # The session did other things for too long, or cancelled another statement.
                self._drop()
                if not again or attempt == MAX_AGAIN:
                    raise
        raise Internal("a reading that ended has no error")

    def _drop(self) -> None:
        """Releases the stream; the next FETCH opens another."""
        stream, self._stream = self._stream, None
        coming, self._coming = self._coming, None
        if stream is not None:
            task = asyncio.ensure_future(_release(stream, coming))
            _releasing.add(task)  # the loop itself keeps no reference
            task.add_done_callback(_releasing.discard)

    def close(self) -> None:
        """Idempotent."""
        self._drop()
        self._on_close(self)


class Readings:
    """The subscriptions that a session reads."""

    def __init__(self) -> None:
        self._open: dict[str, Reading] = {}

    def find(self, place: Place) -> Reading | None:
        return self._open.get(place.key)

    def add(self, reading: Reading) -> None:
        self._open[reading.place.key] = reading

    def remove(self, place: Place) -> None:
        reading = self._open.pop(place.key, None)
        if reading is not None:
            reading.close()

    def close(self) -> None:
        """At the end of the session, and for DISCARD ALL."""
        while self._open:
            self._open.popitem()[1].close()


_FIRST = asyncio.FIRST_COMPLETED
_releasing: set[asyncio.Future[None]] = set()


def _complete(batch: pa.RecordBatch) -> int | None:
    """The time of the batch's last row if that says that all before it is complete."""
    last = batch.num_rows - 1
    return batch.column(0)[last].as_py() if last >= 0 and batch.column(1)[last].as_py() else None


async def _read(stream: SubscriptionStream) -> pa.RecordBatch:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        raise Internal("a durable subscription came to its end") from None


async def _release(stream: SubscriptionStream, coming: asyncio.Future[pa.RecordBatch] | None) -> None:
    if coming is not None:
        coming.cancel()
        await asyncio.wait({coming})
    with suppress(TidemillError, RuntimeError):  # it was closed while it failed
        await stream.aclose()
