"""Filling the state from the collection: hydration, catching up, and collections that are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from upsert_world import SHAPE, World, random_records

from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.state import KeyNotUnique, StateStore, catch_up, fill, hydrate
from tidemill.runs import run

Update = tuple[int | None, str, int, int]


def updates_of(rows: Sequence[Update]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([r[0] for r in rows], pa.int64()),
            "v": pa.array([r[1] for r in rows], pa.string()),
            "n": pa.array([len(r[1]) for r in rows], pa.int64()),
            "mz_timestamp": pa.array([r[2] for r in rows], pa.int64()),
            "mz_diff": pa.array([r[3] for r in rows], pa.int64()),
            "mz_error": pa.nulls(len(rows), pa.string()),
        }
    )


def contents(store: StateStore, upper: int, keys: Sequence[int | None]) -> dict[int | None, str]:
    """What the states say when they are asked for everything: all keys are deleted, and the retractions
    tell."""
    world = World(upper=upper)
    found = world.compute(world.prepare(store).states, [(k, None) for k in keys], upper + 1)[1]
    assert world.snapshots == 0
    return {key: value for key, value, _ in found}


def test_hydrating_adds_up_what_is_not_consolidated(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path))
    tables = [
        updates_of([(1, "a", 1, 1), (2, "b", 1, 1), (None, "n", 1, 1)]),
        updates_of([(1, "a", 2, -1), (1, "c", 2, 1), (2, "b", 3, -1)]),
        updates_of([]),
        updates_of([(3, "d", 4, 1), (3, "d", 4, 2), (3, "d", 5, -2)]),
    ]
    hydrate(store, "s", SHAPE, range(BUCKETS), 6, tables)
    assert contents(StateStore(str(tmp_path)), 6, [None, 1, 2, 3]) == {None: "n", 1: "c", 3: "d"}


def test_only_the_buckets_that_are_asked_for(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path))
    table = updates_of([(k, "x", 1, 1) for k in range(100)])
    states = hydrate(store, "s", SHAPE, [1, 3], 2, [table])
    assert sorted(states) == [1, 3]
    assert store.open("s", 0, SHAPE, 2) is None
    assert store.open("s", 3, SHAPE, 2) is not None
    assert store.open("s", 3, SHAPE, 1) is None, "a later state is no earlier one"
    later = store.open("s", 3, SHAPE, 9)
    assert later is not None and later.upper == 2
    assert store.open("t", 3, SHAPE, 2) is None


def test_large_collections_go_through_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "SPILL_BYTES", 2000)
    monkeypatch.setattr(run, "BATCH_BYTES", 3000)
    rng = np.random.default_rng(5)
    world, store = World(), StateStore(str(tmp_path))
    for _ in range(20):
        world.tick(store, random_records(rng, 100, 900))
    again = StateStore(str(tmp_path / "again"))
    world.prepare(again)
    assert world.snapshots == 2
    assert contents(again, world.upper, [None, *range(900)]) == world.rows
    assert not list(tmp_path.rglob("spill-*"))
    for _ in range(20):
        world.tick(again, random_records(rng, 100, 900))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(7, "a", 1, 1), (7, "b", 2, 1)], "The rows of the key (k = 7) add up to 2."),
        ([(7, "a", 1, 1), (7, "a", 2, 1)], "The rows of the key (k = 7) add up to 2."),
        ([(7, "a", 1, 1), (7, "a", 2, -2)], "The rows of the key (k = 7) add up to -1."),
        ([(None, "a", 1, -1)], "The rows of the key (k = None) add up to -1."),
    ],
)
def test_a_collection_with_other_counts_is_refused(tmp_path: Path, rows: list[Update], told: str) -> None:
    with pytest.raises(KeyNotUnique) as caught:
        hydrate(
            StateStore(str(tmp_path)), "s", SHAPE, range(BUCKETS), 3, [updates_of([(1, "x", 1, 1), *rows])]
        )
    assert caught.value.detail == told
    assert caught.value.sqlstate == "XX001"


def test_catching_up_reads_what_lies_between(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    world, store = World(), StateStore(str(tmp_path))
    world.tick(store, random_records(rng, 200, 100))
    for n in range(30):
        # Ticks elsewhere: other stores have them.
        for m in range(3):
            world.tick(StateStore(str(tmp_path / f"elsewhere{n}{m}")), random_records(rng, 20, 100))
        prepared = world.prepare(store)
        assert (prepared.hits, prepared.behind, prepared.misses) == (0, BUCKETS, 0)
        world.tick(store, random_records(rng, 20, 100))
        world.upper += 4
    assert contents(store, world.upper, [None, *range(100)]) == world.rows


def test_buckets_that_stand_at_different_uppers(tmp_path: Path) -> None:
    store = StateStore(str(tmp_path))
    first = updates_of([(k, "old", 1, 1) for k in range(50)])
    second = updates_of([(k, v, 5, d) for k in range(50) for v, d in (("old", -1), ("new", 1))])
    states = hydrate(store, "s", SHAPE, [0, 1], 2, [first])
    states |= hydrate(store, "s", SHAPE, range(2, BUCKETS), 6, [first, second])
    # Back again: over all of the times nothing changes, but for those who know of the second it does.
    third = updates_of([(k, v, 7, d) for k in range(50) for v, d in (("new", -1), ("old", 1))])
    catch_up("s", states, 8, [second, third])
    for state in states.values():
        assert state.upper == 8
        assert state.commit(8)
    assert contents(StateStore(str(tmp_path)), 8, range(50)) == dict.fromkeys(range(50), "old")


def test_history_that_was_compacted_is_read_whole(tmp_path: Path) -> None:
    world, store = World(), StateStore(str(tmp_path))
    world.tick(store, [(1, "a")])
    kept = world.upper
    world.tick(StateStore(str(tmp_path / "elsewhere")), [(2, "b")])
    world.compact(kept)
    prepared = world.prepare(store)
    assert (prepared.hits, prepared.behind, prepared.misses) == (0, 0, BUCKETS)
    assert contents(store, world.upper, [1, 2]) == {1: "a", 2: "b"}


def test_catching_up_refuses_other_counts(tmp_path: Path) -> None:
    states = hydrate(StateStore(str(tmp_path)), "s", SHAPE, range(BUCKETS), 2, [])
    with pytest.raises(KeyNotUnique):
        catch_up("s", states, 4, [updates_of([(1, "a", 3, 1), (1, "b", 3, 1)])])
