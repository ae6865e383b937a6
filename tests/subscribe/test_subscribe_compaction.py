"""A subscription while its relation is compacted and history is given up: it loses and repeats nothing."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from support.shards import DESC, Row, Update, append
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.query.multiset import add_up
from tidemill.subscribe.follower import CollectionFollower
from tidemill.subscribe.gather import stamp
from tidemill.subscribe.hub import FollowedKey, Hub
from tidemill.subscribe.spec import Spec
from tidemill.subscribe.stream import Bounds, SubscriptionStream


def told(follower: CollectionFollower) -> Counter[tuple[Row, int]]:
    """What it has to tell now."""
    found: Counter[tuple[Row, int]] = Counter()
    while (changes := follower.advance()) is not None:
        for row in changes.updates.to_pylist():
            assert changes.lower <= row["mz_timestamp"] < changes.upper
            found[(row["k"], row["v"]), row["mz_timestamp"]] += row["mz_diff"]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_followers_at_their_own_pace(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    shard = Shard.create(open_blobs(str(tmp_path)), "u1", DESC, epoch=1)
    append(shard, [], 10)
    followers = [CollectionFollower(shard, ["k", "v"], 10, lambda: shard.upper or 0) for _ in range(3)]
    seen: list[Counter[tuple[Row, int]]] = [Counter() for _ in followers]
    written: Counter[tuple[Row, int]] = Counter()
    there: Counter[Row] = Counter()
    for time in range(10, 90):
        updates: list[Update] = []
        for _ in range(rng.randrange(4)):
            row = (rng.randrange(5), rng.choice(["a", "b"]))
            diff = -1 if there[row] and rng.random() < 0.5 else 1
            there[row] += diff
            updates.append((row, time, diff))
            written[row, time] += diff
        append(shard, updates, time + 1)
        for n, follower in enumerate(followers):
            if rng.random() < (0.9, 0.3, 0.05)[n]:
                seen[n].update(told(follower))
        if rng.random() < 0.4:
            shard.downgrade_since(time, record=True)
            # Nobody's history goes: each holds it back.
            assert shard.since < min(follower.frontier for follower in followers)
            shard.compact(everything=rng.random() < 0.3)
    for n, follower in enumerate(followers):
        seen[n].update(told(follower))
        assert {k: d for k, d in seen[n].items() if d} == {k: d for k, d in written.items() if d}
        follower.close()
    shard.downgrade_since(90, record=True)
    assert shard.since == 90


# -- whole subscriptions, beside a thread that writes, lets history go and compacts

BEGIN, END, READERS = 10, 160, 12
PROGRESS = Spec(DESC.columns, progress=True)


def history(seed: int) -> list[list[Update]]:
    """The updates of each time from BEGIN on."""
    rng = random.Random(seed)
    there: Counter[Row] = Counter()
    found: list[list[Update]] = []
    for time in range(BEGIN, END):
        some: list[Update] = []
        for _ in range(rng.randrange(4)):
            row = (rng.randrange(5), rng.choice(["a", "b"]))
            diff = -1 if there[row] and rng.random() < 0.5 else 1
            there[row] += diff
            some.append((row, time, diff))
        found.append(some)
    return found


def at(written: list[list[Update]], time: int) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for some in written:
        for row, when, diff in some:
            if when <= time:
                found[row] += diff
    return +found


async def snapshot_rows(shard: Shard, as_of: int) -> AsyncIterator[pa.RecordBatch]:
    def read() -> pa.RecordBatch:
        with shard.snapshot(as_of) as snapshot:
            return stamp(add_up([snapshot.read(["k", "v"]).drop_columns(["mz_error"])]), PROGRESS, as_of)

    yield await asyncio.to_thread(read)


async def read_all(shard: Shard, hub: Hub, pool: ThreadPoolExecutor, written: list[list[Update]]) -> int:
    """How often it was looked whether what came adds up to the relation."""

    def complete() -> int:
        return shard.upper or 0

    while True:
        as_of = complete() - 1
        try:
            own = CollectionFollower(shard, ["k", "v"], as_of + 1, complete)
            break
        except InvalidAsOf:
            continue  # its history went meanwhile
    followed = FollowedKey("u1", frozenset(["u1"]), frozenset())
    subscription = SubscriptionStream(
        PROGRESS,
        Bounds(as_of, END),
        snapshot_rows(shard, as_of),
        own,
        lambda: hub.tail(followed, lambda: CollectionFollower(shard, ["k", "v"], own.frontier, complete)),
        pool,
    )
    held: Counter[Row] = Counter()
    looks = 0
    async for batch in subscription:
        for time, progressed, diff, k, v in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if not progressed:
                held[k, v] += diff
            elif time > as_of:
                looks += 1
                assert {row: n for row, n in held.items() if n} == at(written, time - 1), time
    return looks


def test_subscriptions_begin_and_go_on_while_it_is_compacted(tmp_path: Path) -> None:
    written = history(6)
    shard = Shard.create(open_blobs(str(tmp_path)), "u1", DESC, epoch=1)
    append(shard, [], BEGIN)
    compacted = 0

    async def main() -> list[int]:
        with ThreadPoolExecutor(8) as pool:
            hub = Hub(pool)
            # The writer waits for readers to come, and they for its next times.
            go, came = threading.Semaphore(0), 0

            def write() -> None:
                nonlocal compacted
                rng = random.Random(7)
                try:
                    for time, some in enumerate(written, start=BEGIN):
                        append(shard, some, time + 1)
                        hub.moved(["u1"])
                        if time % 10 == 0:
                            go.release()
                        if rng.random() < 0.5:
                            shard.downgrade_since(time, record=True)
                            compacted += bool(shard.compact(everything=rng.random() < 0.3))
                finally:
                    go.release(READERS)

            writing = asyncio.create_task(asyncio.to_thread(write))
            readers: list[asyncio.Task[int]] = []
            while came < READERS:
                await asyncio.to_thread(go.acquire)
                came += 1
                readers.append(asyncio.create_task(read_all(shard, hub, pool, written)))
            await writing
            looks = await asyncio.wait_for(asyncio.gather(*readers), 120)
            # The tail lets go after its last reader.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*rest, return_exceptions=True)
            return looks

    looks = asyncio.run(main())
    assert compacted and min(looks) >= 1
    shard.downgrade_since(END, record=True)
    assert shard.since == END
