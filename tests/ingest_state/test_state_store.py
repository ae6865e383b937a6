"""The folder of states: limits, leftovers, full disks, and processes that are killed."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
import weakref
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from upsert_world import SHAPE, World, applied, random_records, table_of

from tidemill import failpoints
from tidemill.envelope.keys import KeyShape, key_hash
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.state import StateStore, bucket, shared, sweep
from tidemill.ingest.state.run import REST_ROWS, StateRun
from tidemill.runs import merge
from tidemill.runs.merge import MERGE_SHARE, plan
from tidemill.runs.run import REST_BYTES, open_run, write_run


def files(folder: Path, suffix: str = "") -> list[Path]:
    return sorted(p for p in folder.rglob(f"*{suffix}") if p.is_file())


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def filled(folder: Path, shard: str, upper: int = 2) -> StateStore:
    store = StateStore(str(folder))
    for n in range(BUCKETS):
        assert store.empty(shard, n, SHAPE, 1).commit(upper)
    return store


def test_a_full_disk_only_costs_reading_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "HEAD_BYTES", 0)
    rng = np.random.default_rng(1)
    world, store = World(), StateStore(str(tmp_path))
    for name in ("run_written", "manifest_written"):
        world.tick(store, random_records(rng, 60, 50))
        before = world.snapshots
        failpoints.arm(f"ingest.state.{name}=enospc")
        try:
            world.tick(store, random_records(rng, 60, 50))
        finally:
            failpoints.arm("")
        world.tick(StateStore(str(tmp_path)), random_records(rng, 60, 50))
        assert world.snapshots == before, "the older state and what came since were enough"
        assert not files(tmp_path, ".tmp")


def test_the_folder_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    world, store = World(), StateStore(str(tmp_path / "state"))
    world.tick(store, [(1, "a")])
    world.tick(store, [(1, "b")])
    assert world.snapshots == 2


def test_over_the_limit_the_least_recently_used_buckets_go(tmp_path: Path) -> None:
    for shard in ("old", "new"):
        store = filled(tmp_path, shard)
    for path in files(tmp_path, ".state"):
        age(path, 500 if "/old." in str(path) else 0)
    total = sum(p.stat().st_size for p in files(tmp_path))
    StateStore(str(tmp_path), limit=total).sweep()
    assert len(files(tmp_path, ".state")) == 2 * BUCKETS
    store = StateStore(str(tmp_path), limit=total // 2)
    assert store.open("old", 0, SHAPE, 2) is not None
    store.sweep()
    assert len(files(tmp_path, ".state")) == BUCKETS
    assert all("/new." in str(path) for path in files(tmp_path, ".state"))
    assert store.open("old", 0, SHAPE, 2) is None
    assert store.open("new", 0, SHAPE, 2) is not None


def test_leftovers_go_and_what_may_be_under_way_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "HEAD_BYTES", 0)
    rng = np.random.default_rng(2)
    world, store = World(), StateStore(str(tmp_path))
    for _ in range(4):
        world.tick(store, random_records(rng, 60, 50))
    store.settle()
    before = files(tmp_path)
    folder = before[0].parent
    for name in ("a.tmp", "b.run", "c.claim", "d.merged"):
        (folder / name).write_bytes(b"x")
        (folder / f"old-{name}").write_bytes(b"x")
        age(folder / f"old-{name}", sweep.GRACE_SECONDS + 1)
    for path in before:
        age(path, sweep.GRACE_SECONDS + 1)
    dead = tmp_path / "boot-of-old" / "s" / "0"
    dead.mkdir(parents=True)
    (dead / "1.state").write_bytes(b"x")
    (tmp_path / "not ours").write_bytes(b"x")
    store.sweep()
    left = {p.name for p in files(tmp_path)}
    assert left == {p.name for p in before} | {"a.tmp", "b.run", "c.claim", "d.merged", "not ours"}
    snapshots = world.snapshots
    world.tick(StateStore(str(tmp_path)), random_records(rng, 60, 50))
    assert world.snapshots == snapshots


def test_another_boot_starts_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, "s")
    monkeypatch.setattr("tidemill.ingest.state.store._boot", lambda: "boot-another")
    assert StateStore(str(tmp_path)).open("s", 0, SHAPE, 2) is None


def test_states_of_a_lost_history_are_no_base(tmp_path: Path) -> None:
    """The collection was put back to 5, goes on to 9, and not every bucket had records then."""
    store = StateStore(str(tmp_path))
    for shard, upper in (("s", 5), ("s", 7), ("t", 7)):
        assert store.empty(shard, 0, SHAPE, 1).commit(upper)
    store = StateStore(str(tmp_path))
    store.rewind("s", 5)
    base = store.open("s", 0, SHAPE, 9)
    assert base is not None and base.upper == 5
    other = store.open("t", 0, SHAPE, 9)
    assert other is not None and other.upper == 7
    store.rewind("none", 5)


def test_shards_of_any_name(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path))
    for shard in ("../../x", "s3://bucket/a b", "x" * 300, ""):
        assert store.empty(shard, 0, SHAPE, 1).commit(2)
        assert store.open(shard, 0, SHAPE, 2) is not None
    assert all(store.folder in str(path) for path in files(tmp_path))


def test_one_store_per_process_and_folder(tmp_path: Path) -> None:
    assert shared(str(tmp_path)) is shared(f"{tmp_path}/")
    assert shared(str(tmp_path)) is not shared(str(tmp_path / "other"))


def test_stores_whose_folders_are_gone_are_let_go_of(tmp_path: Path) -> None:
    """Their maps keep the space of files that somebody has removed."""
    gone = weakref.ref(made := shared(str(tmp_path / "gone")))
    assert made.empty("s", 0, SHAPE, 1).commit(2)
    shutil.rmtree(tmp_path / "gone")
    made.settle()
    del made
    shared(str(tmp_path / "next"))
    deadline = time.monotonic() + 60
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)  # its thread ends
        gc.collect()
    assert gone() is None


@given(st.lists(st.integers(1, 200_000), max_size=400))
def test_the_runs_stay_few(batches: list[int]) -> None:
    """Whatever comes, and if the background never does anything: a lookup visits few runs, and what a commit
    merges is in proportion, unless the background has failed it for long."""
    sizes: list[int] = []
    for fresh in batches:
        todo = plan(fresh, sizes)
        if len(sizes) < merge.MAX_RUNS:
            affordable = max(merge.INLINE_ROWS, merge.INLINE_FACTOR * fresh)
            assert todo.inline == 0 or fresh + sum(sizes[: todo.inline]) <= affordable
        if todo.later is not None:
            assert todo.later[0] >= todo.inline
        sizes = [fresh + sum(sizes[: todo.inline]), *sizes[todo.inline :]]
        assert len(sizes) <= merge.MAX_RUNS


@given(st.lists(st.integers(1, 2000), min_size=50, max_size=300))
def test_a_merge_that_is_left_for_later_is_named_until_it_is_done(batches: list[int]) -> None:
    sizes = [5_000_000, 100_000]
    waiting: tuple[int, int] | None = None
    for n, fresh in enumerate(batches):
        todo = plan(fresh, sizes)
        pair = None if todo.later is None else (sizes[todo.later[0]], sizes[todo.later[1] - 1])
        if waiting is not None:
            assert pair == waiting
        sizes = [fresh + sum(sizes[: todo.inline]), *sizes[todo.inline :]]
        if len(sizes) >= merge.MAX_RUNS:
            return
        waiting = pair
        if pair is not None and n % 7 == 6:
            at = plan(0, sizes).later
            assert at is not None and (sizes[at[0]], sizes[at[1] - 1]) == pair
            sizes[at[0] : at[1]] = [sum(pair)]
            waiting = None
    while (at := plan(0, sizes).later) is not None:
        sizes[at[0] : at[1]] = [sum(sizes[at[0] : at[1]])]
    for small, large in itertools.pairwise(sizes):
        assert small * MERGE_SHARE < large or small + large <= merge.INLINE_ROWS


# Ticks until a failpoint kills the process, or 40 of them. What it prints is what it had acknowledged.
_VICTIM = """
import sys
import numpy as np
import pyarrow as pa
from tidemill.ingest.state import StateStore, bucket
from tidemill.runs import merge
from upsert_world import World, random_records

