"""Where a subscription that followed by itself joins the tail that others share: however the two stand to
each other, every change comes once. And what a shard's updates say of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import TidemillError
from tidemill.subscribe import tail as tail_module
from tidemill.subscribe.changes import CollectionChanges, changes_of
from tidemill.subscribe.spec import Spec
from tidemill.subscribe.stream import Bounds, SubscriptionStream
from tidemill.subscribe.tail import Tail, TailReader
from tidemill.types.arrow import HIDDEN_ROW
from tidemill.types.model import INT8, Column

PLAIN = Spec((Column("n", INT8),))
PROGRESS = Spec((Column("n", INT8),), progress=True)


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "TOLD_SECONDS", 0.0)


class Script:
    """Tells its spans (times of rows, upper), one for each look; a row's value is its time."""

    def __init__(self, frontier: int, *spans: tuple[list[int], int]) -> None:
        self.frontier = frontier
        self.spans = list(spans)
        self.closed = False

    def advance(self) -> CollectionChanges | None:
        if not self.spans:
            return None
        times, upper = self.spans.pop(0)
        lower, self.frontier = self.frontier, upper
        values = pa.array(times, pa.int64())
        ones = pa.array([1] * len(times), pa.int64())
        return CollectionChanges(
            pa.table({"n": values, "mz_timestamp": values, "mz_diff": ones}), lower, upper
        )

    def close(self) -> None:
        self.closed = True


class Reading:
    """What a subscription has told so far."""

    def __init__(
        self, pool: ThreadPoolExecutor, tail: Tail, own: Script, spec: Spec = PLAIN, up_to: int | None = None
    ) -> None:
        self.own = own
        # Of rows and, where they are asked for, of progress.
        self.times: list[int] = []
        self.subscription = SubscriptionStream(spec, Bounds(0, up_to), None, own, lambda: tail, pool)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.subscription:
            self.times += batch.column(0).to_pylist()

    async def until(self, *times: int) -> None:
        async with asyncio.timeout(60):
            while len(self.times) < len(times) or self.subscription.ready:
                assert not self.task.done() or not self.task.exception()
                await asyncio.sleep(0.001)
        assert self.times == list(times)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.subscription.aclose()


