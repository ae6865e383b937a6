"""Who follows a shard together reads it once, and everybody gets everything."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from support.shards import DESC, Update, append, timed
from tidemill.persist.listen import Listen
from tidemill.persist.local import LocalBlobs
from tidemill.persist.recent_updates import MAX_SPANS, Recent
from tidemill.persist.shard import Shard


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard.create(LocalBlobs(str(tmp_path)), "u1", DESC, epoch=1)


def at(time: int, n: int = 3) -> list[Update]:
    return [((k, f"v{k}"), time, 1) for k in range(n)]


def all_of(listen: Listen, upper: int) -> list[pa.Table]:
    tables: list[pa.Table] = []
    while listen.frontier is not None and listen.frontier < upper:
        got = listen.next(0)
        assert got is not None
        tables.append(got[0])
    return tables


def test_followers_are_handed_the_same_spans(shard: Shard) -> None:
    with shard.listen(0) as first, shard.listen(0) as second, shard.listen(0) as late:
        append(shard, at(1), 2)
        (one,) = all_of(first, 2)
        append(shard, at(5), 6)
        # It was behind, and is told what the first was told before what came later.
        told = all_of(second, 6)
        assert told[0] is one and len(told) == 2
        (two,) = all_of(first, 6)
        assert two is told[1]
        assert [t.num_rows for t in all_of(late, 6)] == [3, 3]


def test_one_alone_keeps_nothing(shard: Shard) -> None:
    with shard.listen(0) as first:
        append(shard, at(1), 2)
        all_of(first, 2)
    with shard.listen(0) as again, shard.listen(0) as other:
        assert timed(all_of(again, 2)[0]) == timed(all_of(other, 2)[0])
        again.close()
        again.close()
        append(shard, at(3), 4)
        assert timed(all_of(other, 4)[0]) == {(row, 3): 1 for row, _, _ in at(3)}


def test_those_who_come_meanwhile_wait_for_the_first() -> None:
    recent, table = Recent(), pa.table({"a": [1]})
    recent.join(1)
    recent.join(2)
    asked, go, reads = threading.Event(), threading.Event(), []

    def read() -> tuple[pa.Table, int]:
        reads.append(1)
        asked.set()
        assert go.wait(30)
        return table, 7

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(recent.get, "key", read)
        assert asked.wait(30)
        others = [pool.submit(recent.get, "key", read) for _ in range(7)]
        go.set()
        assert all(f.result(30) == (table, 7) for f in [first, *others])
    assert len(reads) == 1


def test_what_failed_is_read_by_each_for_itself() -> None:
    recent = Recent()
    recent.join(1)
    recent.join(2)

    def fail() -> tuple[pa.Table, int]:
        raise OSError("gone")

    with pytest.raises(OSError):
        recent.get("key", fail)
    table = pa.table({"a": [1]})
    assert recent.get("key", lambda: (table, 2)) == (table, 2)


def test_it_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    recent, table, reads = Recent(), pa.table({"a": list(range(100))}), []
    recent.join(1)
    recent.join(2)

    def read() -> tuple[pa.Table, int]:
        reads.append(1)
        return table, 1

    for n in range(MAX_SPANS + 1):
        recent.get(n, read)
    recent.get(MAX_SPANS, read)
    assert len(reads) == MAX_SPANS + 1
    recent.get(0, read)
    assert len(reads) == MAX_SPANS + 2
    monkeypatch.setattr("tidemill.persist.recent_updates.MAX_BYTES", table.nbytes - 1)
    recent.get("large", read)
    recent.get("large", read)
    assert len(reads) == MAX_SPANS + 4
