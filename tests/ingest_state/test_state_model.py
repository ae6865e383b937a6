"""The upsert state against a dictionary, over many ticks, whatever happens to its files meanwhile."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upsert_world import Record, World, random_records

import tidemill.envelope.keys as keys_module
from tidemill import failpoints
from tidemill.failpoints import FailpointError
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.state import StateStore, bucket
from tidemill.ingest.state import run as state_run
from tidemill.runs import merge, run

KEYS = st.none() | st.integers(-3, 20)
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.sampled_from(["", "a", "bb"])), max_size=25)
FAULTS = (
    "runs.run_written",
    "runs.run_named",
    "runs.small_file_written",
    "ingest.state.manifest_named",
    "ingest.state.merged",
)
ACTIONS = st.one_of(
    RECORDS,
    RECORDS,
    st.sampled_from(
        [
            "delete one",
            "delete some",
            "delete all",
            "corrupt one",
            "cut one",
            "other process",
            "settle",
            "lose commit",
            "redo",
            "idle",
            "compact",
            "sweep",
        ]
    ),
    st.sampled_from([f"crash {name}" for name in FAULTS]),
    st.sampled_from([f"enospc {name}" for name in FAULTS[:4]]),
)


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is large happens with a dozen rows: runs with files, merges now and later."""
    monkeypatch.setattr(bucket, "HEAD_BYTES", 400)
    monkeypatch.setattr(merge, "INLINE_ROWS", 6)
    monkeypatch.setattr(merge, "INLINE_FACTOR", 1)
    monkeypatch.setattr(merge, "MAX_RUNS", 6)
    # Some rows per batch of a run: keys are found across batches, and keys of one hash stand in two of them.
    monkeypatch.setattr(run, "BATCH_BYTES", 120)
    monkeypatch.setattr(merge, "BATCH_BYTES", 120)
    # Lookups of more keys than this go by batches.
    monkeypatch.setattr(state_run, "REST_ROWS", 3)


def files(folder: str) -> list[Path]:
    return sorted(p for p in Path(folder).rglob("*") if p.is_file())


def sabotage(action: str, folder: str, rng: random.Random) -> None:
    found = files(folder)
    if action == "delete all":
        chosen = found
    else:
        chosen = rng.sample(found, min(len(found), 1 if "one" in action else rng.randint(0, 6)))
    for path in chosen:
        if action.startswith("delete"):
            path.unlink()
            continue
        data = bytearray(path.read_bytes())
        if action == "corrupt one" and data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        if action == "cut one":
            data = data[: rng.randint(0, len(data))]
        # As a new file: one that is mapped must not change.
        path.unlink()
        path.write_bytes(data)


def step(world: World, store: StateStore, folder: str, action: str, rng: random.Random) -> StateStore:
    records: list[Record] = [(rng.randint(0, 9), "c"), (rng.randint(0, 9), None)]
    if action == "settle":
        store.settle()
    elif action == "sweep":
        store.sweep()
    elif action == "idle":
        world.upper += 5
    elif action == "compact":
        world.compact(world.upper - rng.randint(0, 30))
    elif action == "redo":
        # The job failed after the state was kept: the same time comes again.
        first = world.attempt(store, records, world.upper + 3)
        again = world.attempt(store, records, world.upper + 3)
        assert first.equals(again)
        world.commit(records, world.upper + 3, again)
    elif action == "lose commit":
        states = world.prepare(store).states
        world.commit(records, world.upper + 3, world.compute(states, records, world.upper + 3)[0])
    elif action.startswith(("crash", "enospc")):
        kind, name = action.split()
        failpoints.arm(f"{name}={'error' if kind == 'crash' else kind}@{rng.randint(1, 3)}")
        try:
            world.tick(store, records)
        except FailpointError:
            # The process died: what it knew is gone, and the tick is redone.
            store = StateStore(folder)
            world.tick(store, records)
        finally:
            failpoints.arm("")
    elif action == "other process":
        store = StateStore(folder)
    else:
        sabotage(action, folder, rng)
        # Whoever still knows the files by heart is right too; a new process has only the files.
        store = store if rng.random() < 0.3 else StateStore(folder)
    return store


@given(actions=st.lists(ACTIONS, max_size=30), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_tick_is_right(actions: list[list[Record] | str], seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world, store = World(), StateStore(folder)
        for action in actions:
            if isinstance(action, str):
                store = step(world, store, folder, action, rng)
            else:
                world.tick(store, action)
        world.tick(store, [(1, "end")])
        store.settle()


@given(actions=st.lists(ACTIONS, max_size=20), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_keys_of_one_hash_are_told_apart(actions: list[list[Record] | str], seed: int) -> None:
    def crowded(longs: list[np.ndarray]) -> np.ndarray:
        return longs[0] % np.uint64(3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "fold", crowded)
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            world, store = World(), StateStore(folder)
            for action in actions:
                if isinstance(action, str):
                    store = step(world, store, folder, action, rng)
                else:
                    world.tick(store, action)
            world.tick(store, [(k, "end") for k in range(-3, 21)])


def test_without_faults_nothing_is_read_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    world, store = World(), StateStore(str(tmp_path))
    world.tick(store, random_records(rng, 50, 200))
    assert world.snapshots == 1
    for n in range(120):
        world.tick(store, random_records(rng, 30, 200))
        if n % 3 == 0:
            store = StateStore(str(tmp_path))
        if n % 10 == 0:
            store.settle()
    assert world.snapshots == 1
    # Two states per bucket, and the runs of both: nothing piles up.
    store.settle()
    names = [p.name for p in files(str(tmp_path))]
    uppers = {name for name in names if name.endswith(".state")}
    assert len(uppers) == 2
    assert sum(name.endswith(".state") for name in names) == 2 * BUCKETS
    assert not [name for name in names if name.endswith(".tmp")]


def test_large_merges_go_to_the_background_and_are_taken_up(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    world, store = World(), StateStore(str(tmp_path))
    taken = 0
    for _ in range(60):
        before = {p.name for p in files(str(tmp_path)) if p.name.startswith("merged-")}
        world.tick(store, random_records(rng, 40, 3000))
        store.settle()
        taken += len({p.name for p in files(str(tmp_path)) if p.name.startswith("merged-")} - before)
    assert taken > 20
    state = store.open("s", 0, World().prepare(store).states[0].shape, world.upper)
    assert state is not None
    assert len(state._runs) <= merge.MAX_RUNS  # pyright: ignore[reportPrivateUsage]


def test_two_attempts_at_once(tmp_path: Path) -> None:
    """Two processes' stores do every tick at the same time, and files vanish under them."""
    rng = np.random.default_rng(3)
    world = World()
    stores = [StateStore(str(tmp_path)), StateStore(str(tmp_path))]
    stop = threading.Event()

    def vandal() -> None:
        chooser = random.Random(4)
        while not stop.wait(0.005):
            found = files(str(tmp_path))
            if found:
                try:
                    os.unlink(chooser.choice(found))
                except OSError:
                    pass

    vandals = threading.Thread(target=vandal)
    vandals.start()
    try:
        for n in range(40):
            records = random_records(rng, 30, 60)
            time = world.upper + 9
            with ThreadPoolExecutor(2) as pool:
                attempts = [pool.submit(world.attempt, store, records, time) for store in stores]
                first, second = (attempt.result() for attempt in attempts)
            assert sorted(map(str, first.to_pylist())) == sorted(map(str, second.to_pylist()))
            world.commit(records, time, first)
            if n % 7 == 0:
                stores[n % 2] = StateStore(str(tmp_path))
    finally:
        stop.set()
        vandals.join()
