"""The rows of a statement on their way to a client, under the statement's cancel and time-out.

This is a class and not a generator. Closing a generator that was never started runs none of its code, and a
generator that is being read cannot be closed. A client may vanish at either moment, and what the rows hold
(snapshots, Spark jobs) must be released then too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa

from tidemill.engine.api import close_batches
from tidemill.engine.read.local_rows import AtHand
from tidemill.engine.session.interrupt import Interrupt


class GuardedRows:
    """An iterator of batches. It ends its statement's interrupt when it is exhausted, fails or is closed."""

    def __init__(self, batches: AsyncIterator[pa.RecordBatch], interrupt: Interrupt) -> None:
        self._batches = batches
        self._interrupt = interrupt
        # The statement of these rows: their end must not end a later one.
        self._statement = interrupt.statement
        # The read in progress; done when nothing awaits one.
        self._reading: asyncio.Future[pa.RecordBatch] | None = None
        self._closed = False

    def __aiter__(self) -> GuardedRows:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._closed:
            raise StopAsyncIteration
        if isinstance(self._batches, AtHand):
            batch = self.take()
            if batch is None:
                raise StopAsyncIteration
            return batch
        self._reading = asyncio.ensure_future(anext(self._batches))
        try:
            return await self._interrupt.guard(self._reading)
        except BaseException:  # the end of the rows included
            await self.aclose()
            raise

    @property
    def at_hand(self) -> bool:
        """Whether `take` may be called."""
        return isinstance(self._batches, AtHand)

    def take(self) -> pa.RecordBatch | None:
        """The next batch of rows in memory; None at the end. It needs no task: most small results take this
        path."""
        batches = self._batches
        if self._closed or not isinstance(batches, AtHand):
            return None
        try:
            self._interrupt.check()
            batch = batches.take()
        except BaseException:
            self._end(batches)
            raise
        if batch is None:
            self._end(batches)
        return batch

    def _end(self, batches: AtHand) -> None:
        self._closed = True
        batches.close()
        self._interrupt.end(self._statement)

    async def aclose(self) -> None:
        """Release what the rows hold. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._reading is not None and not self._reading.done():
            # An abandoned read ends first: an iterator that is being read cannot be closed.
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await close_batches(self._batches)
        self._interrupt.end(self._statement)
