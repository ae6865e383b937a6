"""A shard looks after itself: few parts, a short log, no litter; and the hazards of cleaning up behind
others."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from support.shards import DESC, Model, append, check_contents, check_files, contents, memory_folder, updates
from tidemill import failpoints
from tidemill.errors import DataCorrupted
from tidemill.failpoints import FailpointError
from tidemill.persist import checkpoint, committer, compact, maintain
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.log import entry_path, list_log
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.part import (
    LEAST_ROW_BYTES,
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    Part,
    group_rows,
    part_path,
)
from tidemill.persist.settings import Ages, Settings, ages_of
from tidemill.persist.shard import Shard, ShardExists
from tidemill.persist.state import FANOUT, rank

NOW = Ages(log_keep_seconds=0, removed_keep_seconds=0)


def a(k: int, t: int, diff: int = 1) -> tuple[tuple[int | None, str | None], int, int]:
    return ((k, "x"), t, diff)


def test_a_long_life_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is overwritten every tick, as a busy table is: parts, log and disk stay bounded. Many
    entries came before, more than one in a millisecond."""
    monkeypatch.setattr(committer, "_stamped", committer.wall_ms() + 60_000)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        blobs = open_blobs(folder)
        settings = Settings(checkpoint_every=50, clean_after_seconds=0)
        shard = Shard.create(blobs, "u1", DESC, epoch=1, ages=NOW, settings=settings)
        most, merged, ticks = 0, 0, 800
        for t in range(ticks):
            append(shard, [a(t, t), *([a(t - 1, t, -1)] if t else [])], t + 1)
            shard.downgrade_since(max(0, t - 100))
            if t % 20 == 0:
                merged += shard.maintain().rows_merged
            most = max(most, len(shard.state.parts))
        shard.maintain()
        # At most FANOUT - 1 of each rank are left in peace, and 20 came between two rounds.
        assert most <= 4 * FANOUT + 20
        assert merged <= 6 * 2 * ticks  # an update is rewritten a few times, not with every merge
        assert shard.state.rows < 700  # of 1,600 updates: what is before since has cancelled out
        assert len(list_log(blobs, "u1").entries) <= 3 * 50
        assert len(blobs.list("shards/u1/parts")) == len(shard.parts)
        assert contents(shard, ticks - 1) == {(ticks - 1, "x"): 1}
        assert contents(shard, shard.since) == {(shard.since, "x"): 1}
        again = Shard.open(blobs, "u1", epoch=1, cache=PartCache())
        assert set(again.parts) == set(shard.parts)
        check_files(blobs, "u1")


def test_in_a_hurry_merges_wait_but_not_for_ever(folder: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    monkeypatch.setattr(maintain, "POSTPONED_PARTS", FANOUT + 2)
    for t in range(FANOUT + 1):
        append(shard, [a(t, t)], t + 1)
    assert shard.maintain(hurry=True).compactions == 0
    append(shard, [a(FANOUT + 1, FANOUT + 1)], FANOUT + 2)
    assert shard.maintain(hurry=True).compactions == 1
    assert len(shard.parts) == 1


def test_nothing_due_is_nothing_done(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    for t in range(FANOUT - 1):
        append(shard, [a(t, t)], t + 1)
    before = shard.version
    done = shard.maintain()
    assert (done.compactions, done.checkpointed, done.cleaned, done.swept) == (0, False, 0, 0)
    assert shard.version == before


def test_an_idle_shard_advances_no_log(folder: Blobs) -> None:
    """Its since follows the clock; that alone is nothing to write down."""
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 0), a(2, 0)], 1)
    for t in range(2, 100):
        shard.downgrade_since(t)
        shard.maintain()
    assert shard.version == 1
    assert shard.since == 99


def test_an_idle_shard_is_consolidated_once(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 0), a(1, 1, -1), a(2, 1)], 2)
    for t in range(2, 20):
        shard.downgrade_since(t)
        shard.maintain()
    assert shard.version == 3  # the since, the compaction
    assert [part.rows for part in shard.parts] == [1]
    with shard.snapshot(19, readable=20) as snapshot:
        assert not snapshot.needs_consolidation


