"""Compaction of what does not fit in memory, without Spark: what is planned, and that contents stay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from random import Random
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.large_shards import SMALL, carry_here, grow
from support.shards import DESC, Model, append, check_contents, check_files, check_listen, memory_folder
from tidemill.ingest import compact_task
from tidemill.ingest.compaction import CompactionCounts, SparkCompactor
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.compact import Compacted, settled_parts
from tidemill.persist.large_compaction import LargePlan
from tidemill.persist.outcome import Fenced, InputsReplaced
from tidemill.persist.part import Part
from tidemill.persist.settings import Settings
from tidemill.persist.shard import Shard
from tidemill.persist.state import FANOUT
from tidemill.query.spark import SparkHost


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> object:
    """So that what belongs together comes in several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact_task, "PIECE_BYTES", 5000)
        yield


@pytest.fixture
def folder() -> object:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        yield folder


def new(folder: str, limits: Settings = SMALL) -> Shard:
    return Shard.create(open_blobs(folder), "u1", DESC, epoch=1, settings=limits, cache=PartCache())


# Appends of (key, diff) each: keys repeat, so that updates meet across parts, and rows may go below zero.
LIVES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([1, 1, -1])), min_size=1, max_size=60),
    min_size=4,
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(life=LIVES, kept=st.integers(0, 6), target=st.sampled_from([1500, 3000, 10_000]))
def test_contents_at_every_time_stay(life: list[list[tuple[int, int]]], kept: int, target: int) -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        shard = new(folder, Settings(compact_max_bytes=2000, part_target_bytes=target, compact_min_gain=0.0))
        model = Model()
        for time, keys in enumerate(life):
            of = [((key, f"v{key % 3}"), time, diff) for key, diff in keys]
            append(shard, of, time + 1)
            model.append(of, time + 1)
        shard.downgrade_since(max(0, len(life) - 1 - kept))
        before = sum(part.rows for part in shard.parts)
        done = shard.compact_large(carry_here(shard))
        if done is not None:
            assert sum(part.rows for part in shard.parts) == before - done.rows_before + done.rows_after
        check_contents(shard, model)
        check_listen(shard, model, shard.since + 1)
        check_files(shard.blobs, "u1")
        again = Shard.open(shard.blobs, "u1", epoch=1, cache=PartCache())
        check_contents(again, model)


def test_a_full_consolidation_leaves_what_is_there_in_parts_of_the_right_size(folder: str) -> None:
    shard, model = new(folder), Model()
    grow(shard, model, 40)
    plans: list[LargePlan] = []
    carry = carry_here(shard)

    def seen(plan: LargePlan) -> tuple[Part, ...]:
        plans.append(plan)
        return carry(plan)

    done = shard.compact_large(seen)
    assert done is not None
    (plan,) = plans
    assert len(plan.groups) == 1
    assert sum(part.bytes for part in plan.plan.inputs) > SMALL.compact_max_bytes
    # Every key has one row, whatever it was before.
    assert done.rows_after == sum(model.at(shard.since).values())
    assert done.rows_after < done.rows_before / 2
    live = [part for part in shard.parts if part.max_time <= shard.since]
    assert 1 < len(live) == done.outputs
    # Parquet's own bytes weigh much in parts so small.
    assert all(part.bytes < 2 * SMALL.part_target_bytes and part.all_inserts for part in live)
    check_contents(shard, model)
    # Nothing is left to gain.
    assert settled_parts(shard.state, shard.since, SMALL) == ()


def test_large_parts_of_one_rank_become_fewer_without_a_shuffle(folder: str) -> None:
    """Insertions only: a consolidation would gain nothing, but sixteen parts of one rank are too many."""
    shard, model = new(folder), Model()
    random = Random(1)
    for time in range(FANOUT):
        of = [((1000 * time + n, random.randbytes(8).hex()), time, 1) for n in range(60)]
        append(shard, of, time + 1)
        model.append(of, time + 1)
    shard.downgrade_since(8)
    assert shard.compact() is None, "it does not fit in memory"
    carry = carry_here(shard)

    def seen(plan: LargePlan) -> tuple[Part, ...]:
        assert len(plan.groups) > 1
        assert all(len(group) > 1 for group in plan.groups)
        assert all(sum(p.bytes for p in group) <= SMALL.part_target_bytes for group in plan.groups)
        return carry(plan)

    done = shard.compact_large(seen)
    assert done is not None
    assert done.outputs < done.inputs
    check_contents(shard, model)
    # They are of a good size now.
    assert shard.compact_large(carry) is None


def test_what_fits_in_memory_is_not_for_spark(folder: str) -> None:
    shard, model = new(folder, Settings()), Model()
    grow(shard, model, 40)
    assert shard.compact_large(lambda plan: pytest.fail("nothing to carry")) is None
    assert shard.compact() is not None


def test_everything_goes_on_meanwhile(folder: str) -> None:
    """Appends, small merges, since and a sweep beside a large compaction; it takes only what it was planned
    for."""
    shard, model = new(folder), Model()
    grow(shard, model, 40)
    carry = carry_here(shard)
    inner: list[Compacted | None] = []

    def busy(plan: LargePlan) -> tuple[Part, ...]:
        parts = carry(plan)
        mine = {part.path for part in plan.plan.inputs}
        version = shard.version
        for time in range(model.upper, model.upper + 2 * FANOUT):
            of = [((5000 + time, "new"), time, 1)]
            append(shard, of, time + 1)
            model.append(of, time + 1)
        inner.append(shard.compact())
        assert shard.compact_large(carry) is None, "one at a time"
        shard.downgrade_since(plan.plan.since + 3)
        assert shard.since == plan.plan.since + 3
        shard.maintain(lambda job: False)
        assert shard.version > version
        assert mine <= {part.path for part in shard.parts}
        return parts

    done = shard.compact_large(busy)
    assert done is not None
    (small,) = inner
    assert small is not None
    check_contents(shard, model)
    check_files(shard.blobs, "u1")