bucket.HEAD_BYTES, merge.INLINE_ROWS, merge.INLINE_FACTOR = 600, 20, 1
rng = np.random.default_rng(9)
world, store = World(), StateStore(sys.argv[1])
for _ in range(40):
    world.tick(store, random_records(rng, 40, 300))
    store.settle()
    print(world.upper, flush=True)
"""


@pytest.mark.parametrize(
    "name",
    [
        "runs.run_written",
        "runs.run_named",
        "runs.small_file_written",
        "ingest.state.manifest_named",
        "ingest.state.merged",
    ],
)
def test_killed_processes_leave_nothing_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        **os.environ,
        "TIDEMILL_FAILPOINTS": f"{name}=kill@20",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    victim = subprocess.run(
        [sys.executable, "-c", _VICTIM, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert victim.returncode == -9, victim.stderr
    ticks = len(victim.stdout.split())
    assert ticks < 40
    monkeypatch.setattr(bucket, "HEAD_BYTES", 600)
    monkeypatch.setattr(merge, "INLINE_ROWS", 20)
    # The same collection elsewhere; then the next tick with what the victim left.
    rng = np.random.default_rng(9)
    world, elsewhere = World(), StateStore(str(tmp_path / "elsewhere"))
    for _ in range(ticks):
        world.tick(elsewhere, random_records(rng, 40, 300))
    before = world.snapshots
    store = StateStore(str(tmp_path))
    for _ in range(5):
        world.tick(store, random_records(rng, 40, 300))
    assert world.snapshots == before, "what the victim had kept was of use"
    shutil.rmtree(tmp_path / "elsewhere")


def test_any_damage_to_a_file_makes_it_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "HEAD_BYTES", 1000)
    world, store = World(), StateStore(str(tmp_path))
    world.tick(store, [(k, "x" * (k % 3)) for k in range(400)])
    world.tick(store, [(1, "y"), (2, "y")])
    folder = next(path.parent for path in files(tmp_path, ".run"))
    name = int(folder.name)
    chooser = np.random.default_rng(7)
    for path in files(folder):
        if path.suffix == ".state" and path.stem != str(world.upper):
            path.unlink()
            continue
        whole = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(whole)
            damaged[chooser.integers(len(whole))] ^= 1 << int(chooser.integers(8))
            cut = whole[: chooser.integers(len(whole))]
            for data in (bytes(damaged), cut, whole + b"x"):
                path.unlink()
                path.write_bytes(data)
                assert StateStore(str(tmp_path)).open("s", name, SHAPE, world.upper) is None
        path.unlink()
        assert StateStore(str(tmp_path)).open("s", name, SHAPE, world.upper) is None
        path.write_bytes(whole)
        assert StateStore(str(tmp_path)).open("s", name, SHAPE, world.upper) is not None


def _resident(path: Path) -> int:
    """kB of the mapped file that are in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def _large(count: int, batches: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Rows of ascending hashes that are their keys, in so many batches."""
    schema = pa.schema([("mz_key_hash", pa.uint64()), ("k", pa.int64()), ("mz_tombstone", pa.bool_())])
    columns = [
        pa.array(np.arange(count, dtype=np.uint64)),
        pa.array(np.arange(count)),
        pa.array([False] * count),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    return schema, [whole.slice(n * count // batches, count // batches) for n in range(batches)]


def test_an_open_run_has_no_copy_of_its_hashes(tmp_path: Path) -> None:
    count = 1 << 18
    schema, batches = _large(count, 4)
    written = write_run(str(tmp_path), "1", schema, batches, StateRun)
    assert written is not None and written.facts is not None
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        run = open_run(str(tmp_path), written.facts, schema, StateRun)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert run is not None and run.rows == count
    assert held < count and pa.total_allocated_bytes() - before < count
    wanted = np.array([0, count // 4 - 1, count // 4, count - 1, count], dtype=np.uint64)
    at, there = run.search(wanted)
    assert at.tolist() == wanted.tolist()
    assert there.tolist() == [True, True, True, True, False]
    assert run.hashes_at(wanted[:-1].astype(np.int64)).tolist() == wanted[:-1].tolist()


def test_a_lookup_of_many_keys_holds_one_batch_at_a_time_and_leaves_nothing(tmp_path: Path) -> None:
    batches, count = 8, 8 * REST_BYTES // 16
    schema, cut = _large(count, batches)
    run = write_run(str(tmp_path), "1", schema, cut, StateRun)
    assert run is not None and run.facts is not None
    path = tmp_path / run.facts.name
    run.rest()
    shape = KeyShape(pa.schema([("k", pa.int64())]), (0,))
    keys = np.arange(0, count, 3)
    seen: list[int] = []
    most = 0
    for where, rows in run.find(keys.astype(np.uint64), [pa.array(keys)], np.arange(len(keys)), shape):
        assert rows.column(1).to_pylist() == keys[where].tolist()
        seen += where.tolist()
        most = max(most, _resident(path))
    assert seen == list(range(len(keys)))
    # The system brings some pages beside those that are asked for.
    assert REST_BYTES >> 11 < most <= 3 * REST_BYTES >> 11
    assert _resident(path) == 0
    # Those that a small tick looked at stay at hand.
    few = np.arange(0, len(keys), len(keys) // 100)
    assert sum(
        len(where) for where, _ in run.find(keys.astype(np.uint64), [pa.array(keys)], few, shape)
    ) == len(few)
    assert _resident(path) > 0


def test_who_writes_a_run_does_not_read_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    plain = zlib.crc32

    def counting(data: bytes | pa.Buffer, before: int = 0) -> int:
        looked_at.append(memoryview(data).nbytes)
        return plain(data, before)

    monkeypatch.setattr(zlib, "crc32", counting)
    schema, batches = _large(8 * REST_BYTES // 16, 8)
    run = write_run(str(tmp_path), "1", schema, batches, StateRun)
    assert run is not None and run.facts is not None
    assert sum(looked_at) == run.facts.bytes
    # Whoever finds it later does.
    again = open_run(str(tmp_path), run.facts, schema, StateRun)
    assert again is not None and list(again.batches) == batches
    assert sum(looked_at) == 2 * run.facts.bytes


def test_a_larger_tick_leaves_nothing_in_memory_and_a_small_one_does(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path))
    state = store.empty("s", 0, SHAPE, 1)
    keys = np.arange(100_000)
    rows = pa.record_batch(
        [pa.array(keys), pa.array(["x" * 20] * len(keys)), pa.array(np.full(len(keys), 20))],
        schema=SHAPE.schema,
    )
    order = np.argsort(hashes := key_hash(rows, SHAPE.key))
    state.put(rows.take(pa.array(order)), hashes[order], np.zeros(len(keys), np.bool_))
    os.makedirs(state._folder)  # pyright: ignore[reportPrivateUsage]
    assert state.commit(2)
    (path,) = files(tmp_path, ".run")
    for upper, count in ((2, REST_ROWS), (3, REST_ROWS // 3), (4, REST_ROWS)):
        records = table_of([(int(k), f"{upper}") for k in keys[:: len(keys) // count][:count]])
        assert applied(state, records, upper).num_rows == 2 * count
        assert state.commit(upper + 1)
        assert (_resident(path) == 0) == (count == REST_ROWS)


def test_a_run_that_rests_is_not_in_memory_and_still_there(tmp_path: Path) -> None:
    count = 2 * REST_BYTES // 16
    schema, [batch] = _large(count, 1)
    run = write_run(str(tmp_path), "1", schema, [batch], StateRun)
    assert run is not None and run.facts is not None
    path = tmp_path / run.facts.name
    # Its checksum was looked at; what is left is what its footer needs.
    assert _resident(path) <= REST_BYTES >> 11
    assert run.batches[0].equals(batch)
    assert _resident(path) >= 2 * REST_BYTES >> 10
    run.rest()
    assert _resident(path) == 0
    assert run.batches[0].equals(batch)
    assert run.take(np.array([5, count - 1])).column(1).to_pylist() == [5, count - 1]
