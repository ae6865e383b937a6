"""A subscription while its relation is compacted and history is given up: it loses and repeats nothing."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from support.shards import DESC, Row, Update, append
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.subscribe.follower import CollectionFollower


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
