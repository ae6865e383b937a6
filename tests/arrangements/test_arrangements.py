"""What a server's arrangements promise: shared, kept for the next process, given up, refused."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from arranged import KEY, ArrangedShard, counted, hashes_of

from support.shards import append
from tidemill import caches, failpoints
from tidemill.arrangements import (
    Arrangement,
    ArrangementFacts,
    ArrangementLost,
    Arrangements,
    ArrangementsOf,
    DiskFull,
    Filling,
    contents,
    key_hash,
    store,
)
from tidemill.arrangements.contents import FOLD_ROWS
from tidemill.query.multiset import NegativeMultiplicity, SourceError

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def source(tmp_path: Path) -> ArrangedShard:
    found = ArrangedShard(f"{tmp_path}/data")
    found.append([((1, "a"), 1, 1), ((1, "a"), 2, 1), ((2, "b"), 2, 1)], 5)
    return found


def arrangements_in(folder: Path, name: str = "cache") -> Arrangements:
    return Arrangements(f"{folder}/{name}", background=False)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_next_process_goes_on_where_the_last_one_was(source: ArrangedShard, tmp_path: Path) -> None:
    first = arrangements_in(tmp_path)
    source.open(first, 5)
    source.append([((1, "c"), 7, 1)], 9)
    # (Killed: nothing is closed.)
    source.forget_holds()
    second, filling = arrangements_in(tmp_path), Filling()
    second.hold(source.shard)
    # The view has let go of what is before its own time.
    assert source.shard.downgrade_since(8) == 4
    found = source.open(second, 9, filling)
    assert filling.known == 0, "it was built again"
    assert counted(found.lookup(hashes_of([1]), 9)) == Counter({(1, "a"): 2, (1, "c"): 1})
    # What is on disk follows the readers, and the history that is held follows that.
    second.tend(keep=True)
    assert found.kept == 9
    assert source.shard.downgrade_since(8) == 8


def test_without_its_history_it_is_built_again(source: ArrangedShard, tmp_path: Path) -> None:
    source.open(arrangements_in(tmp_path), 5)
    source.append([((1, "a"), 7, -1)], 9)
    source.forget_holds()
    second, filling = arrangements_in(tmp_path), Filling()
    source.shard.downgrade_since(8)
    found = source.open(second, 9, filling)
    assert filling.known == filling.read == 4
    assert counted(found.lookup(hashes_of([1]), 9)) == Counter({(1, "a"): 1})
    assert len([path for path in files(tmp_path / "cache") if path.name == "manifest"]) == 1


def test_one_that_is_ahead_of_its_reader_goes_back(source: ArrangedShard, tmp_path: Path) -> None:
    """A view that was killed stands before what it had read, and another may be far behind."""
    first = arrangements_in(tmp_path)
    reader = source.open(first, 5)
    source.append([((1, "c"), 7, 1), ((1, "a"), 8, -1), ((3, "d"), 8, 1)], 20)
    source.bring(reader, 5, 20)
    reader.compact(20)
    first.tend(keep=True)
    assert reader.kept == 20
    source.forget_holds()
    second, filling = arrangements_in(tmp_path), Filling()
    found = source.open(second, 8, filling)
    assert filling.known == 0, "it was built again"
    assert counted(found.lookup(hashes_of([1, 3]), 8)) == Counter({(1, "a"): 2, (1, "c"): 1})
    source.bring(found, 8, 20)
    assert counted(found.lookup(hashes_of([1, 3]), 20)) == Counter({(1, "a"): 1, (1, "c"): 1, (3, "d"): 1})
    # While it is used, too; and the history is held from there on.
    found.compact(20)
    second.tend(keep=True)
    other = source.open(second, 6, filling)
    assert filling.known == 0
    assert counted(other.lookup(hashes_of([1]), 7)) == Counter({(1, "a"): 2})
    assert counted(found.lookup(hashes_of([1]), 20)) == Counter({(1, "a"): 1, (1, "c"): 1})
    assert source.shard.downgrade_since(19) == 5
    other.compact(20)
    second.tend(keep=True)
    assert source.shard.downgrade_since(19) == 19


@pytest.mark.parametrize("what", ["manifest", "*.run"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damaged_files_are_not_used(source: ArrangedShard, tmp_path: Path, what: str, how: str) -> None:
    source.open(arrangements_in(tmp_path), 5)
    source.forget_holds()
    (path,) = (tmp_path / "cache").rglob(what)
    data = path.read_bytes()
    path.unlink()
    if how != "gone":
        # A flipped bit of a row's values, behind the hash and the validity.
        at = data.index(b"aa") if what == "*.run" else len(data) // 2
        flipped = data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :]
        path.write_bytes(data[: len(data) // 2] if how == "cut" else flipped)
    filling = Filling()
    found = source.open(arrangements_in(tmp_path), 5, filling)
    assert filling.read == 3
    assert counted(found.lookup(hashes_of([1, 2]), 5)) == Counter({(1, "a"): 2, (2, "b"): 1})


def test_a_cache_of_another_history_is_not_used(source: ArrangedShard, tmp_path: Path) -> None:
    """A backup was restored, and the cache is of what came after it."""
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    first = arrangements_in(tmp_path)
    reader = source.open(first, 5)
    source.append([((1, "lost"), 7, 1)], 9)
    source.bring(reader, 5, 9)
    reader.compact(9)
    first.tend(keep=True)
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "backup", tmp_path / "data")
    source.forget_holds()
    append(source.shard, [((1, "new"), 8, 1)], 12)
    for at in (7, 12):
        filling = Filling()
        found = source.open(arrangements_in(tmp_path), at, filling)
        expected = Counter({(1, "a"): 2, (1, "new"): 1}) if at == 12 else Counter({(1, "a"): 2})
        assert counted(found.lookup(hashes_of([1]), at)) == expected


def test_a_cache_of_nothing_is_not_used_where_there_is_something(tmp_path: Path) -> None:
    """As above, where what came after the backup had taken all rows away."""
    source = ArrangedShard(f"{tmp_path}/data")
    source.append([], 5)
    shutil.copytree(tmp_path / "data", tmp_path / "emptied")
    source.append([((1, "a"), 6, 1)], 9)
    shutil.move(tmp_path / "data", tmp_path / "backup")
    shutil.move(tmp_path / "emptied", tmp_path / "data")
    source.forget_holds()
    append(source.shard, [], 9)
    source.open(arrangements_in(tmp_path), 9)
    kept = files(tmp_path / "cache")
    source.forget_holds()
    source.open(arrangements_in(tmp_path), 9)
    assert files(tmp_path / "cache") == kept, "it was built again"
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "backup", tmp_path / "data")
    source.forget_holds()
    found = source.open(arrangements_in(tmp_path), 9)
    assert counted(found.lookup(hashes_of([1]), 9)) == Counter({(1, "a"): 1})


def test_the_switch_of_caches(source: ArrangedShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "ENABLED", False)
    arrangements = arrangements_in(tmp_path)
    source.open(arrangements, 5)
    filling = Filling()
    source.open(arrangements, 5, filling)
    assert filling.read == 3
    arrangements_in(tmp_path)
    assert not files(tmp_path / "cache")


def test_what_nobody_reads_goes(
    source: ArrangedShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrangements = arrangements_in(tmp_path)
    reader = source.open(arrangements, 5)
    reader.close()
    # One that is opened again soon does not pay for it.
    filling = Filling()
    reader = source.open(arrangements, 5, filling)
    assert filling.known == 0
    reader.close()
    arrangements.forget([source.shard.id])
    arrangements.tend()
    assert not files(tmp_path / "cache")
    assert source.shard.downgrade_since(4) == 4
    # Of a collection that was dropped nothing stays; of others not for long.
    source.open(arrangements, 5).close()
    arrangements.tend()
    assert not files(tmp_path / "cache")
    monkeypatch.setattr(store, "IDLE_SECONDS", 0.0)
    other = arrangements_in(tmp_path, "other")
    source.open(other, 5).close()
    other.tend()
    assert not files(tmp_path / "other")
    # What an earlier process has left, and nobody opens.
    source.open(arrangements_in(tmp_path, "other"), 5)
    monkeypatch.setattr(store, "UNUSED_SECONDS", 0.0)
    arrangements_in(tmp_path, "other").tend()
    assert not files(tmp_path / "other")


def test_a_slow_reader_is_cut_off(
    source: ArrangedShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "TAIL_BYTES", 2000)
    arrangements = arrangements_in(tmp_path)
    slow, fast = source.open(arrangements, 5), source.open(arrangements, 5)
    for at in range(5, 12):
        source.append([((n, "x" * 50), at, 1) for n in range(5)], at + 1)
        source.bring(fast, at, at + 1)
        fast.compact(at + 1)
    assert len(counted(fast.lookup(hashes_of(range(5)), 12))) == 7
    with pytest.raises(ArrangementLost):
        slow.lookup(hashes_of([1]), 5)
    # Opened again, it has its time again.
    slow.close()
    again = source.open(arrangements, 5)
    assert counted(again.lookup(hashes_of([1]), 5)) == Counter({(1, "a"): 2})


def test_errors_of_the_collection(source: ArrangedShard, tmp_path: Path) -> None:
    shard, arrangements = source.shard, arrangements_in(tmp_path)
    schema = shard.schema

    def put(k: int | None, diff: int, error: str | None, at: int) -> None:
        values = [[k], [None], [at], [diff], [error]]
        table = pa.table([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)
        shard.compare_and_append([shard.write_part(table, job="t")], shard.upper, at + 1)

    put(None, 1, "broken", 5)
    with pytest.raises(SourceError, match="broken"):
        source.open(arrangements, 6)
    put(None, -1, "broken", 6)
    assert counted(source.open(arrangements, 7).lookup(hashes_of([1]), 7)) == Counter({(1, "a"): 2})
    put(7, -1, None, 7)
    shared = arrangements_in(tmp_path, "other")
    with pytest.raises(NegativeMultiplicity):
        source.open(shared, 8)
    assert not files(tmp_path / "other")


def test_a_full_disk(source: ArrangedShard, tmp_path: Path) -> None:
    arrangements = arrangements_in(tmp_path)
    failpoints.arm("runs.run_written=enospc")
    try:
        with pytest.raises(DiskFull) as refused:
            source.open(arrangements, 5)
    finally:
        failpoints.arm("")
    assert refused.value.sqlstate == "53100" and str(tmp_path) in (refused.value.detail or "")
    assert not files(tmp_path / "cache")
    assert counted(source.open(arrangements, 5).lookup(hashes_of([2]), 5)) == Counter({(2, "b"): 1})


def test_what_is_shown(source: ArrangedShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrangements = arrangements_in(tmp_path)
    seen: list[list[ArrangementFacts]] = []
    hashed = key_hash

    def looked(rows: pa.Table, key: list[str]) -> np.ndarray:
        seen.append(arrangements.listed())
        return hashed(rows, key)

    monkeypatch.setattr("tidemill.arrangements.fill.key_hash", looked)
    view = ArrangementsOf(arrangements, "u1").open(source.shard, source.shard.snapshot, ["k", "v"], KEY, 5)
    ((building,),) = seen
    assert (building.reader, building.upper, building.read, building.known) == ("u1", None, 3, 3)
    other = source.open(arrangements, 5)
    assert [(f.reader, f.collections, f.key, f.rows, f.upper) for f in arrangements.listed()] == [
        ("u1", (source.shard.id,), ("k",), 3, 5),
        ("", (source.shard.id,), ("k",), 3, 5),
    ]
    view.close()
    other.close()
    assert not arrangements.listed()


def test_a_private_one_tells_from_where_on_it_needs_changes(source: ArrangedShard, tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "v": ["x", "y"], "mz_diff": [1, 3]}).cast(
        pa.schema([*SCHEMA, ("mz_diff", pa.int64())])
    )
    asked: list[int] = []

    def fill() -> list[tuple[pa.Table, np.ndarray]]:
        asked.append(1)
        return [(rows, key_hash(rows, KEY))]

    first = arrangements_in(tmp_path)
    first.private("stage 1", SCHEMA, 5, fill, [source.shard])
    source.forget_holds()
    second = arrangements_in(tmp_path)
    late = second.private("stage 1", SCHEMA, 9, fill, [source.shard], earliest=3)
    assert (late.upper, late.since, len(asked)) == (5, 5, 1)
    assert source.shard.downgrade_since(4) == 4, "the inputs are held for it"
    change = pa.table({"k": [2], "v": ["y"], "mz_timestamp": [6], "mz_diff": [-1]})
    late.append(change, key_hash(change, KEY), 9)
    assert counted(late.lookup(hashes_of([1, 2]), 9)) == Counter({(1, "x"): 1, (2, "y"): 2})
    # Without that permission it stands at the time that was asked for.
    other = second.private("stage 2", SCHEMA, 9, fill, [source.shard])
    assert (other.upper, len(asked)) == (9, 2)
    # What does not say what it is computed from is never taken for something else.
    for _ in range(2):
        second.private("stage 3", SCHEMA, 9, fill)
    arrangements_in(tmp_path).private("stage 3", SCHEMA, 9, fill)
    assert len(asked) == 5


def test_readers_of_the_same_share_one(tmp_path: Path) -> None:
    source, arrangements = ArrangedShard(f"{tmp_path}/data"), arrangements_in(tmp_path)
    source.append([((1, "a"), 1, 1)], 5)
    first, second = source.open(arrangements, 5), source.open(arrangements, 5)
    source.append([((1, "b"), 5, 1)], 6)
    source.bring(first, 5, 6)
    # What one has brought is there for all, once.
    assert second.upper == 6
    source.bring(second, 5, 6)
    assert counted(second.lookup(hashes_of([1]), 6)) == Counter({(1, "a"): 1, (1, "b"): 1})
    assert counted(second.lookup(hashes_of([1]), 5)) == Counter({(1, "a"): 1})
    arrangements.close()


NOTHING = pa.table(
    {
        "k": pa.array([], pa.int64()),
        "v": pa.array([], pa.string()),
        "mz_timestamp": pa.array([], pa.int64()),
        "mz_diff": pa.array([], pa.int64()),
    }
)


def _computed(rows: int) -> Callable[[], list[tuple[pa.Table, np.ndarray]]]:
    table = pa.table({"k": np.arange(rows), "v": ["x"] * rows, "mz_diff": np.ones(rows, np.int64)})
    return lambda: [(table, key_hash(table, KEY))]


def _bring(to: Arrangement, key: int, at: int, upper: int) -> None:
    """A row of that key comes at a time, and the reader passes it."""
    change = pa.table({"k": [key], "v": ["new"], "mz_timestamp": [at], "mz_diff": [1]})
    to.append(change, key_hash(change, KEY), upper)
    to.compact(upper)


def test_what_one_query_computes_is_kept_at_one_time(source: ArrangedShard, tmp_path: Path) -> None:
    """However much there is of each, and not before the query has committed what it was told."""
    first = arrangements_in(tmp_path)
    fill, inputs = _computed(3), [source.shard]
    small = first.private("small", SCHEMA, 5, fill, inputs, reader="v")
    large = first.private("large", SCHEMA, 5, fill, inputs, reader="v")
    _bring(small, 1, 6, 8)
    many = pa.table(
        {
            "k": np.arange(FOLD_ROWS),
            "v": ["y"] * FOLD_ROWS,
            "mz_timestamp": np.full(FOLD_ROWS, 6),
            "mz_diff": np.ones(FOLD_ROWS, np.int64),
        }
    )
    large.append(many, key_hash(many, KEY), 8)
    large.compact(8)
    first.tend()
    first.tend()
    assert (small.kept, large.kept) == (8, 8)
    for each in (small, large):
        _bring(each, 2, 9, 11)
    # One of them is ahead when the process dies.
    _bring(small, 3, 12, 14)
    first.tend(keep=True)
    assert (small.kept, large.kept) == (8, 8), "perhaps nobody has committed that yet"
    first.tend(keep=True)
    assert (small.kept, large.kept) == (11, 11)
    source.forget_holds()
    second = arrangements_in(tmp_path)
    found = [second.private(n, SCHEMA, 13, fill, inputs, 3, "v") for n in ("small", "large")]
    assert [f.since for f in found] == [11, 11] and second.built == 0
    assert counted(found[0].lookup(hashes_of([1, 2, 3]), 11)) == Counter(
        {(1, "x"): 1, (1, "new"): 1, (2, "x"): 1, (2, "new"): 1}
    )


def test_time_that_passed_without_a_change_is_no_reason_to_compute(
    source: ArrangedShard, tmp_path: Path
) -> None:
    """A view advances without an entry in its log while nothing changes, and its last time is the earlier
    one after a crash."""
    first = arrangements_in(tmp_path)
    fill, inputs = _computed(3), [source.shard]
    reader = first.private("sums", SCHEMA, 5, fill, inputs, reader="v")
    _bring(reader, 1, 6, 8)
    reader.append(NOTHING, key_hash(NOTHING, KEY), 500)
    reader.compact(500)
    first.tend()
    first.tend(keep=True)
    assert reader.kept == 500
    source.forget_holds()
    second = arrangements_in(tmp_path)
    found = second.private("sums", SCHEMA, 8, fill, inputs, 3, "v")
    assert (found.since, second.built) == (8, 0)
    assert counted(found.lookup(hashes_of([1]), 8)) == Counter({(1, "x"): 1, (1, "new"): 1})
    # Before the change it was another one.
    second.private("sums", SCHEMA, 6, fill, inputs, 3, "v")
    assert second.built == 1


def test_queries_that_share_nothing_do_not_hold_each_other_back(
    source: ArrangedShard, tmp_path: Path
) -> None:
    store = arrangements_in(tmp_path)
    fill, inputs = _computed(3), [source.shard]
    named = (("a", "v"), ("b", "w"), ("c", ""))
    opened = [store.private(n, SCHEMA, 5, fill, inputs, reader=r) for n, r in named]
    other = store.private("d", SCHEMA, 5, fill, inputs, reader="")
    for number, each in enumerate(opened):
        _bring(each, 1, 6, 8 + number)
    store.tend(keep=True)
    store.tend(keep=True)
    assert [each.kept for each in (*opened, other)] == [8, 9, 10, 5]