def run(work: Callable[[ThreadPoolExecutor], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(4) as pool:
            await asyncio.wait_for(work(pool), 120)
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*rest, return_exceptions=True)

    asyncio.run(main())


def test_whoever_is_ahead_of_the_tail_is_told_the_rest_of_its_span() -> None:
    async def work(pool: ThreadPoolExecutor) -> None:
        shared = Script(1)
        tail = Tail(lambda: shared, pool, lambda _: None)
        first = Reading(pool, tail, Script(1))
        await first.until()
        # The same wish as the first one's, but from another time on.
        ahead = Reading(pool, tail, Script(1, ([3, 4], 5)))
        ended = Reading(pool, tail, Script(1, ([3], 4)), up_to=6)
        await ahead.until(3, 4)
        await ended.until(3)
        shared.spans.append(([3, 4, 5, 6], 8))
        tail.wake()
        await first.until(3, 4, 5, 6)
        await ahead.until(3, 4, 5, 6)
        await asyncio.wait_for(ended.task, 60)
        assert ended.times == [3, 4, 5]
        for reading in (first, ahead, ended):
            await reading.close()

    run(work)


def test_whoever_is_behind_the_tail_catches_up_by_itself() -> None:
    async def work(pool: ThreadPoolExecutor) -> None:
        shared = Script(1, ([3, 7], 10))
        tail = Tail(lambda: shared, pool, lambda _: None)
        first = Reading(pool, tail, Script(1))
        await first.until(3, 7)
        # It sees no more at its first look; what it reads to catch up goes beyond the tail.
        behind = Reading(pool, tail, Late(1, ([3], 5), ([], 6), ([7, 11], 12)))
        await behind.until(3, 7, 11)
        shared.spans.append(([11, 13], 15))
        tail.wake()
        await behind.until(3, 7, 11, 13)
        await first.until(3, 7, 11, 13)
        for reading in (first, behind):
            await reading.close()
            assert reading.own.closed

    run(work)


def test_one_that_shares_nothing_hands_its_follower_to_its_tail() -> None:
    own = Script(1, ([3], 5), ([], 5))

    async def work(pool: ThreadPoolExecutor) -> None:
        tail = Tail(lambda: own, pool, lambda _: None)
        alone = Reading(pool, tail, own)
        await alone.until(3)
        own.spans.append(([6, 7], 8))
        tail.wake()
        await alone.until(3, 6, 7)
        assert not own.closed
        await alone.close()

    run(work)
    assert own.closed


def test_progress_never_goes_back() -> None:
    """The tail tells those who were there before what others know already."""

    async def work(pool: ThreadPoolExecutor) -> None:
        shared = Script(1)
        tail = Tail(lambda: shared, pool, lambda _: None)
        first = Reading(pool, tail, Script(1), PROGRESS)
        await first.until(0, 1)
        ahead = Reading(pool, tail, Script(1, ([4], 9)), PROGRESS)
        await ahead.until(0, 1, 4, 9)
        for span in (([4], 6), ([], 7), ([9], 11)):
            shared.spans.append(span)
            tail.wake()
            await first.until(*first.times, *span[0], span[1])
        await ahead.until(0, 1, 4, 9, 9, 11)
        for reading in (first, ahead):
            await reading.close()

    run(work)


def test_the_last_time_before_the_end_is_told() -> None:
    async def work(pool: ThreadPoolExecutor) -> None:
        shared = Script(1)
        tail = Tail(lambda: shared, pool, lambda _: None)
        by_tail = Reading(pool, tail, Script(1), up_to=7)
        by_itself = Reading(pool, tail, Script(1, ([5], 6), ([6, 7], 9)), up_to=7)
        await asyncio.wait_for(by_itself.task, 60)
        await by_tail.until()
        for span in (([5], 6), ([6, 7], 9)):
            shared.spans.append(span)
            tail.wake()
        await asyncio.wait_for(by_tail.task, 60)
        assert by_tail.times == by_itself.times == [5, 6]
        for reading in (by_tail, by_itself):
            await reading.close()
        while not (by_itself.own.closed and by_tail.own.closed and shared.closed):
            await asyncio.sleep(0.001)

    run(work)


def test_what_waits_is_told_before_the_reason_of_the_end() -> None:
    async def work(_: ThreadPoolExecutor) -> None:
        reader = TailReader()
        for upper in (5, 9):
            changes = Script(upper - 1, ([upper - 1], upper)).advance()
            assert changes is not None
            reader.put(changes)
        reader.end(TidemillError("it is gone"))
        assert [(await reader.next()).upper, (await reader.next()).upper] == [5, 9]
        with pytest.raises(TidemillError, match="it is gone"):
            await reader.next()

    run(work)


class Late(Script):
    """Its last span comes when it was asked once more."""

    asked = False

    def advance(self) -> CollectionChanges | None:
        if len(self.spans) == 1 and not self.asked:
            self.asked = True
            return None
        return super().advance()


# -- errors among a shard's updates


def test_an_error_concerns_those_who_are_told_its_time() -> None:
    empty = pa.table({"n": pa.array([], pa.int64())})
    changes = CollectionChanges(empty, 0, 10, error=(5, "it broke"))
    assert [changes.failed(after, None) for after in (4, 5, 6)] == [(5, "it broke"), None, None]
    assert [changes.failed(0, before) for before in (4, 5, 6)] == [None, None, (5, "it broke")]


def told(*updates: tuple[int, int, int, str | None], hidden: bool = False) -> tuple[list[Any], Any]:
    """The rows (value, time, diff) and the error that (value, time, diff, error) say."""
    n, times, diffs, errors = (list(c) for c in zip(*updates, strict=True))
    columns = {
        "n": pa.array(n, pa.int64()),
        "mz_timestamp": pa.array(times, pa.int64()),
        "mz_diff": pa.array(diffs, pa.int64()),
        "mz_error": pa.array(errors, pa.string()),
    }
    found = changes_of(pa.table(columns), ["n"], 0, 100, hidden=hidden)
    rows = zip(*(c.to_pylist() for c in found.updates.columns), strict=True)
    return list(rows), found.error


def test_the_first_error_ends_it_before_its_time() -> None:
    rows = [(1, 3, 1, None), (2, 5, 1, None), (3, 9, 1, None)]
    errors = [(0, 8, 1, "later"), (0, 5, 1, "second"), (0, 5, 1, "first")]
    assert told(*rows, *errors) == ([(1, 3, 1)], (5, "first"))


def test_an_error_that_goes_is_none() -> None:
    assert told((1, 3, 1, None), (0, 5, -1, "it broke")) == ([(1, 3, 1)], None)


def test_rows_that_nobody_sees_are_no_errors_and_no_rows() -> None:
    assert told((1, 3, 1, None), (2, 3, 1, HIDDEN_ROW)) == ([(1, 3, 1)], None)


def test_rows_that_differ_in_what_nobody_sees_are_one() -> None:
    updates = [(1, 3, 1, None), (1, 3, 1, None), (2, 4, 1, None), (2, 4, -1, None)]
    assert told(*updates, hidden=True) == ([(1, 3, 2)], None)
