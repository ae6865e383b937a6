"""A shard's promises one by one, on a folder and on S3."""

from __future__ import annotations

import pickle
import threading

import pyarrow as pa
import pytest

from support.shards import (
    DESC,
    Model,
    append,
    check_contents,
    check_files,
    check_listen,
    contents,
    multiset,
    timed,
    updates,
)
from tidemill.errors import Internal
from tidemill.persist.blob import BlobExists, BlobMissing, Blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.log import ShardMissing
from tidemill.persist.outcome import Fenced, UpperMismatch
from tidemill.persist.part import read_part, write_part
from tidemill.persist.settings import Ages
from tidemill.persist.shard import Shard, ShardExists
from tidemill.persist.snapshot import InvalidAsOf, NotYetReadable
from tidemill.types.model import INT4, TIMESTAMP, Column, RelationDesc


def a(k: int, time: int, diff: int = 1) -> tuple[tuple[int | None, str | None], int, int]:
    return ((k, "x"), time, diff)


def test_blobs(blobs: Blobs) -> None:
    blobs.put_if_absent("d/1", b"one")
    with pytest.raises(BlobExists):
        blobs.put_if_absent("d/1", b"two")
    blobs.put("d/2", b"22")
    assert blobs.get("d/1") == b"one"
    assert blobs.get_many(["d/2", "d/1"]) == [b"22", b"one"]
    assert [(i.path, i.size) for i in blobs.list("d")] == [("d/1", 3), ("d/2", 2)]
    assert blobs.list("nowhere") == []
    again: Blobs = pickle.loads(pickle.dumps(blobs))
    assert again.size("d/1") == 3
    with pytest.raises(BlobMissing):
        blobs.get("d/3")
    with pytest.raises(BlobMissing):
        blobs.size("d/3")
    blobs.delete(["d/1", "d/not there"])
    assert [i.path for i in blobs.list("d")] == ["d/2"]
    blobs.delete_prefix("d")
    blobs.delete_prefix("d")
    assert blobs.list("d") == []


def test_create_open(blobs: Blobs) -> None:
    with pytest.raises(ShardMissing):
        Shard.open(blobs, "u1", epoch=1)
    made = Shard.create(blobs, "u1", DESC, epoch=3, since=5, upper=7, properties={"kind": "table"})
    with pytest.raises(ShardExists):
        Shard.create(blobs, "u1", DESC, epoch=3)
    opened = Shard.open(blobs, "u1", epoch=3)
    for shard in (made, opened):
        assert (shard.id, shard.desc, shard.epoch, shard.version) == ("u1", DESC, 3, 0)
        assert (shard.since, shard.upper, shard.parts) == (5, 7, ())
        assert shard.properties == {"kind": "table"}
    opened.drop()
    with pytest.raises(ShardMissing):
        Shard.open(blobs, "u1", epoch=3)


def test_append_and_read(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1)
    model = Model()
    for of, upper in (
        ([a(1, 0), a(2, 0), a(2, 1)], 3),
        ([], 5),
        ([a(1, 5, -1), a(3, 6, 2), ((None, None), 7, 1)], 8),
    ):
        append(shard, of, upper)
        model.append(of, upper)
    check_contents(shard, model)
    check_listen(shard, model, 0)
    check_listen(shard, model, 6)
    again = Shard.open(blobs, "u1", epoch=1, cache=PartCache())
    check_contents(again, model)
    assert again.parts == shard.parts
    check_files(blobs, "u1")


def test_projection(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1)
    append(shard, [((1, "a"), 0, 1), ((2, "a"), 0, 1), ((2, "b"), 1, -1)], 2)
    with shard.snapshot(1) as snapshot:
        table = snapshot.read(["v"])
    assert table.schema.names == ["v", "mz_diff", "mz_error"]
    found = {row["v"]: row["mz_diff"] for row in table.to_pylist()}
    assert found == {"a": 2, "b": -1}


def test_errors_are_kept_apart(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1)
    table = updates([((None, None), 0, 1), ((None, None), 0, 1)])
    table = table.append_column("mz_error", pa.array([None, "bad record"], pa.string()))
    shard.compare_and_append([shard.write_part(table, job="j")], 0, 1)
    with Shard.open(blobs, "u1", epoch=1, cache=PartCache()).snapshot(0) as snapshot:
        assert snapshot.has_errors
        assert snapshot.needs_consolidation
        rows = snapshot.read().to_pylist()
    assert sorted(str(row["mz_error"]) for row in rows) == ["None", "bad record"]
    assert [row["mz_diff"] for row in rows] == [1, 1]


