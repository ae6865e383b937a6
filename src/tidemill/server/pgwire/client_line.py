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

# How long a few rows may wait for what follows them, mostly the end of their statement.
_SOON_SECONDS = 0.005

# What an event costs beyond its bytes: the object, its slot in the queue.
_EVENT_COST = 100


class ConnectionEnds(Exception):
    """The conversation is over. `error` is said to the client as FATAL; None where nobody listens any
    more."""

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
    """Whoever waits goes on, or raises the error."""
    if waiter is not None and not waiter.done():
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class Inbox:
    """Messages read and not yet run. Above `limits.INBOX_BYTES` it asks the transport to stop reading."""

    __slots__ = ("_cost", "_ending", "_events", "_paused", "_reading", "_waiter", "departed")

    def __init__(self, reading: Callable[[bool], None]) -> None:
        # Called with False when the transport should stop to read, with True when it may go on.
        self._reading = reading
        # Each with its cost; and the cost of all.
        self._events: deque[tuple[Event, int]] = deque()
        self._cost = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        # Once set, every `get` raises it: a shutdown does not wait for what the client still had to say.
        self._ending: ConnectionEnds | None = None
        # The client said Terminate or its stream ended: there is no point in producing rows for it.
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
        """Nothing more will come."""
        self.departed = True
        _wake(self._waiter)

    def end(self, error: TidemillError | None) -> None:
        """Every `get`, the one that waits included, ends the connection."""
        self._ending = ConnectionEnds(error)
        _wake(self._waiter)

    def interrupt(self, error: Exception) -> None:
        """A `get` that waits now raises `error`; nothing happens if none does."""
        _wake(self._waiter, error)

    @property
    def empty(self) -> bool:
        return not self._events

    def next_is(self, kind: type[object]) -> bool:
        """Whether a message of that kind is what comes next, as far as the client has sent it."""
        return bool(self._events) and isinstance(self._events[0][0], kind)

    @property
    def ending(self) -> ConnectionEnds | None:
        return self._ending

    async def wait(self) -> None:
        """Until there is an event, or none will come any more."""
        while not self._events and self._ending is None and not self.departed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def get(self) -> Event:
        """The next event; raises ConnectionEnds when there will be none."""
        if not self._events:
            await self.wait()
        return self.take()

    def take(self) -> Event:
        """The same without waiting, where there is an event or will be none."""
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
    """Bytes on their way to the client, always whole messages. `drain` waits while the client reads too
    slowly."""

    __slots__ = ("_lost", "_parts", "_paused", "_size", "_timer", "_transport", "_waiter")

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        transport.set_write_buffer_limits(high=limits.OUTBOX_BYTES)
        self._transport = transport
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._paused = False
        self._lost = False
        self._waiter: asyncio.Future[None] | None = None
        # Of `flush_soon`, until something is flushed.
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
        # Between a write that failed and `lose` many messages may be answered, and asyncio logs each write.
        if self._lost or not parts or self._transport.is_closing():
            return
        BYTES_SENT.value += size
        if size < 2 * limits.GATHER_BYTES:
            self._transport.write(b"".join(parts))
            return
        for part in parts:
            self._transport.write(part)

    def flush_soon(self) -> None:
        """Within milliseconds: mostly more is put until then, and all goes in one packet. A timer that is
        cancelled costs nothing; another turn of the loop would be a tenth of a small query."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON_SECONDS, self.flush)

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def stopped(self) -> bool:
        """Whether there is a reason to `drain`."""
        return self._paused or self._lost

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        _wake(self._waiter)

    def lose(self) -> None:
        """The socket is gone; what is put from now on goes nowhere."""
        self._lost = True
        self._parts, self._size = [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _wake(self._waiter)

    def interrupt(self, error: Exception) -> None:
        """A `drain` that waits now raises `error`."""
        _wake(self._waiter, error)

    async def drain(self) -> None:
        """Wait until the client has taken enough of what was flushed."""
        if self._paused and not self._lost:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._lost:
            raise ConnectionEnds(None)


class ClientLine:
    """Both directions, the threads that encode, and the cancel flag of the statement that runs."""

    __slots__ = ("_cancelled", "_pool", "encodings", "inbox", "outbox", "shapes", "timezone")

    def __init__(self, inbox: Inbox, outbox: Outbox, pool: Executor, encodings: Encodings) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self._pool = pool
        # The listener's: what several clients are sent is encoded once.
        self.encodings = encodings
        self.shapes = Shapes()
        self._cancelled = False
        # The session's, as of the statement that runs: times with a zone are shown in it.
        self.timezone = "UTC"

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` away from the event loop."""
        return await self.begin_in_thread(work, *args, **kwargs)

    def begin_in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """The same without waiting for it."""
        return asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def begin(self) -> None:
        """A message is about to be acted on: earlier cancels do not concern it."""
        self._cancelled = False

    def cancel(self) -> None:
        """Break off what this side waits for; the engine is told by the caller."""
        self._cancelled = True
        self.inbox.interrupt(_cancelled())
        self.outbox.interrupt(_cancelled())

    def check(self) -> None:
        """Called between pieces of work."""
        if self._cancelled:
            raise _cancelled()


def _cancelled() -> QueryCanceled:
    return QueryCanceled("canceling statement due to user request")