def test_an_id_is_not_created_twice(folder: Blobs) -> None:
    """Not even when the log's first entry is long gone."""
    shard = Shard.create(folder, "u1", DESC, epoch=1, ages=NOW)
    for t in range(3):
        append(shard, [a(t, t)], t + 1)
        shard.checkpoint()
    shard.clean()
    assert 0 not in list_log(folder, "u1").entries
    with pytest.raises(ShardExists):
        Shard.create(folder, "u1", DESC, epoch=1)


def test_tiers(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    for t in range(FANOUT):
        append(shard, [a(t, t)], t + 1)
    done = shard.compact()
    assert done is not None
    assert (done.inputs, done.outputs, done.rows_after) == (FANOUT, 1, FANOUT)
    assert [rank(part) for part in shard.parts] == [1]
    assert shard.compact() is None
    # Compaction changes no data: readers of Delta's change feed skip it.
    assert len(contents(shard, 3)) == 4


def test_full_consolidation_when_it_pays(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(k, 0) for k in range(100)], 1)
    append(shard, [a(k, 1, -1) for k in range(10)], 2)
    shard.downgrade_since(1)
    assert shard.compact() is None  # 20 of 110 would go
    append(shard, [a(k, 2, -1) for k in range(10, 20)], 3)
    shard.downgrade_since(2)
    done = shard.compact()
    assert done is not None
    assert (done.rows_before, done.rows_after) == (120, 80)
    assert [(part.min_time, part.retractions) for part in shard.parts] == [(2, 0)]
    with shard.snapshot(2) as snapshot:
        assert not snapshot.needs_consolidation


def test_everything_cancels_out(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 0)], 1)
    append(shard, [a(1, 1, -1)], 2)
    shard.downgrade_since(1)
    done = shard.compact(everything=True)
    assert done is not None
    assert done.outputs == 0
    assert shard.parts == ()
    assert contents(shard, 1) == {}


def test_since_past_upper_keeps_the_times_in_bounds(folder: Blobs) -> None:
    """An idle collection's since may follow its leased frontier: updates move no further than the log's
    upper."""
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 0)], 2)
    append(shard, [a(2, 2)], 3)
    shard.downgrade_since(50)
    shard.compact(everything=True)
    assert [(part.min_time, part.max_time) for part in shard.parts] == [(2, 2)]
    append(shard, [a(3, 3)], 4)
    with shard.snapshot(60, readable=61) as snapshot:
        assert len(snapshot.read()) == 3


def test_large_outputs_are_cut(folder: Blobs) -> None:
    settings = Settings(part_target_bytes=8_000)
    shard = Shard.create(folder, "u1", DESC, epoch=1, settings=settings)
    model = Model()
    for t in range(FANOUT):
        of = [((t * 1000 + k, str(hash((t, k)))), t, 1) for k in range(100)]
        append(shard, of, t + 1)
        model.append(of, t + 1)
    done = shard.compact()
    assert done is not None
    assert done.outputs > 2
    check_contents(shard, model)


def test_ages_are_the_tables_own(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1, ages=Ages(77, 88))
    assert ages_of(shard.state.metadata.configuration) == Ages(77, 88)
    assert Shard.open(folder, "u1", epoch=1).ages == Ages(77, 88)
    assert ages_of(Ages(1, 2, 3).configuration()) == Ages(1, 2, 3)
    with pytest.raises(DataCorrupted):
        ages_of({})


