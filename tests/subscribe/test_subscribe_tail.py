"""Tails and their readers: equal subscriptions get one and the same batch; who falls behind does so alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import TidemillError
from tidemill.sources.message_errors import BAD_MESSAGES_HINT
from tidemill.subscribe import tail as tail_module
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.spec import OutputShape, Spec
from tidemill.subscribe.stream import Bounds, RelationFailed, SubscriptionStream
from tidemill.subscribe.tail import FellBehind, Tail, TailReader
from tidemill.types.model import INT8, Column

COLUMNS = (Column("n", INT8),)
PLAIN = Spec(COLUMNS)
PROGRESS = Spec(COLUMNS, progress=True)
UPSERT = Spec(COLUMNS, OutputShape.UPSERT, keys=(0,))


def updates(*rows: tuple[int, int]) -> pa.Table:
    """(value, time), each inserted."""
    return pa.table(
        {
            "n": pa.array([n for n, _ in rows], pa.int64()),
            "mz_timestamp": pa.array([time for _, time in rows], pa.int64()),
            "mz_diff": pa.array([1] * len(rows), pa.int64()),
        }
    )


class Script:
    """A follower that tells what it is given."""

    def __init__(self, frontier: int) -> None:
        self.frontier = frontier
        self.to_come: deque[tuple[pa.Table, int, tuple[int, str] | None] | TidemillError] = deque()
        self.closed = False

    def tell(self, *rows: tuple[int, int], upper: int, error: tuple[int, str] | None = None) -> None:
        self.to_come.append((updates(*rows), upper, error))

    def advance(self) -> CollectionChanges | None:
        if not self.to_come:
            return None
        what = self.to_come.popleft()
        if isinstance(what, TidemillError):
            raise what
        table, upper, error = what
        lower, self.frontier = self.frontier, upper
        return CollectionChanges(table, lower, upper, error)

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.script = Script(1)
        self.gone: list[Tail] = []
        self.tail = Tail(lambda: self.script, pool, self.gone.append)

    def subscribe(self, spec: Spec = PLAIN, up_to: int | None = None, **more: Any) -> SubscriptionStream:
        return SubscriptionStream(
            spec, Bounds(0, up_to), None, Script(1), lambda: self.tail, self.pool, **more
        )

    def tell(self, *rows: tuple[int, int], upper: int, error: tuple[int, str] | None = None) -> None:
        self.script.tell(*rows, upper=upper, error=error)
        self.tail.wake()


def run(work: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(4) as pool:
            await asyncio.wait_for(work(World(pool)), 60)

    asyncio.run(main())


def plain(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in batch.to_pylist()]


async def joined(*subscriptions: SubscriptionStream) -> list[asyncio.Task[pa.RecordBatch]]:
    """Their next batches, once all of them wait at the tail."""
    found = [asyncio.ensure_future(anext(s)) for s in subscriptions]
    while any(s.ready for s in subscriptions):
        await asyncio.sleep(0.001)
    return found


def test_equal_wishes_get_one_and_the_same_batch() -> None:
    async def work(world: World) -> None:
        equal = [world.subscribe(Spec(COLUMNS)) for _ in range(50)]
        other = world.subscribe(UPSERT)
        waiting = await joined(*equal, other)
        world.tell((7, 5), (8, 5), upper=6)
        first, *others = await asyncio.gather(*waiting)
        assert plain(first) == [(5, 1, 7), (5, 1, 8)]
        assert all(batch is first for batch in others[:-1])
        assert plain(others[-1]) == [(5, "upsert", 7), (5, "upsert", 8)]
        for subscription in [*equal, other]:
            await subscription.aclose()
        assert world.gone  # nobody is there any more

    run(work)


def test_progress_comes_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        subscription = world.subscribe(PROGRESS)
        assert plain(await anext(subscription)) == [(0, True, None, None)]
        assert plain(await anext(subscription)) == [(1, True, None, None)]
        (waiting,) = await joined(subscription)
        world.tell((7, 5), upper=6)
        assert plain(await waiting) == [(5, False, 1, 7), (6, True, None, None)]
        # Time that passes is told too, but not after every change.
        monkeypatch.setattr(tail_module, "TOLD_SECONDS", 1e9)
        (waiting,) = await joined(subscription)
        world.script.tell(upper=8)
        world.tell((8, 9), upper=10)
        assert plain(await waiting) == [(9, False, 1, 8), (10, True, None, None)]
        monkeypatch.setattr(tail_module, "TOLD_SECONDS", 0.0)
        (waiting,) = await joined(subscription)
        world.tell(upper=20)
        assert plain(await waiting) == [(20, True, None, None)]
        await subscription.aclose()

    run(work)


def test_an_end_cuts_and_ends() -> None:
    async def work(world: World) -> None:
        subscription = world.subscribe(PROGRESS, up_to=7)
        await anext(subscription)
        await anext(subscription)
        (waiting,) = await joined(subscription)
        world.tell((7, 5), (8, 7), upper=9)
        assert plain(await waiting) == [(5, False, 1, 7), (7, True, None, None)]
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)
        assert world.gone

    run(work)


def test_an_error_of_the_relation_ends_it_behind_what_came_before() -> None:
    async def work(world: World) -> None:
        subscription, before = world.subscribe(PROGRESS), world.subscribe(up_to=6)
        await anext(subscription)
        await anext(subscription)
        waiting, short = await joined(subscription, before)
        world.tell((7, 5), upper=9, error=(6, 'it broke\nTopic "t", partition 0, offset 3.'))
        assert plain(await waiting) == [(5, False, 1, 7)]
        with pytest.raises(RelationFailed, match="it broke") as failed:
            await anext(subscription)
        assert failed.value.detail == 'Topic "t", partition 0, offset 3.'
        assert failed.value.hint == BAD_MESSAGES_HINT
        # Who wants nothing of that time is not concerned.
        assert plain(await short) == [(5, 1, 7)]
        with pytest.raises(StopAsyncIteration):
            await anext(before)

    run(work)


def test_who_falls_behind_does_so_alone() -> None:
    async def work(world: World) -> None:
        behind: list[int] = []
        slow = world.subscribe(buffer=100, on_behind=lambda: behind.append(1))
        quick = world.subscribe(buffer=100)
        waiting = await joined(slow, quick)
        world.tell(*((n, 5) for n in range(20)), upper=6)
        # One span may be larger than the buffer.
        for batch in await asyncio.gather(*waiting):
            assert batch.num_rows == 20
        told = 0
        for time in range(10, 15):
            (waiting_one,) = await joined(quick)
            world.tell(*((n, time) for n in range(20)), upper=time + 1)
            told += (await waiting_one).num_rows
        assert told == 100 and behind == [1]
        with pytest.raises(FellBehind) as e:
            await anext(slow)
        assert e.value.primary.startswith("SUBSCRIBE fell behind: ") and e.value.sqlstate == "53000"
        await quick.aclose()

    run(work)


def test_one_span_may_be_large() -> None:
    async def work(world: World) -> None:
        del world
        reader = TailReader(limit=0)
        reader.put(CollectionChanges(updates((1, 5), (2, 5)), 5, 6))
        reader.put(CollectionChanges(updates(), 6, 7))
        assert (await reader.next()).bytes
        reader.put(CollectionChanges(updates((3, 8)), 7, 9))
        assert not (await reader.next()).bytes
        assert (await reader.next()).bytes
        reader.put(CollectionChanges(updates((3, 9)), 9, 10))
        reader.put(CollectionChanges(updates((4, 11)), 10, 12))
        with pytest.raises(FellBehind):
            await reader.next()

    run(work)


def test_time_that_passes_takes_no_room() -> None:
    async def work(world: World) -> None:
        del world
        reader = TailReader(limit=0)
        for upper in range(2, 20_000):
            reader.put(CollectionChanges(updates(), upper - 1, upper))
        changes = await reader.next()
        assert (changes.lower, changes.upper, reader.ready) == (1, 19_999, False)

    run(work)


def test_a_tail_that_fails_tells_everybody() -> None:
    async def work(world: World) -> None:
        both = [world.subscribe(), world.subscribe(UPSERT)]
        waiting = await joined(*both)
        world.tell((1, 5), upper=6)
        world.script.to_come.append(TidemillError("the store is gone"))
        assert [batch.num_rows for batch in await asyncio.gather(*waiting)] == [1, 1]
        for subscription in both:
            with pytest.raises(TidemillError, match="the store is gone"):
                await anext(subscription)

    run(work)


def test_what_was_sent_is_not_kept() -> None:
    async def work(world: World) -> None:
        async def snapshot() -> AsyncIterator[pa.RecordBatch]:
            yield pa.record_batch({"n": [1, 2, 3]})

        subscription = SubscriptionStream(
            PLAIN, Bounds(0), snapshot(), Script(1), lambda: world.tail, world.pool
        )
        kept = [weakref.ref(await anext(subscription))]
        for time in (5, 6, 7):
            (waiting,) = await joined(subscription)
            gc.collect()
            assert kept[-1]() is None
            world.tell((time, time), upper=time + 1)
            kept.append(weakref.ref(await waiting))
            del waiting
        await subscription.aclose()

    run(work)
