"""An older PostgreSQL: Debian's package postgresql-15, where it is installed."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from postgres.source_world import SourceWorld
from support.upstream_postgres import OLDER_BINARIES, UpstreamDatabase
from tidemill.dev.postgres import Postgres
from tidemill.sources.postgres import source, table_faults

pytestmark = pytest.mark.server

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def older_server() -> Iterator[Postgres]:
    if not (OLDER_BINARIES / "postgres").exists():
        pytest.skip("PostgreSQL 15 is not installed (Debian: apt-get install postgresql-15)")
    folder = Path(tempfile.mkdtemp(prefix="tidemill-older-"))
    process = Postgres(folder, binaries=OLDER_BINARIES)
    try:
        process.start()
        yield process
    finally:
        process.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def older(older_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> UpstreamDatabase:
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(table_faults, "WATCH_SECONDS", 0.0)
    name = f"test_{next(_NUMBERS)}"
    UpstreamDatabase(older_server, "postgres").run(f"CREATE DATABASE {name}")
    return UpstreamDatabase(older_server, name)


@pytest.mark.parametrize("rooted", [False, True])
def test_an_older_server_is_read(older: UpstreamDatabase, *, rooted: bool) -> None:
    older.run(
        "CREATE TABLE t (id int, b text, g int GENERATED ALWAYS AS (1) STORED) PARTITION BY LIST (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1)",
        "CREATE TABLE t2 PARTITION OF t DEFAULT",
        "CREATE TABLE filtered (a int, b int)",
        "ALTER TABLE t1 REPLICA IDENTITY FULL",
        "ALTER TABLE t2 REPLICA IDENTITY FULL",
        "ALTER TABLE filtered REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO filtered SELECT i, i FROM generate_series(1, 20) i",
        "CREATE PUBLICATION p FOR TABLE t, filtered WHERE (a > 10) "
        f"WITH (publish_via_partition_root = {'true' if rooted else 'false'})",
    )
    names = ["t"] if rooted else ["t1", "t2"]
    world = SourceWorld(older, *names, "filtered")
    try:
        world.catch_up()
        older.run(
            "INSERT INTO t VALUES (3, NULL)",
            "UPDATE t SET id = id + 1",
            "DELETE FROM t WHERE b = 'two'",
            "UPDATE filtered SET a = a + 5",
        )
        world.crash()
        world.catch_up()
        for n, name in enumerate(names):
            assert world.table(n) == world.wanted(f"SELECT id, b FROM {name}")
        assert world.table(len(names)) == world.wanted("SELECT * FROM filtered WHERE a > 10")
        assert not any(world.errors.values())
        older.run("ALTER PUBLICATION p DROP TABLE filtered", "ALTER PUBLICATION p ADD TABLE filtered")
        while not world.errors[len(names)]:
            world.catch_up(0)
        assert "was out of publication p" in world.errors[len(names)][0]
    finally:
        world.close()