def test_the_second_of_two_compactions_loses_and_leaves_nothing(folder: str) -> None:
    first, model = new(folder), Model()
    grow(first, model, 40)
    second = Shard.open(first.blobs, "u1", epoch=1, settings=SMALL, cache=PartCache())
    second.downgrade_since(first.since)
    written: list[Part] = []

    def late(plan: LargePlan) -> tuple[Part, ...]:
        written.extend(carry_here(second)(plan))
        assert first.compact_large(carry_here(first)) is not None
        return tuple(written)

    with pytest.raises(InputsReplaced):
        second.compact_large(late)
    assert written
    check_contents(first, model)
    second.refresh()
    check_contents(second, model)
    names = {info.path.rsplit("/", 1)[1] for info in first.blobs.list("shards/u1/parts")}
    assert not names & {part.path.rsplit("/", 1)[1] for part in written}


def test_a_fenced_compaction_changes_nothing(folder: str) -> None:
    first, model = new(folder), Model()
    grow(first, model, 40)
    other = Shard.open(first.blobs, "u1", epoch=2, settings=SMALL, cache=PartCache())

    def late(plan: LargePlan) -> tuple[Part, ...]:
        parts = carry_here(first)(plan)
        other.fence(2)
        return parts

    with pytest.raises(Fenced):
        first.compact_large(late)
    other.refresh()
    assert {info.path.removeprefix("shards/u1/") for info in other.blobs.list("shards/u1/parts")} >= {
        part.path for part in other.parts
    }
    check_contents(other, model)


def test_a_carrier_that_fails_may_try_again(folder: str) -> None:
    shard, model = new(folder), Model()
    grow(shard, model, 40)

    def fails(plan: LargePlan) -> tuple[Part, ...]:
        raise ConnectionError("Spark is gone")

    before = shard.parts
    with pytest.raises(ConnectionError):
        shard.compact_large(fails)
    assert shard.parts == before
    assert shard.compact_large(carry_here(shard)) is not None
    check_contents(shard, model)


class NoSpark:
    """A host that is still starting."""

    master = "local[2]"
    ready = False


class Home:
    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def open_shards(self) -> list[Shard]:
        return [self.shard]

    def begin_job(self) -> str:
        pytest.fail("nothing is to begin")

    def end_job(self, job: str) -> None:
        pytest.fail(f"{job} was never begun")


def test_without_spark_nothing_begins(folder: str) -> None:
    shard, model = new(folder), Model()
    grow(shard, model, 40)
    host = NoSpark()
    compactor = SparkCompactor(Home(shard), cast(SparkHost, host))
    compactor.look()
    compactor.stop()
    # Nor after the stop.
    host.ready = True
    compactor.look()
    assert not compactor.running
    assert compactor.counts == CompactionCounts()
    check_contents(shard, model)


def test_what_is_in_a_hurry_waits(folder: str) -> None:
    shard = new(folder)
    grow(shard, Model(), 40)
    host = NoSpark()
    host.ready = True
    compactor = SparkCompactor(Home(shard), cast(SparkHost, host))
    compactor.look({shard.id})
    compactor.stop()
    assert compactor.counts == CompactionCounts()


Bug = Callable[[pytest.MonkeyPatch], None]


def _cut_anyhow(patch: pytest.MonkeyPatch) -> None:
    """Rows that are equal do not meet: cut by something else than the row."""
    random = np.random.default_rng(1)
    patch.setattr(compact_task, "row_hash", lambda table, _: random.integers(-(2**63), 2**63, len(table)))


def _a_slice_lost(patch: pytest.MonkeyPatch) -> None:
    real = compact_task.cut
    patch.setattr(compact_task, "cut", lambda *of: list(real(*of))[1:])


def _a_piece_twice(patch: pytest.MonkeyPatch) -> None:
    real = compact_task.shares
    patch.setattr(compact_task, "shares", lambda parts: [*real(parts), real(parts)[0]])


def _moved_too_far(patch: pytest.MonkeyPatch) -> None:
    real = compact_task.merge
    patch.setattr(compact_task, "merge", lambda tables, desc, since, **_: real(tables, desc, since + 1))


@pytest.mark.parametrize("bug", [_cut_anyhow, _a_slice_lost, _a_piece_twice, _moved_too_far])
def test_planted_bugs_are_caught(folder: str, bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, model = new(folder), Model()
    grow(shard, model, 40)
    bug(monkeypatch)
    done = shard.compact_large(carry_here(shard))
    assert done is not None
    if bug is _cut_anyhow:
        # Right at every time all the same, but nothing was gained.
        with pytest.raises(AssertionError):
            _check_gain(shard, model)
    else:
        with pytest.raises(AssertionError):
            check_contents(shard, model)


def _check_gain(shard: Shard, model: Model) -> None:
    settled = sum(part.rows for part in shard.parts if part.max_time <= shard.since)
    assert settled == sum(model.at(shard.since).values())
