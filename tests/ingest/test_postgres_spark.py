"""The snapshot of a PostgreSQL source is read by several Spark tasks at once, each row by one of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.spark import SparkHost
from support.upstream_postgres import UpstreamDatabase
from tidemill.catalog.connection_ops import CreateConnectionOp
from tidemill.catalog.source_ops import CreateSourceOp, NewSubsource
from tidemill.catalog.store import Catalog
from tidemill.ingest.service import Ingestion
from tidemill.ingest.spark_runner import SparkRunner
from tidemill.ingest.unit import Unit, UnitFacts
from tidemill.persist.environment import Environment
from tidemill.sources.postgres import snapshot
from tidemill.sources.postgres.definition import GAUGE
from tidemill.sources.postgres.describe import look, replicated
from tidemill.types.arrow import DIFF_COLUMN

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.timeout(600)]

WAIT_SECONDS = 120.0
ROWS = 20_000
# Tasks that wait for the table's lock. One that runs alone would never see the other.
_WAITING = """
SELECT DISTINCT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND relation = 't'::regclass AND datname = current_database() AND query LIKE 'LOCK TABLE%'
"""


class Locked(SparkRunner):
    """Locks the table before the job of its snapshot, until two tasks wait for it."""

    def __init__(self, host: SparkHost, folder: str, upstream: UpstreamDatabase) -> None:
        super().__init__(host, folder)
        self._upstream = upstream
        self.sessions: set[int] = set()
        self.pieces: list[tuple[int, int]] = []

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        wanted = any(target is not None for unit in units for target in unit.targets)
        if self.sessions or not wanted:
            return super().run(units, lane=lane, seconds=seconds)
        self.pieces = [(piece.lower, piece.upper) for unit in units for piece in unit.pieces]
        locked = threading.Event()
        watch = threading.Thread(target=self._hold, args=[locked])
        watch.start()
        assert locked.wait(WAIT_SECONDS)
        try:
            return super().run(units, lane=lane, seconds=seconds)
        finally:
            watch.join()

    def _hold(self, locked: threading.Event) -> None:
        with self._upstream.session() as holder, self._upstream.session() as looking:
            holder.execute("BEGIN")
            holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            locked.set()
            deadline = time.monotonic() + WAIT_SECONDS
            while len(self.sessions) < 2 and time.monotonic() < deadline:
                self.sessions = {int(row[0]) for row in looking.execute(_WAITING.encode()).fetchall()}
                time.sleep(0.02)
            holder.execute("COMMIT")


def test_several_tasks_read_a_table_at_once(
    spark: SparkHost, upstream: UpstreamDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "RANGE_PAGES", 20)
    upstream.run(
        f"CREATE TABLE t AS SELECT i AS id, repeat('x', 50) AS v FROM generate_series(1, {ROWS}) i",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    published = look(upstream.options, "p")
    table = replicated(published, published.tables[0])
    environment = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(environment)
    runner = Locked(spark, str(tmp_path / "state"), upstream)
    ingestion = Ingestion(environment, catalog, runner)
    try:
        schema = catalog.state.schema(catalog.state.database("materialize").id, "public").id
        state = catalog.transact([CreateConnectionOp(schema, "pg", "postgres", json.dumps(upstream.options))])
        (connection,) = (c for c in state.connections() if c.name == "pg")
        definition: dict[str, Any] = {
            "kind": "postgres",
            "connection": connection.id,
            "publication": "p",
            "slot": f"{upstream.name}_s",
            "system": published.system,
            "lsn": None,
            "timeline": None,
            "outputs": [],
            "started": 0,
        }
        source_op = CreateSourceOp(
            schema=schema,
            name="s",
            type="postgres",
            definition=json.dumps(definition),
            sql="",
            desc=None,
            envelope=None,
            remap_desc=GAUGE.remap_desc,
            progress_desc=GAUGE.progress_desc,
            interval_ms=1000,
            depends_on=(connection.id,),
            subsources=(NewSubsource("t", table.name, table.desc, "none", table.spec()),),
        )
        state = catalog.transact([source_op])
        (item,) = (t for s in state.sources() if s.name == "s" for t in state.source_tables(s.id))
        assert ingestion.wait_readable(item, environment.oracle.read_ts(), WAIT_SECONDS), ingestion.report(
            item
        ).status
        readable = ingestion.readable(item)
        with ingestion.shard(item).snapshot(readable - 1, readable=readable) as rows:
            found = rows.read()
        assert set(found.column(DIFF_COLUMN).to_pylist()) == {1}
        assert sorted(found.column("id").to_pylist()) == list(range(1, ROWS + 1))
    finally:
        ingestion.stop()
        environment.close()
    assert len(runner.sessions) == 2
    # The ranges of pages lie side by side, from the first to the last.
    assert len(runner.pieces) > 2
    assert [lower for lower, _ in runner.pieces[1:]] == [upper for _, upper in runner.pieces[:-1]]
