"""One subscription: the snapshot, then the changes, in the requested shape.

An iterator of record batches on the event loop. Nothing of a time is returned before the time is complete.
While the snapshot is read, and until the reader has caught up, it follows the relation independently, at its
own pace and with its own hold on history. Then it joins the shared tail. Closing it, at any moment, releases
everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sources.message_errors import hint_of
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.shape import progress_row
from tidemill.subscribe.spec import Spec
from tidemill.subscribe.tail import BUFFER_BYTES, Tail, TailReader
from tidemill.types.arrow import error_parts

T = TypeVar("T")


class RelationFailed(TidemillError):
    """The relation holds an error from `at` on; its text is the source's own."""

    sqlstate = "22000"

    def __init__(self, text: str, at: int) -> None:
        primary, detail = error_parts(text)
        super().__init__(primary, detail=detail, hint=hint_of(detail))
        self.at = at


@dataclass(frozen=True, slots=True)
class Bounds:
    """The snapshot is at `as_of`, changes are those after it and before `up_to` (None: without end)."""

    as_of: int
    up_to: int | None = None


@dataclass(slots=True)
class Figures:
    """Counters of a subscription; for mz_subscriptions and the metrics."""

    frontier: int
    rows: int = 0
    bytes: int = 0


class SubscriptionStream:
    def __init__(
        self,
        spec: Spec,
        bounds: Bounds,
        snapshot: AsyncIterator[pa.RecordBatch] | None,
        own: Follower,
        tail: Callable[[], Tail],
        pool: Executor,
        *,
        buffer: int = BUFFER_BYTES,
        on_behind: Callable[[], None] | None = None,
        on_close: Callable[[], None] | None = None,
        why: Callable[[TidemillError], TidemillError] | None = None,
    ) -> None:
        """`snapshot` returns rows in the spec's shape; `own` follows the relation from `as_of + 1` on.
        `buffer` limits what may wait for the client; `on_behind` is called when it overflows, `on_close` at
        the end. `why` converts the error that ends it into the message of a caller that knows more of the
        relation."""
        self.spec = spec
        self.bounds = bounds
        self.figures = Figures(bounds.as_of)
        self._snapshot = snapshot
        self._own: Follower | None = own
        # Called once; it may hold much that is only needed at the start.
        self._tail: Callable[[], Tail] | None = tail
        self._pool = pool
        self._buffer = buffer
        self._on_behind = on_behind
        self._on_close = on_close
        self._why = why
        self._joined: tuple[Tail, TailReader] | None = None
        self._rows = self._generate()
        self._closed = False
        # Nothing to return before the relation advances.
        self._idle = False

    def __aiter__(self) -> SubscriptionStream:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        try:
            batch = await anext(self._rows)
        except TidemillError as e:
            await self.aclose()
            raise (e if self._why is None else self._why(e)) from e
        except BaseException:
            await self.aclose()
            raise
        self.figures.rows += batch.num_rows
        self.figures.bytes += batch.nbytes
        return batch

    @property
    def ready(self) -> bool:
        """Whether rows may be available without waiting for the relation to advance."""
        return not self._closed and not self._idle

    async def aclose(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._rows.aclose()
        finally:
            self._let_go()
            if self._on_close is not None:
                self._on_close()
            close = getattr(self._snapshot, "aclose", None)
            if close is not None:
                await close()

    def _let_go(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            self._pool.submit(own.close)
        joined, self._joined = self._joined, None
        if joined is not None:
            joined[0].leave(joined[1])

    async def _generate(self) -> AsyncGenerator[pa.RecordBatch]:
        spec, frontier = self.spec, self.bounds.as_of + 1
        if spec.progress:
            yield progress_row(self.bounds.as_of, spec)
        if self._ended(self.bounds.as_of):
            return
        if self._snapshot is not None:
            async for batch in self._snapshot:
                yield batch
                # A sent batch is released before the next one is ready: here and below.
                del batch
        if spec.progress:
            yield progress_row(frontier, spec)
        self.figures.frontier = frontier
        if self._ended(frontier):
            return
        async for changes in self._changes():
            if not changes.idle or spec.progress:
                rows = await changes.as_rows(spec, frontier - 1, self.bounds.up_to, self._pool)
                if rows.num_rows:
                    yield rows
                del rows
                failed = changes.failed(frontier - 1, self.bounds.up_to)
                if failed is not None:
                    raise RelationFailed(failed[1], failed[0])
            frontier = max(frontier, changes.upper)
            if self.bounds.up_to is not None:
                frontier = min(frontier, self.bounds.up_to)
            self.figures.frontier = frontier
            del changes
            if self._ended(frontier):
                return

    def _ended(self, frontier: int) -> bool:
        return self.bounds.up_to is not None and frontier >= self.bounds.up_to

    async def _changes(self) -> AsyncGenerator[CollectionChanges]:
        """From `as_of + 1` on: independently until nothing more is complete, then from the tail."""
        own, open_tail, self._tail = self._own, self._tail, None
        if own is None or open_tail is None:
            return
        while (changes := await self._blocking(own.advance)) is not None and not changes.idle:
            yield changes
        if changes is not None:
            yield changes
        tail, reader = open_tail(), TailReader(self._buffer, self._on_behind)
        self._joined = (tail, reader)
        joined = told = await tail.join(reader)
        if not tail.took(own):
            # The tail may have begun after our position.
            while own.frontier < joined:
                changes = await self._blocking(own.advance)
                if changes is not None:
                    yield changes
            told = own.frontier
            self._pool.submit(own.close)
        self._own = None
        del own, open_tail, changes
        while True:
            self._idle = not reader.ready
            changes = await reader.next()
            self._idle = False
            if changes.upper > told:
                yield changes
            del changes

    async def _blocking(self, fn: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, fn)
