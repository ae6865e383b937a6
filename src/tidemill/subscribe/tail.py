"""The tail of a followed relation, shared by all its readers.

Lives on the event loop; blocking calls run on the pool. A tail has a follower. It drives the follower when
the relation may have advanced (`wake`), and otherwise about once a second, and passes each span of changes to
its readers. A reader that does not keep up loses its place (`TailReader.fell_behind`); it never delays the
others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from tidemill.errors import Internal, LimitExceeded, TidemillError
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower

log = logging.getLogger(__name__)
T = TypeVar("T")

# How often a tail without wake-ups checks whether time has advanced.
IDLE_SECONDS = 1.0
# Time that passes without a change is reported after this long without any message: less than IDLE_SECONDS,
# so that a tail that checks once a second reports once a second.
TOLD_SECONDS = 0.9
# What may wait for one reader beside one span, unless max_subscribe_buffer_size is set: some ten seconds of a
# hundred thousand rows each. Readers with equal specs share it.
BUFFER_BYTES = 64 << 20
# Spans that may wait, however small: ten minutes of a reader that never reads, at ten a second.
BUFFER_SPANS = 6_000


class FellBehind(LimitExceeded):
    """The reader's buffer is full."""

    sqlstate = "53000"


class TailReader:
    """One subscription's position at a tail: its waiting changes."""

    def __init__(self, limit: int = BUFFER_BYTES, on_behind: Callable[[], None] | None = None) -> None:
        """`on_behind` is called when more than `limit` bytes wait: at once, although the client, which does
        not read, may receive the error much later or never."""
        self._limit = limit
        self._on_behind = on_behind
        self._waiting: deque[CollectionChanges] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        # Why there will be no more.
        self._error: TidemillError | None = None

    def put(self, changes: CollectionChanges) -> None:
        if self._error is not None:
            return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.idle and changes.idle:
            # Passing time is reported once.
            self._waiting[-1] = CollectionChanges(changes.updates, last.lower, changes.upper)
            return
        self._waiting.append(changes)
        self._bytes += changes.bytes
        # One span may have any size: a reader that waits for it has not fallen behind.
        full = self._bytes > self._limit and 0 < changes.bytes < self._bytes
        if full or len(self._waiting) > BUFFER_SPANS:
            self.end(
                FellBehind(
                    f"SUBSCRIBE fell behind: {self._bytes} bytes wait for the client",
                    detail=f"The limit is {self._limit} bytes, or {BUFFER_SPANS} spans of time.",
                    hint="Read faster, or subscribe again AS OF the last complete time; "
                    "ALTER SYSTEM SET max_subscribe_buffer_size changes the limit.",
                )
            )
            self._waiting.clear()
            if self._on_behind is not None:
                self._on_behind()
        self._news.set()

    def end(self, error: TidemillError) -> None:
        """No more changes follow; waiting ones are still returned."""
        if self._error is None:
            self._error = error
            self._news.set()

    @property
    def ready(self) -> bool:
        return bool(self._waiting) or self._error is not None

    async def next(self) -> CollectionChanges:
        """The next changes. Raises when there will be no more."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        changes = self._waiting.popleft()
        self._bytes -= changes.bytes
        return changes


class Tail:
    """For one relation; runs while it has readers."""

    def __init__(self, open_: Callable[[], Follower], pool: Executor, gone: Callable[[Tail], None]) -> None:
        # Called once; it may hold much that is only needed at the start.
        self._open: Callable[[], Follower] | None = open_
        self._pool = pool
        self._gone = gone
        self._follower: Follower | None = None
        self._readers: set[TailReader] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        # Everything before it was handed out; None before the follower exists.
        self._frontier: int | None = None
        # The time since which nothing has changed and nothing was reported.
        self._passed: int | None = None
        # When changes were handed out last, by the loop's clock.
        self._told = 0.0
        self._opened = asyncio.Event()

    async def join(self, reader: TailReader) -> int:
        """From now on the reader gets all changes at or after the time that is returned."""
        self._readers.add(reader)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        try:
            await self._opened.wait()
        except BaseException:
            self.leave(reader)
            raise
        # Between the event and here no other task that hands out changes has run: it puts them first.
        if self._frontier is None:
            raise await _error_of(reader)
        return self._frontier

    def took(self, follower: Follower) -> bool:
        """Whether the tail has continued with this follower, and closes it."""
        return self._follower is follower

    def leave(self, reader: TailReader) -> None:
        self._readers.discard(reader)
        if not self._readers and self._task is not None:
            # At once: the next subscription needs another tail.
            self._gone(self)
            self._task.cancel()

    def wake(self) -> None:
        """The relation may have moved. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            pass  # the loop is closed

    def fail_soon(self, error: TidemillError) -> None:
        """The relation is gone. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._fail, error)
        except RuntimeError:
            pass  # the loop is closed

    def _fail(self, error: TidemillError) -> None:
        for reader in self._readers:
            reader.end(error)

    async def _run(self) -> None:
        follower: Follower | None = None
        try:
            open_, self._open = self._open, None
            if open_ is None:
                raise Internal("a tail runs once")
            follower = self._follower = await self._blocking(open_)
            del open_
            self._frontier = follower.frontier
            self._opened.set()
            while True:
                while (changes := await self._blocking(follower.advance)) is not None:
                    self._hand_out(changes)
                    if changes.idle:
                        break  # time continues without end
                try:
                    await asyncio.wait_for(self._wake.wait(), IDLE_SECONDS)
                except TimeoutError:
                    pass
                self._wake.clear()
        except TidemillError as e:
            self._fail(e)
        except asyncio.CancelledError:
            pass
        except Exception as e:
            log.exception("a subscription's tail failed for an unforeseen reason")
            self._fail(TidemillError(f"{type(e).__name__}: {e}"))
        finally:
            self._gone(self)
            self._opened.set()
            if follower is not None:
                self._pool.submit(follower.close)

    def _hand_out(self, changes: CollectionChanges) -> None:
        """To all readers; but passing time only now and then: it would be reported after each change."""
        if self._passed is not None:
            changes.lower, self._passed = self._passed, None
        now = self._loop.time()
        if changes.idle and now < self._told + TOLD_SECONDS:
            self._passed = changes.lower
            return
        self._told = now
        self._frontier = changes.upper
        for reader in self._readers:
            reader.put(changes)

    async def _blocking(self, fn: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._pool, fn)


async def _error_of(reader: TailReader) -> TidemillError:
    try:
        await reader.next()
    except TidemillError as e:
        return e
    return TidemillError("the subscription ended before it began")
