"""What is told of a snapshot that is read, and of the lag behind the server's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from postgres.source_world import SourceWorld
from support.upstream_postgres import UpstreamDatabase
from tidemill.sources.contract import SnapshotProgress
from tidemill.sources.offsets import Offsets
from tidemill.sources.postgres import snapshot
from tidemill.sources.postgres.lag import MOST_LOOKS, LogClock
from tidemill.sources.postgres.snapshot import SnapshotPlan, SnapshotRelation
from tidemill.sources.postgres.snapshot_progress import note_range, progress


def relation(output: int, ranges: int, pages: int) -> SnapshotRelation:
    return SnapshotRelation(output, "s", f"t{output}", output, ranges, 10, pages)


def test_ranges_that_were_read_are_counted_once(tmp_path: Path) -> None:
    # An empty table, one of three ranges, and one that had grown since it was measured.
    plan = SnapshotPlan("1-2", (relation(0, 1, 0), relation(1, 3, 25), relation(2, 1, 15)), 40 * 8192, 1000)
    assert plan.range_bytes().tolist() == [n * 8192 for n in (0, 10, 10, 5, 15)]
    folder = str(tmp_path)
    assert progress(folder, plan) == SnapshotProgress(1000, 0, 40 * 8192, 0)
    for number, rows in ((0, 0), (2, 100), (2, 100), (4, 300)):
        note_range(folder, plan, number, rows)
    assert progress(folder, plan) == SnapshotProgress(1000, 400, 40 * 8192, 25 * 8192)
    note_range(folder, plan, 1, 700)
    # More rows than the server thought: it is not known how many.
    assert progress(folder, plan) == SnapshotProgress(None, 1100, 40 * 8192, 35 * 8192)
    # Another snapshot begins anew; a task elsewhere, without the folder, goes on.
    assert progress(folder, SnapshotPlan("other", plan.relations, 40 * 8192, 1000)).rows_read == 0
    note_range(f"{folder}/elsewhere", plan, 3, 1)


def test_the_lag_is_since_the_first_look_at_a_longer_log() -> None:
    clock = LogClock()
    assert clock.seconds_since(0, 10.0) is None
    for end, now in ((100, 1.0), (100, 2.0), (200, 3.0), (150, 4.0), (300, 5.0)):
        clock.look(end, now)
    assert [clock.seconds_since(at, 10.0) for at in (50, 99, 100, 199, 200, 299)] == [9, 9, 7, 7, 5, 5]
    assert clock.seconds_since(300, 10.0) == clock.seconds_since(400, 10.0) == 0.0
    for n in range(3 * MOST_LOOKS):
        clock.look(1000 + n, 10.0 + n)
    # Not exact any more for what is long ago, as some looks were forgotten.
    assert -64 <= (clock.seconds_since(1000 + MOST_LOOKS, 1e6) or 0) - (1e6 - 11 - MOST_LOOKS) <= 0


@pytest.mark.server
def test_a_source_tells_how_far_it_is(upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "RANGE_PAGES", 20)
    upstream.run(
        "CREATE TABLE t AS SELECT i AS id, repeat('x', 100) AS t FROM generate_series(1, 5000) i",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ANALYZE t",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    world = SourceWorld(upstream, "t")
    try:
        assert world.source.snapshot_progress() is None
        lower, upper = world.bind()
        # One piece of several, as one of several tasks.
        reader, pieces = world.retry(lambda: world.source.plan(lower, upper, 2, frozenset({0})))
        assert len(pieces) > 3
        assert sum(batch.records for batch in reader.read(pieces[0])) > 100
        some = world.source.snapshot_progress()
        assert some is not None and some.rows_known == 5000 and some.bytes_known > 500_000
        assert 100 < some.rows_read < 5000 and 0 < some.bytes_read < some.bytes_known
        world.keep(lower, upper)
        done = world.source.snapshot_progress()
        assert done == SnapshotProgress(5000, 5000, some.bytes_known, some.bytes_known)

        upstream.run("INSERT INTO t SELECT i, 'y' FROM generate_series(1, 1000) i")
        _, after = world.bind()
        behind, none = world.source.lag(upper), world.source.lag(after)
        assert behind is not None and (behind.bytes or 0) > 50_000 and (behind.seconds or 0) > 0
        assert none is not None and (none.bytes or 0) < (behind.bytes or 0)
        # A position that nothing has led to is reported at once to a statement that waits for it.
        upstream.run("CREATE TABLE other ()")
        now = world.now()
        world.source.wanted(Offsets.at(now))
        assert world.bind(now)[1][None] >= now
    finally:
        world.close()