def test_reads_outside_the_bounds(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 3)], 10)
    shard.downgrade_since(5)
    with pytest.raises(InvalidAsOf) as early:
        shard.snapshot(4)
    assert early.value.primary == "could not find a valid timestamp for the query"
    assert early.value.sqlstate == "22000"
    assert early.value.detail is not None
    assert "5" in early.value.detail
    assert "10" in early.value.detail
    with pytest.raises(NotYetReadable):
        shard.snapshot(10)
    with shard.snapshot(11, readable=12) as idle:
        assert multiset(idle.read()) == {(1, "x"): 1}
    with pytest.raises(NotYetReadable):
        shard.snapshot(12, readable=12)
    with pytest.raises(InvalidAsOf):
        shard.hold(4)
    # Updates before since may have moved to since: a listen from there could tell them twice.
    with pytest.raises(InvalidAsOf):
        shard.listen(5)
    shard.listen(6).close()


def test_what_an_append_refuses(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    part = shard.write_part(updates([a(1, 5)]), job="j")
    for lower, upper in ((0, 5), (6, 7), (0, 0), (3, 2)):
        with pytest.raises(Internal):
            shard.compare_and_append([part], lower, upper)
    with pytest.raises(Internal):
        shard.write_part(updates([]), job="j")
    with pytest.raises(Internal):
        shard.write_part(updates([a(1, 0, 0)]), job="j")
    with pytest.raises(Internal):
        shard.write_part(updates([a(1, 0)]).drop_columns(["v"]), job="j")
    with pytest.raises(Internal):
        shard.write_part(updates([a(1, 0)]), job="../up")
    assert shard.version == 0
    shard.compare_and_append([part], 0, 6)
    with pytest.raises(Internal):
        shard.delete_part(part)


def test_closing(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 2)], 3)
    shard.compare_and_append([shard.write_part(updates([a(2, 9)]), job="j")], 3, None)
    again = Shard.open(folder, "u1", epoch=1)
    assert again.upper is None
    assert contents(again, 10**15) == {(1, "x"): 1, (2, "x"): 1}
    with pytest.raises(UpperMismatch) as closed:
        again.compare_and_append([], 3, 4)
    assert (closed.value.expected, closed.value.actual) == (3, None)
    batches = list(again.listen(0))
    assert [frontier for _, frontier in batches] == [None]
    assert sum(len(table) for table, _ in batches) == 2


def test_classification(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    append(shard, [a(1, 0), a(1, 0)], 1)
    append(shard, [a(2, 1), a(3, 4)], 5)
    with shard.snapshot(2) as snapshot:
        assert not snapshot.needs_consolidation
        assert multiset(snapshot.read()) == {(1, "x"): 2, (2, "x"): 1}
    append(shard, [a(1, 5, -1)], 6)
    with shard.snapshot(4) as snapshot:
        assert not snapshot.needs_consolidation
    with shard.snapshot(5) as snapshot:
        assert [part.all_inserts for part in snapshot.parts] == [True, True, False]
        assert snapshot.needs_consolidation
        assert multiset(snapshot.read()) == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}


# The conflict matrix: two handles on one shard, each pair of calls.


@pytest.fixture
def two(blobs: Blobs) -> tuple[Shard, Shard]:
    first = Shard.create(blobs, "u1", DESC, epoch=1)
    append(first, [a(1, 0)], 1)
    append(first, [a(2, 1)], 2)
    return first, Shard.open(blobs, "u1", epoch=1)


def test_append_append(two: tuple[Shard, Shard]) -> None:
    first, second = two
    append(first, [a(3, 2)], 3)
    with pytest.raises(UpperMismatch) as lost:
        append(second, [a(4, 2)], 3, lower=2)
    assert (lost.value.expected, lost.value.actual) == (2, 3)
    assert contents(second, 2) == contents(first, 2) == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}
    append(second, [a(4, 3)], 4)
    assert first.refresh()
    assert contents(first, 3)[(4, "x")] == 1


