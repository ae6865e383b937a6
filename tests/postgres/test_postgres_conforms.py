"""A PostgreSQL source against the contract of sources: a snapshot, and transactions behind it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from postgres.source_world import SourceWorld
from sources.conformance import CHECKS, Subject
from support.upstream_postgres import UpstreamDatabase
from tidemill.sources.contract import UpstreamSource
from tidemill.sources.offsets import Offsets
from tidemill.sources.postgres import source as source_module
from tidemill.sources.postgres.source import PostgresSource

pytestmark = pytest.mark.server


@pytest.fixture
def subject(upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Each time that it is opened, it has a copy of the slot as it was at first: only one may read from a
    slot. So each receives all of the stream, and takes a snapshot of its own."""
    monkeypatch.setattr(source_module, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(source_module, "TASK_MESSAGES", 20)
    upstream.run(
        "CREATE TABLE t (id int, v text NOT NULL, n numeric)",
        "CREATE TABLE u (id int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, 'row ' || i, CASE i % 7 WHEN 0 THEN 'NaN'::numeric ELSE i END "
        "FROM generate_series(1, 300) i",
        "CREATE PUBLICATION p FOR TABLE t, u",
    )
    world = SourceWorld(upstream, "t", "u")
    world.bind(0)
    world.close()
    first = world.definition["slot"]
    upstream.run(
        "UPDATE t SET id = id + 1 WHERE id % 3 = 0",
        "INSERT INTO u SELECT * FROM generate_series(1, 200)",
        "DELETE FROM t WHERE id % 5 = 0",
        "BEGIN; INSERT INTO u VALUES (1); UPDATE t SET v = 'same'; DELETE FROM u WHERE id > 100; COMMIT",
    )
    end, numbers, made = world.now(), itertools.count(), list[PostgresSource]()

    def open_() -> UpstreamSource:
        slot = f"{first}_{next(numbers)}"
        upstream.query("SELECT pg_copy_logical_replication_slot(%s, %s)", [first, slot])
        made.append(PostgresSource({**world.definition, "slot": slot}))
        world.source = made[-1]
        world.bind(end)
        base = Offsets.at(world.definition["lsn"])
        world.retry(lambda: world.source.plan(world.source.start, base, 2, frozenset({0, 1})))
        return world.source

    yield Subject("PostgreSQL", open_, (0, 1, 2), remote=True, sparse=True, unordered=True, examples=6)
    for source in made:
        source.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_postgres_conforms(check: Callable[[Subject], None], subject: Subject) -> None:
    check(subject)