def test_young_entries_and_parts_stay(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    for t in range(6):
        append(shard, [a(t, t)], t + 1)
        shard.checkpoint()
    shard.compact(everything=True)
    assert shard.clean() == 0
    assert shard.sweep(lambda job: True) == 0
    assert len(list_log(folder, "u1").entries) == shard.version + 1


def test_clean_keeps_two_checkpoints(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1, ages=NOW)
    model = Model()
    for t in range(9):
        append(shard, [a(t, t)], t + 1)
        model.append([a(t, t)], t + 1)
        if t % 3 == 2:
            shard.checkpoint()
    shard.clean()
    listing = list_log(blobs, "u1")
    assert sorted(listing.checkpoints) == [6, 9]
    assert sorted(listing.entries) == [6, 7, 8, 9]
    check_contents(Shard.open(blobs, "u1", epoch=1, cache=PartCache()), model)


def test_a_sleeper_does_not_write_into_the_past(folder: Blobs) -> None:
    """The name of its next version is free again, because the log behind it was cleaned: the put alone
    would succeed."""
    shard = Shard.create(folder, "u1", DESC, epoch=1, ages=NOW)
    append(shard, [a(0, 0)], 1)
    sleeper = Shard.open(folder, "u1", epoch=1)
    reader = Shard.open(folder, "u1", epoch=None)
    for t in range(1, 9):
        append(shard, [a(t, t)], t + 1)
        shard.checkpoint()
    assert shard.clean() > 0
    assert not Path(folder.url, entry_path("u1", 2)).exists()
    with pytest.raises(UpperMismatch) as late:
        append(sleeper, [a(99, 1)], 2, lower=1)
    assert late.value.actual == 9
    assert sleeper.version == shard.version
    assert not Path(folder.url, entry_path("u1", 2)).exists()
    append(sleeper, [a(9, 9)], 10)
    assert reader.refresh()
    assert contents(reader, 9) == {(k, "x"): 1 for k in range(10)}


def test_a_sleeper_that_falls_asleep_before_its_put(folder: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even then: the put succeeds, is found to be a ghost, and is taken back."""
    shard = Shard.create(folder, "u1", DESC, epoch=1, ages=NOW)
    append(shard, [a(0, 0)], 1)
    sleeper = Shard.open(folder, "u1", epoch=1)
    real = folder.put_if_absent

    def asleep(path: str, data: bytes) -> None:
        monkeypatch.setattr(folder, "put_if_absent", real)
        for t in range(1, 9):
            append(shard, [a(t, t)], t + 1)
            shard.checkpoint()
        shard.clean()
        real(path, data)

    monkeypatch.setattr(folder, "put_if_absent", asleep)
    with pytest.raises(UpperMismatch) as late:
        append(sleeper, [a(99, 1)], 2, lower=1)
    assert late.value.actual == 9
    assert not Path(folder.url, entry_path("u1", 2)).exists()
    check_files(folder, "u1")


def test_orphans(folder: Blobs) -> None:
    settings = Settings(orphan_grace_seconds=0)
    shard = Shard.create(folder, "u1", DESC, epoch=1, settings=settings)
    append(shard, [a(1, 0)], 1)
    running = shard.write_part(updates([a(2, 1)]), job="running")
    over = shard.write_part(updates([a(3, 1)]), job="over")
    assert shard.sweep(lambda job: job == "over") >= 1  # and its folder, by the next sweep at the latest
    time.sleep(0.05)
    shard.sweep(lambda job: False)
    assert not Path(folder.url, "shards/u1/parts/over").exists()
    assert folder.size(part_path("u1", running))
    assert [i.path for i in folder.list("shards/u1/parts") if over.path in i.path] == []
    # The folder that was tidied away is made again.
    shard.compare_and_append([running, shard.write_part(updates([a(4, 1)]), job="over")], 1, 2)
    assert shard.sweep(lambda job: True) == 0
    assert contents(shard, 1) == {(1, "x"): 1, (2, "x"): 1, (4, "x"): 1}


def test_a_compaction_that_died_is_swept(folder: Blobs) -> None:
    settings = Settings(orphan_grace_seconds=0)
    shard = Shard.create(folder, "u1", DESC, epoch=1, settings=settings)
    append(shard, [a(1, 0)], 1)
    append(shard, [a(2, 1)], 2)
    failpoints.arm(f"{compact.FP_PART_WRITTEN}=error")
    with pytest.raises(FailpointError):
        shard.compact(everything=True)
    left = [i for i in folder.list("shards/u1/parts") if "compact-" in i.path]
    assert len(left) == 1
    # Of the same epoch and another handle: it might still be running.
    other = Shard.open(folder, "u1", epoch=1, settings=settings)
    assert other.sweep(lambda job: False) == 0
    other.fence(2)
    assert other.sweep(lambda job: False) >= 1
    assert [i for i in folder.list("shards/u1/parts") if "compact-" in i.path] == []
    assert contents(other, 1) == {(1, "x"): 1, (2, "x"): 1}


def test_a_sleeper_compacts_what_was_swept_long_ago(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1, ages=Ages(removed_keep_seconds=0), cache=PartCache())
    append(shard, [a(1, 0)], 1)
    append(shard, [a(2, 1)], 2)
    sleeper = Shard.open(folder, "u1", epoch=1, cache=PartCache())
    assert shard.compact(everything=True) is not None
    assert shard.sweep() == 2
    assert sleeper.compact(everything=True) is None  # not an error: it lost a race
    assert contents(sleeper, 1) == {(1, "x"): 1, (2, "x"): 1}


def test_temporaries_are_tidied(folder: Blobs) -> None:
    settings = Settings(orphan_grace_seconds=60)
    shard = Shard.create(folder, "u1", DESC, epoch=1, settings=settings)
    log = Path(folder.url, "shards/u1/_delta_log")
    for name, age in ((".tmp-old", 3600), (".tmp-new", 0)):
        (log / name).write_bytes(b"half")
        os.utime(log / name, (time.time() - age, time.time() - age))
    assert shard.sweep(lambda job: False) == 1
    assert sorted(p.name for p in log.iterdir() if p.name.startswith(".tmp")) == [".tmp-new"]


def test_a_log_that_delta_rs_reads_differently(folder: Blobs) -> None:
    """Every checkpoint is a check by another implementation; when it disagrees, nothing is written or
    cleaned."""
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 0)], 1)
    with shard.changed:
        wrong = checkpoint.expect(shard.state)
    expected = checkpoint.Expected(wrong.version, frozenset(), wrong.txns)
    with pytest.raises(DataCorrupted):
        checkpoint.write_checkpoint(folder, "u1", expected)
    assert list_log(folder, "u1").checkpoints == {}


def test_the_cache_is_bounded() -> None:
    cache = PartCache(max_bytes=50_000)
    for i in range(100):
        cache.put(f"p{i}", updates([a(i, i)]))
    assert cache.bytes <= 50_000
    assert cache.get("p0") is None
    assert cache.get("p99") is not None
    cache.put("large", updates([a(i, i) for i in range(100_000)]))
    assert cache.get("large") is None
    cache.drop("p99")
    assert cache.get("p99") is None


def test_rows_that_resemble_each_other_weigh_more_than_their_bytes(folder: Blobs) -> None:
    """A few bytes each in Parquet, hundreds in memory: what is merged at once is limited all the same."""
    rows = 400
    settings = Settings(compact_max_bytes=FANOUT * rows * 350)
    shard = Shard.create(folder, "u1", DESC, epoch=1, settings=settings)
    for t in range(2 * FANOUT):
        append(shard, [((k, "x" * 300), t, 1) for k in range(rows)], t + 1)
    # 300 bytes of text, and key, time and diff.
    assert 2 * FANOUT * rows * 324 < shard.state.weight < 2 * FANOUT * rows * 350
    assert shard.state.bytes < shard.state.weight / 10
    done = shard.compact()
    assert done is not None and done.inputs == FANOUT
    assert shard.compact_large(lambda plan: pytest.fail("it was merged already")) is None


def test_parts_that_do_not_say_what_they_take_in_memory_are_taken_for_more_than_their_bytes() -> None:
    """Those of an earlier version."""
    part = Part("parts/j/p.parquet", 1_000, 2_000, 5, 5, 1, 1, 0, 0, 0)
    assert part.weight == 1_000 * LEAST_ROW_BYTES
    assert replace(part, bytes=100_000).weight == 100_000
    assert replace(part, memory=7).weight == 7


def test_wide_rows_make_small_row_groups() -> None:
    assert group_rows(10_000_000, 10_000_000 * 40) == ROW_GROUP_ROWS
    assert group_rows(1_000, 1_000 * ROW_GROUP_BYTES // 10) == 10
    assert group_rows(3, 3 * ROW_GROUP_BYTES * 2) == 1
