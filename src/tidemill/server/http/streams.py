"""Long-lived HTTP connections (WebSockets and event streams): counts, limits and ends them.

One `Streams` per port, on the event loop. A stream is entered for its whole life.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

import pyarrow as pa

from tidemill.engine.api import Engine, Rows
from tidemill.errors import LimitExceeded
from tidemill.server.http.forms import stopping
from tidemill.server.http.limits import MAX_STREAMS, SHUTDOWN_SECONDS
from tidemill.server.http.metrics import STREAMS
from tidemill.server.shared import BlockEncoder, Encodings
from tidemill.types.model import Column, face

E = TypeVar("E", bound=BlockEncoder)

# How often a shutdown looks whether the streams have ended.
_POLL_SECONDS = 0.01


class OpenStream(Protocol):
    # What a cancel from another connection must name; None where there can be none.
    key: tuple[int, int] | None

    def cancel(self) -> None:
        """Cancels the running statement."""
        ...

    def stop(self) -> None:
        """The server shuts down."""
        ...


class Streams:
    """`engine` and `pool` (threads that encode) are used by the streams."""

    def __init__(self, engine: Engine, pool: Executor) -> None:
        self.engine = engine
        self.pool = pool
        self._encodings = Encodings(pool)
        self._open: set[OpenStream] = set()
        self._stopping = False

    @contextlib.contextmanager
    def entered(self, stream: OpenStream, kind: str) -> Generator[None]:
        """Raises if there are too many streams, or if the server shuts down."""
        if self._stopping:
            raise stopping()
        if len(self._open) >= MAX_STREAMS:
            raise LimitExceeded(
                f"too many WebSockets and streams of events (limit {MAX_STREAMS})",
                hint="Close some, or use the SQL port.",
                sqlstate="53300",
            )
        self._open.add(stream)
        STREAMS.labels(kind).inc()
        try:
            yield
        finally:
            self._open.discard(stream)
            STREAMS.labels(kind).dec()

    def encoder(self, rows: Rows, make: Callable[[Sequence[Column]], E]) -> E:
        """The encoder of these rows, shared by all streams with the same batches."""
        columns = rows.columns
        if not rows.shared:
            return make(columns)
        types = tuple(face(c.type) for c in columns)
        return self._encodings.common((make, types), lambda: make(columns))

    async def encoded(
        self, rows: Rows, batch: pa.RecordBatch, at: int, count: int, encoder: BlockEncoder
    ) -> memoryview:
        """A block of the batch, encoded in a thread."""
        if rows.shared:
            return await self._encodings.block(batch, at, count, encoder)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, encoder.encode, batch.slice(at, count))

    def cancel(self, conn_id: int, secret_key: int) -> None:
        """Ignores unknown connections and wrong secrets, without an answer."""
        for stream in self._open:
            if stream.key is not None and stream.key[0] == conn_id:
                if hmac.compare_digest(str(stream.key[1]), str(secret_key)):
                    stream.cancel()
                return

    def stop(self) -> None:
        self._stopping = True
        for stream in list(self._open):
            stream.stop()

    async def stopped(self) -> None:
        """Waits until all streams have sent their last messages, or `SHUTDOWN_SECONDS` have passed."""
        deadline = asyncio.get_running_loop().time() + SHUTDOWN_SECONDS
        while self._open and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