def test_append_compact(two: tuple[Shard, Shard]) -> None:
    first, second = two
    assert second.compact(everything=True) is not None
    append(first, [a(3, 2)], 3)  # goes on behind the compaction: the upper is what it was
    assert contents(first, 2) == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}
    assert len(first.parts) == 2


def test_compact_append(two: tuple[Shard, Shard]) -> None:
    first, second = two
    append(first, [a(3, 2)], 3)
    assert second.compact(everything=True) is not None
    first.refresh()
    assert contents(first, 2) == contents(second, 2) == {(1, "x"): 1, (2, "x"): 1, (3, "x"): 1}


def test_compact_compact(two: tuple[Shard, Shard]) -> None:
    first, second = two
    assert first.compact(everything=True) is not None
    assert second.compact(everything=True) is None  # its inputs were no longer live
    second.refresh()
    assert contents(first, 1) == contents(second, 1) == {(1, "x"): 1, (2, "x"): 1}
    assert len(second.parts) == 1


def test_downgrade_append(two: tuple[Shard, Shard]) -> None:
    first, second = two
    first.downgrade_since(1, record=True)
    append(second, [a(3, 2)], 3)
    assert second.since == 1
    with pytest.raises(InvalidAsOf):
        second.snapshot(0)


def test_fence_everything(two: tuple[Shard, Shard]) -> None:
    first, second = two
    second.fence(2, upper=10)
    assert second.upper == 10
    for attempt in (
        lambda: append(first, [a(9, 10)], 11, lower=10),
        lambda: first.downgrade_since(1, record=True),
        lambda: first.compact(everything=True),
        lambda: first.fence(1),
        lambda: first.evolve(RelationDesc((*DESC.columns, Column("n", INT4)))),
    ):
        with pytest.raises(Fenced) as fenced:
            attempt()
        assert (fenced.value.ours, fenced.value.current) == (1, 2)
    with pytest.raises(Fenced):
        Shard.open(first.blobs, "u1", epoch=1)
    append(second, [a(3, 10)], 11)
    # The same fence again changes nothing, a lower upper neither.
    version = second.version
    second.fence(2, upper=4)
    assert second.version == version
    assert Shard.open(first.blobs, "u1", epoch=None).epoch == 2


def test_an_epoch_has_one_owner(two: tuple[Shard, Shard]) -> None:
    """Two servers that look at the same time see the same last epoch."""
    first, second = two
    first.fence(2, new=True)
    with pytest.raises(Fenced) as fenced:
        second.fence(2, new=True)
    assert (fenced.value.ours, fenced.value.current) == (2, 2)
    second.fence(3, new=True)


def test_a_handle_must_fence_first(folder: Blobs) -> None:
    Shard.create(folder, "u1", DESC, epoch=1)
    later = Shard.open(folder, "u1", epoch=2)
    with pytest.raises(Internal):
        append(later, [a(1, 0)], 1)
    later.fence(2)
    append(later, [a(1, 0)], 1)
    reader = Shard.open(folder, "u1", epoch=None)
    with pytest.raises(Internal):
        append(reader, [a(1, 1)], 2)


def test_evolve(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1)
    append(shard, [a(1, 0)], 1)
    wider = RelationDesc((*DESC.columns, Column("Größe, m", INT4), Column("at", TIMESTAMP)))
    old = shard.snapshot(0)
    shard.evolve(wider)
    assert old.read().schema.names == ["k", "v", "mz_diff", "mz_error"]
    old.close()
    table = updates([a(2, 1)])
    table = table.add_column(2, shard.schema.field(2), pa.array([7], pa.int32()))
    table = table.add_column(3, shard.schema.field(3), pa.array([0], pa.timestamp("us")))
    shard.compare_and_append([shard.write_part(table, job="j")], 1, 2)
    again = Shard.open(blobs, "u1", epoch=1, cache=PartCache())
    assert again.desc == wider
    with again.snapshot(1) as snapshot:
        rows = sorted(snapshot.read().to_pylist(), key=lambda row: row["k"])
    name = again.schema.names[2]
    assert [row[name] for row in rows] == [None, 7]
    assert again.compact(everything=True) is not None
    with again.snapshot(1) as snapshot:
        assert sorted(row[name] or 0 for row in snapshot.read().to_pylist()) == [0, 7]
    with pytest.raises(Internal):
        again.evolve(DESC)
    again.checkpoint()
    assert Shard.open(blobs, "u1", epoch=1).desc == wider


