"""Rows that a worker thread reads, on the event loop, with the holds on them until they are closed."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from tidemill.engine.session.execution import StatementExecution


class ThreadBatches:
    """A class and not a generator: one that is never started would never release its holds."""

    def __init__(
        self,
        execution: StatementExecution,
        next_: Callable[[], pa.RecordBatch | None],
        cancel: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        """`next_` returns None at the end; `close` may wait for the JVM."""
        self._execution = execution
        self._next = next_
        self._cancel = cancel
        # None: it was called.
        self._close: Callable[[], None] | None = close

    def __aiter__(self) -> ThreadBatches:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._close is None:
            raise StopAsyncIteration
        try:
            batch = await self._execution.blocking(self._next)
        except BaseException:
            self._cancel()
            await self.aclose()
            raise
        if batch is None:
            await self.aclose()
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Returns at once. Idempotent."""
        close, self._close = self._close, None
        if close is not None:
            self._execution.release(close)
