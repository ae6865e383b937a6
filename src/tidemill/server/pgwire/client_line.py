"""The input and output queues of one client, and the interruption of waits on them.

`connection` (the transport's callbacks) and the task of the session use `Inbox` and `Outbox`, both on
the event loop. Promises: both queues are bounded (`limits`). A cancel, a shutdown or a closed socket
ends any wait at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

from tidemill.errors import QueryCanceled, TidemillError
from tidemill.server import limits
from tidemill.server.metrics import BYTES_SENT
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire.protocol import Event
from tidemill.server.pgwire.shapes import Shapes
from tidemill.server.shared import Encodings

P = ParamSpec("P")
T = TypeVar("T")

# How long a few rows may wait for the messages after them, usually the end of their statement.
_SOON_SECONDS = 0.005

# The overhead of an event beyond its bytes: the object and its slot in the queue.
_EVENT_COST = 100


class ConnectionEnds(Exception):
    """The conversation is over. `error` is sent to the client as FATAL; None if the client is gone."""

    def __init__(self, error: TidemillError | None) -> None:
        super().__init__(str(error) if error else "the client is gone")
        self.error = error


def _cost(event: Event) -> int:
    match event:
        case m.Bind():
            return _EVENT_COST + sum([_EVENT_COST + len(p or b"") for p in event.params])
        case m.CopyData():
            return _EVENT_COST + len(event.data)
        case m.QueryMessage() | m.Parse():
            return _EVENT_COST + len(event.text)
        case _:
            return _EVENT_COST


def _wake(waiter: asyncio.Future[None] | None, error: Exception | None = None) -> None:
    """Complete the wait, or raise the error in it."""
    if waiter is not None and not waiter.done():
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class Inbox:
    """Messages that were read and not yet run. Above `limits.INBOX_BYTES` it pauses reading on the
    transport."""

    __slots__ = ("_cost", "_ending", "_events", "_paused", "_reading", "_waiter", "departed")

    def __init__(self, reading: Callable[[bool], None]) -> None:
        # Called with False to pause reading on the transport, with True to resume.
        self._reading = reading
        # Events with their costs, and the sum of the costs.
        self._events: deque[tuple[Event, int]] = deque()
        self._cost = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        # Once set, every `get` raises it: a shutdown does not wait for further messages of the client.
        self._ending: ConnectionEnds | None = None
        # The client sent Terminate or its stream ended: it needs no more rows.
        self.departed = False

    def put(self, event: Event) -> None:
        cost = _cost(event)
        self._events.append((event, cost))
        self._cost += cost
        if self._cost > limits.INBOX_BYTES and not self._paused:
            self._paused = True
            self._reading(False)
        _wake(self._waiter)

    def close(self) -> None:
        """Mark the end of the input."""
        self.departed = True
        _wake(self._waiter)

    def end(self, error: TidemillError | None) -> None:
        """End the connection at every `get`, including one that waits."""
        self._ending = ConnectionEnds(error)
        _wake(self._waiter)

    def interrupt(self, error: Exception) -> None:
        """Raise `error` in a `get` that waits; no effect if none does."""
        _wake(self._waiter, error)

    @property
    def empty(self) -> bool:
        return not self._events

    def next_is(self, kind: type[object]) -> bool:
        """Whether the next message has that kind, as far as the client has sent it."""
        return bool(self._events) and isinstance(self._events[0][0], kind)

    @property
    def ending(self) -> ConnectionEnds | None:
        return self._ending

    async def wait(self) -> None:
        """Wait until there is an event, or until no more can arrive."""
        while not self._events and self._ending is None and not self.departed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def get(self) -> Event:
        """Return the next event. Raises ConnectionEnds after the last one."""
        if not self._events:
            await self.wait()
        return self.take()

    def take(self) -> Event:
        """As `get`, without waiting; for use when an event is available or the input has ended."""
        if self._ending is not None:
            raise self._ending
        if not self._events:
            raise ConnectionEnds(None)
        event, cost = self._events.popleft()
        self._cost -= cost
        if self._paused and self._cost <= limits.INBOX_BYTES // 2:
            self._paused = False
            self._reading(True)
        return event


class Outbox:
    """Bytes to the client, always whole messages. `drain` waits while the client reads too slowly."""

    __slots__ = ("_lost", "_parts", "_paused", "_size", "_timer", "_transport", "_waiter")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        transport.set_write_buffer_limits(high=limits.OUTBOX_BYTES)
        self._transport = transport
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._paused = False
        self._lost = False
        self._waiter: asyncio.Future[None] | None = None
        # The timer of `flush_soon`, until the next flush.
        self._timer: asyncio.TimerHandle | None = None

    def put(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size >= limits.GATHER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        # Between a failed write and `lose` many messages may be answered, and asyncio logs each write.
        if self._lost or not parts or self._transport.is_closing():
            return
        BYTES_SENT.value += size
        if size < 2 * limits.GATHER_BYTES:
            self._transport.write(b"".join(parts))
            return
        for part in parts:
            self._transport.write(part)

    def flush_soon(self) -> None:
        """Flush within milliseconds, so that later messages usually go into the same packet. A cancelled
        timer costs nothing; another turn of the loop would cost a tenth of a small query."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON_SECONDS, self.flush)

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def stopped(self) -> bool:
        """Whether the caller should `drain`."""
        return self._paused or self._lost

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        _wake(self._waiter)

    def lose(self) -> None:
        """The socket is gone; further output is discarded."""
        self._lost = True
        self._parts, self._size = [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _wake(self._waiter)

    def interrupt(self, error: Exception) -> None:
        """Raise `error` in a `drain` that waits."""
        _wake(self._waiter, error)

    async def drain(self) -> None:
        """Wait until the client has read enough of the flushed bytes."""
        if self._paused and not self._lost:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._lost:
            raise ConnectionEnds(None)


class ClientLine:
    """Both directions, the encoder threads, and the cancel flag of the running statement."""

    __slots__ = ("_cancelled", "_pool", "encodings", "inbox", "outbox", "shapes", "timezone")

    def __init__(self, inbox: Inbox, outbox: Outbox, pool: Executor, encodings: Encodings) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self._pool = pool
        # The listener's: output for several clients is encoded once.
        self.encodings = encodings
        self.shapes = Shapes()
        self._cancelled = False
        # The session's time zone for the running statement; times with a zone are shown in it.
        self.timezone = "UTC"

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` outside the event loop."""
        return await self.begin_in_thread(work, *args, **kwargs)

    def begin_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """As `in_thread`, without waiting for the result."""
        return asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def begin(self) -> None:
        """Start to process a message: earlier cancels do not apply to it."""
        self._cancelled = False

    def cancel(self) -> None:
        """Interrupt the waits of this side; the caller cancels in the engine."""
        self._cancelled = True
        self.inbox.interrupt(_cancelled())
        self.outbox.interrupt(_cancelled())

    def check(self) -> None:
        """Raise if cancelled. Called between pieces of work."""
        if self._cancelled:
            raise _cancelled()


def _cancelled() -> QueryCanceled:
    return QueryCanceled("canceling statement due to user request")