def test_holds_keep_history(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    model = Model()
    for t in range(6):
        append(shard, [a(t, t), *([a(t - 1, t, -1)] if t else [])], t + 1)
        model.append([a(t, t), *([a(t - 1, t, -1)] if t else [])], t + 1)
    with shard.hold(2):
        assert shard.downgrade_since(4) == 2
        shard.compact(everything=True)
        check_contents(shard, model)
        assert shard.since == 2
    # Released: the next commit takes the since that was wanted.
    append(shard, [], 7)
    model.append([], 7)
    assert shard.since == 4
    assert Shard.open(folder, "u1", epoch=1).since == 4
    shard.compact(everything=True)
    check_contents(shard, model)
    assert {part.min_time for part in shard.parts} == {4}


def test_a_snapshot_outlives_compaction_and_sweep(blobs: Blobs) -> None:
    shard = Shard.create(blobs, "u1", DESC, epoch=1, ages=Ages(0, 0), cache=PartCache(0))
    append(shard, [a(1, 0)], 1)
    append(shard, [a(1, 1, -1), a(2, 1)], 2)
    before = shard.snapshot(0)
    shard.downgrade_since(1)
    assert shard.since == 0
    shard.compact(everything=True)
    assert shard.sweep() == 0
    assert multiset(before.read()) == {(1, "x"): 1}
    before.close()
    with pytest.raises(Internal):
        before.read()
    assert shard.sweep() == 2
    assert contents(shard, 1) == {(2, "x"): 1}
    check_files(blobs, "u1")


def test_listen_wakes(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    listen = shard.listen(0)
    assert listen.next(0.01) is None
    writer = threading.Timer(0.05, lambda: append(shard, [a(1, 0), a(1, 0, -1), a(2, 0), a(2, 1)], 2))
    writer.start()
    batch = listen.next(10)
    writer.join()
    assert batch is not None
    table, frontier = batch
    assert frontier == 2
    assert timed(table) == {((2, "x"), 0): 1, ((2, "x"), 1): 1}
    # Another handle's commits show after a refresh.
    append(Shard.open(folder, "u1", epoch=1), [a(3, 2)], 3)
    assert listen.next(0.01) is None
    shard.refresh()
    assert listen.next(0) is not None
    # The listen holds since just before its frontier.
    assert shard.downgrade_since(100) == 2
    listen.close()
    assert shard.downgrade_since(2) == 100


def test_listen_in_bounded_batches(folder: Blobs) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    model = Model()
    for t in range(20):
        append(shard, [a(t, t)], t + 1)
        model.append([a(t, t)], t + 1)
    listen = shard.listen(0)
    listen.batch_bytes = 3 * shard.parts[0].bytes
    frontiers: list[int | None] = []
    while (batch := listen.next(0)) is not None:
        frontiers.append(batch[1])
        assert len(batch[0]) <= 3
    assert frontiers[-1] == 20
    assert len(frontiers) >= 6


def test_parts_can_be_written_elsewhere(blobs: Blobs) -> None:
    """As a Spark task does: with picklable values only."""
    shard = Shard.create(blobs, "u1", DESC, epoch=1)
    store, desc = pickle.loads(pickle.dumps((blobs, DESC)))
    part = pickle.loads(pickle.dumps(write_part(store, "u1", desc, updates([a(1, 0), a(2, 1)]), "job-7")))
    assert part.job == "job-7"
    assert (part.rows, part.min_time, part.max_time, part.min_diff, part.max_diff) == (2, 0, 1, 1, 1)
    assert shard.parts == ()
    shard.compare_and_append([part], 0, 2)
    assert len(read_part(blobs, "u1", part, DESC, ["v"], (1, None))) == 1
    assert contents(shard, 1) == {(1, "x"): 1, (2, "x"): 1}


def test_folders(blobs: Blobs) -> None:
    for shard_id in ("u2", "u10", "u1"):
        Shard.create(blobs, shard_id, DESC, epoch=1)
    assert blobs.folders("shards") == ["u1", "u10", "u2"]
    assert blobs.folders("shards/u1") == ["_delta_log"]
