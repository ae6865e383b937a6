"""The snapshot of a real server's tables: each row once, however it is read, as the snapshot has it."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest

from support.upstream_postgres import UpstreamDatabase
from tidemill.sources.contract import MAX_BATCH_ROWS
from tidemill.sources.postgres import snapshot
from tidemill.sources.postgres.connect import connect
from tidemill.sources.postgres.definition import ReplicatedTable
from tidemill.sources.postgres.describe import look, replicated
from tidemill.sources.postgres.snapshot import SnapshotGone, SnapshotPlan, plan_snapshot

pytestmark = pytest.mark.server

Found = Counter[tuple[object, ...]]


def described(upstream: UpstreamDatabase, *names: str) -> list[ReplicatedTable]:
    upstream.run("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)")
    found = look(upstream.options, "p")
    return [replicated(found, t) for name in names for t in found.tables if t.table == name]


@contextmanager
def exported(upstream: UpstreamDatabase, tables: Sequence[ReplicatedTable]) -> Generator[SnapshotPlan]:
    """As the slot exports one, without a slot."""
    with upstream.session() as holder, connect(upstream.options) as sql:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        ((name,),) = holder.execute("SELECT pg_export_snapshot()").fetchall()
        yield plan_snapshot(sql, name, list(enumerate(tables)))


def read(
    upstream: UpstreamDatabase, plan: SnapshotPlan, tables: Sequence[ReplicatedTable], *ranges: range
) -> dict[int, Found]:
    found: dict[int, Found] = {i: Counter() for i in range(len(tables))}
    for part in ranges or [range(plan.count)]:
        for batch in plan.read(upstream.options, tables, part.start, part.stop):
            assert batch.rows.num_rows <= MAX_BATCH_ROWS
            assert set(batch.rows.column("mz_diff").to_pylist()) <= {1}
            columns = [batch.rows.column(i).to_pylist() for i in range(len(tables[batch.output].columns))]
            found[batch.output].update(zip(*columns, strict=True))
    return found


def test_any_ranges_together_are_the_table(
    upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RANGE_PAGES", 3)
    monkeypatch.setattr(snapshot, "BATCH_BYTES", 10_000)
    upstream.run(
        """CREATE TABLE t AS SELECT i AS a, CASE WHEN i % 3 = 0 THEN NULL WHEN i % 3 = 1 THEN '' ELSE
        repeat(chr(10) || '",', i % 50) END AS b FROM generate_series(1, 5000) i""",
        "CREATE TABLE other (x text)",
        "INSERT INTO other VALUES (NULL), (''), ('a'), (NULL)",
        "CREATE TABLE empty (a int)",
        "CREATE TABLE parts (a int, b text) PARTITION BY LIST (a)",
        "CREATE TABLE one PARTITION OF parts FOR VALUES IN (1)",
        # Its columns are in another order.
        "CREATE TABLE two (b text, dropped int, a int)",
        "ALTER TABLE two DROP dropped",
        "ALTER TABLE parts ATTACH PARTITION two FOR VALUES IN (2)",
        "INSERT INTO parts SELECT 1 + i % 2, i::text FROM generate_series(1, 1000) i",
        *(f"ALTER TABLE {n} REPLICA IDENTITY FULL" for n in ("t", "other", "empty", "one", "two")),
    )
    tables = described(upstream, "t", "other", "empty", "parts")
    wanted = {i: Counter(upstream.query(f"SELECT * FROM {t.table}")) for i, t in enumerate(tables)}
    with exported(upstream, tables) as plan:
        # What is committed afterwards is not in it.
        upstream.run("DELETE FROM t WHERE a % 2 = 0", "INSERT INTO other VALUES ('later')", "VACUUM t")
        plan = pickle.loads(pickle.dumps(plan))
        assert plan.count > 20 and plan.bytes > 0
        assert read(upstream, plan, tables) == wanted
        middle = plan.count // 2
        assert read(upstream, plan, tables, range(middle, plan.count), range(middle)) == wanted
        assert read(upstream, plan, tables, *(range(i, i + 1) for i in range(plan.count))) == wanted


def test_a_row_filter_and_left_out_columns_hold_for_the_snapshot_too(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t (a int, b int, c int)",
        "INSERT INTO t SELECT i, i, i FROM generate_series(1, 20) i",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t (a, b) WHERE (a > 10)",
    )
    found = look(upstream.options, "p")
    tables = [replicated(found, found.tables[0], exclude=["b"])]
    with exported(upstream, tables) as plan:
        assert read(upstream, plan, tables)[0] == Counter((i,) for i in range(11, 21))


def test_a_value_without_a_form_is_an_error_in_its_place(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t (a int, n numeric)",
        "INSERT INTO t VALUES (1, 1), (2, 'NaN')",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    tables = described(upstream, "t")
    with exported(upstream, tables) as plan:
        (batch,) = plan.read(upstream.options, tables, 0, plan.count)
    assert batch.rows.column("mz_error").to_pylist()[0] is None
    assert "NaN" in str(batch.rows.column("mz_error")[1])


@pytest.mark.parametrize("change", ["TRUNCATE t", "ALTER TABLE t ALTER a TYPE bigint", "DROP TABLE t"])
def test_a_table_that_was_rewritten_is_not_read_as_empty(upstream: UpstreamDatabase, change: str) -> None:
    upstream.run("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", "ALTER TABLE t REPLICA IDENTITY FULL")
    tables = described(upstream, "t")
    with exported(upstream, tables) as plan:
        upstream.run(change)
        with pytest.raises(Exception, match=r"rewritten after the snapshot|reports an error"):
            read(upstream, plan, tables)


def test_a_snapshot_ends_with_the_session_that_holds_it(upstream: UpstreamDatabase) -> None:
    upstream.run("CREATE TABLE t (a int)", "ALTER TABLE t REPLICA IDENTITY FULL")
    tables = described(upstream, "t")
    with exported(upstream, tables) as plan:
        pass
    with pytest.raises(SnapshotGone):
        read(upstream, plan, tables)
    plan = SnapshotPlan("no/such name", plan.relations, 0, 0)
    with pytest.raises(SnapshotGone):
        read(upstream, plan, tables)


def test_a_row_larger_than_a_batch_is_read(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t (a text)",
        "INSERT INTO t SELECT repeat(md5(i::text), 500000) FROM generate_series(1, 3) i",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    tables = described(upstream, "t")
    with exported(upstream, tables) as plan:
        sizes = [len(str(a)) for (a,) in read(upstream, plan, tables)[0]]
    assert sizes == [16_000_000] * 3


def test_with_very_many_pages_the_ranges_grow(
    upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RANGE_PAGES", 1)
    monkeypatch.setattr(snapshot, "MAX_RANGES", 8)
    upstream.run(
        "CREATE TABLE t AS SELECT i AS a FROM generate_series(1, 20000) i",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    tables = described(upstream, "t")
    with exported(upstream, tables) as plan:
        assert 4 < plan.count <= 8
        assert sum(read(upstream, plan, tables)[0].values()) == 20_000
