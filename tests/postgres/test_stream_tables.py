"""What happens to tables upstream, and what becomes of them here: the same rows, or an error of the table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import LiteralString

import pytest

from postgres.source_world import WAIT_SECONDS, SourceWorld
from support.upstream_postgres import UpstreamDatabase
from tidemill.sources.postgres import describe, receiver, source, table_faults

pytestmark = pytest.mark.server

Opened = Callable[..., SourceWorld]


@pytest.fixture
def opened(upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Opens sources whose tables are looked at all the time."""
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(table_faults, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(receiver, "STATUS_SECONDS", 0.1)
    worlds: list[SourceWorld] = []

    def open_(*names: str, **options: str) -> SourceWorld:
        worlds.append(SourceWorld(upstream, *names, **options))
        return worlds[-1]

    yield open_
    for world in worlds:
        world.close()


def full(*names: str) -> list[str]:
    return [f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names]


@pytest.fixture
def pair(upstream: UpstreamDatabase, opened: Opened) -> SourceWorld:
    """A table `t` to which something happens, and its neighbour `other`."""
    upstream.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text)",
        "CREATE TABLE other (id int)",
        *full("t", "other"),
        "INSERT INTO t SELECT i, i, 'row ' || i FROM generate_series(1, 5) i",
        "CREATE PUBLICATION p FOR TABLE t, other",
    )
    world = opened("t", "other")
    world.catch_up()
    assert world.table() == world.wanted("SELECT * FROM t")
    return world


def noticed(world: SourceWorld, text: str, output: int = 0) -> None:
    """Soon the table has this error."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not world.errors[output]:
        assert time.monotonic() < deadline, f"no error, but {world.table(output)}"
        world.catch_up()
    assert text in world.errors[output][0]


def error_of_one(world: SourceWorld, text: str) -> None:
    """The first table has this error, and the second one goes on."""
    world.upstream.run("INSERT INTO other VALUES (1), (2)")
    noticed(world, text)
    assert "Drop the table and create it again" in world.errors[0][0]
    assert not world.errors[1] and world.table(1) == world.wanted("SELECT * FROM other")
    # Also after a crash, which forgets what was reported.
    world.crash()
    world.upstream.run("INSERT INTO other VALUES (3)")
    world.catch_up()
    assert not world.errors[1] and world.table(1) == world.wanted("SELECT * FROM other")


_AWAY = "BEGIN; ALTER PUBLICATION p DROP TABLE t; DELETE FROM t; ALTER PUBLICATION p ADD TABLE t; COMMIT"


_SWAP = "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME id TO a; ALTER TABLE t RENAME x TO id"


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        (["TRUNCATE t"], "table public.t was truncated upstream"),
        (["CREATE TABLE u (r int REFERENCES t)", "TRUNCATE t CASCADE"], "table public.t was truncated"),
        (["DROP TABLE t"], "table public.t was dropped upstream"),
        (
            [
                "DROP TABLE t",
                "CREATE TABLE t (id int PRIMARY KEY, a int, b text)",
                *full("t"),
                "ALTER PUBLICATION p ADD TABLE t",
                "INSERT INTO t VALUES (1, 1, 'row 1')",
            ],
            "table public.t was dropped upstream",
        ),
        (["ALTER PUBLICATION p DROP TABLE t"], "table public.t is no longer in publication p"),
        (["ALTER TABLE t DROP b"], 'column "b" of table public.t was removed upstream'),
        (["ALTER TABLE t RENAME b TO c"], 'column "b" of table public.t was removed upstream'),
        (["ALTER TABLE t DROP b", "ALTER TABLE t ADD b text"], 'column "b" of table public.t was made anew'),
        (["ALTER TABLE t ALTER a TYPE bigint"], 'column "a" of table public.t has another type upstream'),
        (["ALTER TABLE t ALTER b TYPE varchar(9)"], 'column "b" of table public.t has another type'),
        (["ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET a = 9"], "no longer has REPLICA IDENTITY"),
        (
            ["ALTER TABLE t REPLICA IDENTITY NOTHING", "INSERT INTO t VALUES (7)", *full("t")],
            "no longer has REPLICA IDENTITY FULL",
        ),
        (
            ["ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey", "DELETE FROM t", *full("t")],
            "no longer has REPLICA IDENTITY FULL",
        ),
        # It was away, and nobody noticed: what changed meanwhile is not in the stream.
        (
            [_AWAY],
            "table public.t was out of publication p",
        ),
        (
            [
                "ALTER PUBLICATION p SET (publish = 'insert')",
                "DELETE FROM t",
                "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
            ],
            "publication p was altered",
        ),
        (
            ["ALTER PUBLICATION p SET TABLE t WHERE (id > 2), other", "DELETE FROM t WHERE id = 1"],
            "table public.t was out of publication p",
        ),
        # All rows are others than before, and none of them is in the stream.
        (["ALTER TABLE t ALTER a TYPE int USING a + 1"], "table public.t was rewritten upstream"),
        # Names go from column to column, and come back: only the stream shows it.
        (
            [f"BEGIN; {_SWAP}; INSERT INTO t VALUES (7, 8, 9); {_SWAP}; COMMIT"],
            'column "id" of table public.t was made anew',
        ),
        (
            [
                "BEGIN; ALTER TABLE t RENAME a TO x; ALTER TABLE t ADD a int",
                "INSERT INTO t VALUES (7, 8, '', 9)",
                "ALTER TABLE t DROP a; ALTER TABLE t RENAME x TO a; COMMIT",
            ],
            'column "a" of table public.t was made anew',
        ),
    ],
)
def test_what_makes_a_table_unknown_is_an_error_of_it_alone(
    pair: SourceWorld, statements: list[LiteralString], text: str
) -> None:
    pair.upstream.run(*statements)
    if "publication p was altered" in text:
        # Of both tables: the publication is that of both.
        noticed(pair, text)
        noticed(pair, text, 1)
        return
    error_of_one(pair, text)


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE t ADD c int DEFAULT 7"],
        ["ALTER TABLE t ADD c float8 DEFAULT random()"],
        ["ALTER TABLE t ADD c int GENERATED ALWAYS AS (a + 1) STORED"],
        ["ALTER TABLE t ADD c int", "ALTER TABLE t DROP c"],
        ["VACUUM FULL t"],
        ["CREATE INDEX i ON t (a)", "CLUSTER t USING i", "ANALYZE t", "VACUUM (FREEZE) t"],
        ["ALTER TABLE t ALTER a SET STATISTICS 10", "ALTER TABLE t ALTER b SET STORAGE EXTERNAL"],
        ["ALTER TABLE t ALTER a SET DEFAULT 5", "COMMENT ON COLUMN t.a IS 'x'"],
        ["ALTER TABLE t RENAME TO t2", "ALTER TABLE t2 RENAME TO t"],
        ["CREATE TABLE another (a int)", "ALTER PUBLICATION p ADD TABLE another"],
        ["CREATE TABLE another (a int)", "ALTER PUBLICATION p SET TABLE t, other, another"],
        ["ALTER TABLE t DROP CONSTRAINT t_pkey"],
        ["ALTER TABLE t REPLICA IDENTITY DEFAULT", *full("t")],
    ],
)
def test_what_a_table_does_not_care_about(pair: SourceWorld, statements: list[LiteralString]) -> None:
    upstream = pair.upstream
    # (PostgreSQL refuses to update a table with a generated column that is not published.)
    updates = [] if "GENERATED" in statements[0] else ["UPDATE t SET a = a + 1"]
    upstream.run(*statements, "INSERT INTO t (id, a, b) VALUES (6, NULL, '')", *updates)
    pair.catch_up()
    assert not pair.errors[0] and not pair.errors[1]
    time.sleep(2 * receiver.STATUS_SECONDS)
    if updates:
        upstream.run("DELETE FROM t WHERE id IN (1, 6)")
    upstream.run("INSERT INTO other VALUES (1)")
    pair.catch_up()
    pair.crash()
    upstream.run("INSERT INTO other VALUES (2)")
    pair.catch_up()
    assert not pair.errors[0] and not pair.errors[1]
    assert pair.table() == pair.wanted("SELECT id, a, b FROM t")
    assert pair.table(1) == pair.wanted("SELECT * FROM other")


ODD_TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'happy')",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE TYPE pair AS (n int, m mood)",
    "CREATE TYPE span AS RANGE (subtype = mood)",
    "CREATE TABLE t (id int, plain mood, many moods, couple pair, ranges span, left_out mood)",
    "INSERT INTO t VALUES (1, 'sad', '{sad,happy}', '(1,sad)', '[sad,happy]', 'sad')",
    "CREATE TABLE other (id int)",
)


def of_odd_types(upstream: UpstreamDatabase, opened: Opened, *columns: str) -> SourceWorld:
    """Those columns of `t` as text, and `other`."""
    upstream.run(*ODD_TYPES, *full("t", "other"), "CREATE PUBLICATION p FOR TABLE t, other")
    world = opened("other")
    published = describe.look(upstream.options, "p")
    table = next(t for t in published.tables if t.table == "t")
    left_out = [c.name for c in table.columns if c.name not in ("id", *columns)]
    chosen = describe.replicated(published, table, columns, left_out).spec()
    world.definition["outputs"] = [chosen, *world.definition["outputs"]]
    world.kept[1], world.errors[1] = Counter(), []
    world.crash()
    world.catch_up()
    return world


@pytest.mark.parametrize("column", ["plain", "many", "couple", "ranges"])
def test_other_names_of_values_are_an_error(upstream: UpstreamDatabase, opened: Opened, column: str) -> None:
    """Rows that are removed later have another text than they had."""
    world = of_odd_types(upstream, opened, column)
    # A new value is none, and may be renamed itself.
    upstream.run("ALTER TYPE mood ADD VALUE 'calm'", "INSERT INTO t (id, plain) VALUES (3, 'calm')")
    world.catch_up()
    deadline = time.monotonic() + WAIT_SECONDS
    while not world.definition.get("marks"):
        assert time.monotonic() < deadline
        world.catch_up(0)
    world.crash()
    world.catch_up()
    assert not world.errors[0] and world.table() == world.wanted(f"SELECT id, {column}::text FROM t")
    upstream.run("ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'", "DELETE FROM t")
    error_of_one(world, "a type of table public.t was altered upstream")


def test_another_attribute_of_a_type_is_an_error(upstream: UpstreamDatabase, opened: Opened) -> None:
    world = of_odd_types(upstream, opened, "couple")
    upstream.run("ALTER TYPE pair ADD ATTRIBUTE more int")
    error_of_one(world, "a type of table public.t was altered upstream")


def test_a_type_of_a_column_that_is_not_read_may_change(upstream: UpstreamDatabase, opened: Opened) -> None:
    world = of_odd_types(upstream, opened)
    upstream.run("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "UPDATE t SET id = 9 WHERE id = 1")
    world.catch_up()
    world.crash()
    upstream.run("INSERT INTO t VALUES (4)")
    world.catch_up()
    assert not world.errors[0] and world.table() == world.wanted("SELECT id FROM t")


def test_a_table_that_was_unlogged_for_a_while(upstream: UpstreamDatabase, opened: Opened) -> None:
    """Nobody noticed. (PostgreSQL refuses it for a table that a publication names.)"""
    upstream.run(
        "CREATE TABLE t (id int, b text)",
        "CREATE TABLE other (id int)",
        *full("t", "other"),
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    world = opened("t", "other")
    world.catch_up()
    upstream.run(
        "VACUUM FULL t", "ALTER TABLE t ADD c float8 DEFAULT random()", "INSERT INTO t VALUES (1, 'x')"
    )
    world.catch_up()
    time.sleep(2 * receiver.STATUS_SECONDS)
    world.catch_up()
    assert not world.errors[0] and world.table() == world.wanted("SELECT id, b FROM t")
    world.crash()
    upstream.run("ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (2, 'y')", "ALTER TABLE t SET LOGGED")
    error_of_one(world, "table public.t was rewritten upstream")


@pytest.mark.parametrize(
    ("published", "away", "back"),
    [
        ("TABLES IN SCHEMA public", "ALTER TABLE t SET SCHEMA s", "ALTER TABLE s.t SET SCHEMA public"),
        (
            "TABLE root, other",
            "ALTER TABLE root DETACH PARTITION t",
            "ALTER TABLE root ATTACH PARTITION t FOR VALUES IN (1)",
        ),
    ],
)
def test_a_table_that_was_elsewhere_for_a_while(
    upstream: UpstreamDatabase, opened: Opened, published: str, away: str, back: str
) -> None:
    """It leaves what it is published with, and comes back: its changes meanwhile are not in the stream."""
    upstream.run(
        "CREATE SCHEMA s",
        "CREATE TABLE root (id int) PARTITION BY LIST (id)",
        "CREATE TABLE t PARTITION OF root FOR VALUES IN (1)",
        "CREATE TABLE other (id int)",
        *full("t", "root", "other"),
        "INSERT INTO t VALUES (1)",
        f"CREATE PUBLICATION p FOR {published}",
    )
    world = opened("t", "other")
    upstream.run("VACUUM FULL t")
    world.catch_up()
    world.crash()
    upstream.run("INSERT INTO t VALUES (1)")
    world.catch_up()
    assert not world.errors[0] and world.table() == {(1,): 2}
    upstream.run("BEGIN", away, f"DELETE FROM {'s.t' if 'SCHEMA' in away else 't'}", back, "COMMIT")
    error_of_one(world, "table public.t was out of publication p")


def test_what_is_harmless_is_remembered(pair: SourceWorld) -> None:
    """Other files and other columns: together they would be a table that was written anew."""
    upstream = pair.upstream
    for statement in ("VACUUM FULL t", "ALTER TABLE t ALTER a SET STATISTICS 10", "VACUUM FULL t"):
        before = pair.definition.get("marks")
        upstream.run(statement)
        deadline = time.monotonic() + WAIT_SECONDS
        while pair.definition.get("marks") == before:
            assert time.monotonic() < deadline
            pair.catch_up(0)
        pair.crash()
        upstream.run("UPDATE t SET a = a + 1")
        pair.catch_up()
    assert not pair.errors[0] and pair.table() == pair.wanted("SELECT * FROM t")


def test_a_key_changes_and_a_large_value_does_not(upstream: UpstreamDatabase, opened: Opened) -> None:
    """A value that was moved out of its row is not sent again if it did not change."""
    upstream.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text, big2 bytea)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        *full("t"),
        "INSERT INTO t VALUES (1, 1, repeat('x', 100000), NULL)",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    world = opened("t")
    world.catch_up()
    upstream.run(
        "INSERT INTO t VALUES (2, 2, repeat('y', 100000), decode(repeat('ab', 50000), 'hex'))",
        "UPDATE t SET n = n + 1",
        "UPDATE t SET id = id + 10",
        "UPDATE t SET big = big || 'z' WHERE id = 11",
        "UPDATE t SET big2 = big2 WHERE id = 12",
        "DELETE FROM t WHERE id = 11",
    )
    world.catch_up()
    assert world.table() == world.wanted("SELECT * FROM t") and len(world.table()) == 1


PARTITIONED = (
    "CREATE TABLE t (k int, v text) PARTITION BY RANGE (k)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    # A partition that has partitions, and columns in another order.
    "CREATE TABLE t2 (gone int, v text, k int) PARTITION BY LIST (v)",
    "ALTER TABLE t2 DROP gone",
    "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE t2a PARTITION OF t2 FOR VALUES IN ('a')",
    "CREATE TABLE t2b PARTITION OF t2 DEFAULT",
)


@pytest.fixture
def rooted(upstream: UpstreamDatabase, opened: Opened) -> SourceWorld:
    """A partitioned table, published as one."""
    upstream.run(
        *PARTITIONED,
        "CREATE TABLE other (id int)",
        *full("t1", "t2a", "t2b", "other"),
        "INSERT INTO t VALUES (1, 'x'), (11, 'a'), (12, 'b')",
        "CREATE PUBLICATION p FOR TABLE t, other WITH (publish_via_partition_root)",
    )
    world = opened("t", "other")
    world.catch_up()
    assert world.table() == world.wanted("SELECT * FROM t")
    return world


def test_a_partitioned_table_as_one(rooted: SourceWorld) -> None:
    rooted.upstream.run(
        "INSERT INTO t VALUES (2, 'y'), (13, 'a')",
        # Into another partition.
        "UPDATE t SET k = k + 10 WHERE k < 10",
        "UPDATE t SET v = v || 'c' WHERE v = 'a'",
        "DELETE FROM t WHERE k = 12",
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)",
        *full("t3"),
        "INSERT INTO t VALUES (25, 'new')",
        "UPDATE t SET v = 'newer' WHERE k = 25",
    )
    rooted.catch_up()
    assert rooted.errors == {0: [], 1: []}
    assert rooted.table() == rooted.wanted("SELECT * FROM t")
    rooted.crash()
    rooted.upstream.run("DELETE FROM t WHERE k = 25")
    rooted.catch_up()
    assert rooted.errors == {0: [], 1: []}
    assert rooted.table() == rooted.wanted("SELECT * FROM t")


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        # (In the stream, which comes behind what the files of the partitions tell.)
        (["TRUNCATE t"], "truncated"),
        # These are in no stream.
        (["TRUNCATE t1"], "partition public.t1 of table public.t was truncated or rewritten"),
        (["DROP TABLE t1"], "partition public.t1 of table public.t was removed"),
        (["ALTER TABLE t DETACH PARTITION t2"], "of table public.t was removed"),
        (
            [
                "CREATE TABLE t3 (k int, v text)",
                "INSERT INTO t3 VALUES (21, 'x')",
                *full("t3"),
                "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (20) TO (30)",
            ],
            "table public.t3 became a partition of table public.t",
        ),
        # A new partition logs no old rows, so that one of NULLs would be removed.
        (
            [
                "CREATE TABLE t3 PARTITION OF t (PRIMARY KEY (k)) FOR VALUES FROM (20) TO (30)",
                "INSERT INTO t VALUES (25, 'new')",
                "DELETE FROM t WHERE k = 25",
                *full("t3"),
            ],
            "partition public.t3 of table public.t does not have REPLICA IDENTITY FULL",
        ),
        (
            ["ALTER TABLE t1 REPLICA IDENTITY NOTHING", "INSERT INTO t VALUES (3, 'x')", *full("t1")],
            "does not have REPLICA IDENTITY FULL",
        ),
        (
            [
                "CREATE UNLOGGED TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)",
                *full("t3"),
                "INSERT INTO t VALUES (25, 'new')",
            ],
            "partition public.t3 of table public.t is UNLOGGED",
        ),
        (["ALTER PUBLICATION p SET (publish_via_partition_root = false)"], "publication p"),
    ],
)
def test_what_makes_a_partitioned_table_unknown(
    rooted: SourceWorld, statements: list[LiteralString], text: str
) -> None:
    rooted.upstream.run(*statements)
    if "publication" in text:
        noticed(rooted, text)
        return
    error_of_one(rooted, text)


def test_partitions_as_tables(upstream: UpstreamDatabase, opened: Opened) -> None:
    upstream.run(
        *PARTITIONED,
        *full("t1", "t2a", "t2b"),
        "INSERT INTO t VALUES (1, 'x'), (11, 'a'), (12, 'b')",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    world = opened("t1", "t2a", "t2b")
    world.catch_up()
    upstream.run(
        "UPDATE t SET k = k + 10 WHERE k < 10",
        "INSERT INTO t VALUES (2, 'y'), (13, 'a')",
        "UPDATE t SET v = 'a' WHERE v = 'b'",
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)",
        *full("t3"),
        "INSERT INTO t VALUES (25, 'not asked for')",
        "TRUNCATE t1",
    )
    noticed(world, "table public.t1 was truncated")
    world.catch_up()
    assert world.table(1) == world.wanted("SELECT v, k FROM t2a")
    assert world.table(2) == world.wanted("SELECT v, k FROM t2b")
    upstream.run("ALTER TABLE t DETACH PARTITION t2", "INSERT INTO t2a VALUES ('a', 14)")
    noticed(world, "table public.t2a is no longer in publication p", 1)


def test_generated_columns_are_those_that_are_published(upstream: UpstreamDatabase, opened: Opened) -> None:
    upstream.run(
        "CREATE TABLE t (a int, g int GENERATED ALWAYS AS (a * 2) STORED)",
        "INSERT INTO t VALUES (1)",
        *full("t"),
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_generated_columns = stored)",
    )
    world = opened("t")
    world.catch_up()
    upstream.run("INSERT INTO t VALUES (2)", "UPDATE t SET a = 3 WHERE a = 1", "DELETE FROM t WHERE a = 2")
    world.catch_up()
    assert world.table() == {(3, 6): 1}
    upstream.run("ALTER TABLE t ALTER g SET EXPRESSION AS (a * 3)")
    noticed(world, "table public.t was rewritten upstream")


def test_changes_of_other_tables_are_not_kept(upstream: UpstreamDatabase, opened: Opened) -> None:
    upstream.run(
        "CREATE TABLE t (id int)",
        "CREATE TABLE u (id int)",
        *full("t", "u"),
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    world = opened("t")
    world.catch_up()
    upstream.run("INSERT INTO u SELECT * FROM generate_series(1, 1000)")
    lower, upper = world.bind()
    assert world.source.reading_seconds(lower, upper, 0) == 0
    upstream.run("BEGIN; UPDATE u SET id = -id; INSERT INTO t VALUES (1); DELETE FROM u; COMMIT")
    world.catch_up()
    assert world.table() == {(1,): 1}


def test_a_table_is_added_later(pair: SourceWorld) -> None:
    """It begins with what the others have, whatever happens to it meanwhile."""
    upstream = pair.upstream
    upstream.run(
        "CREATE TABLE late (id int, v text)",
        *full("late"),
        "INSERT INTO late SELECT i, 'old' FROM generate_series(1, 100) i",
        "ALTER PUBLICATION p ADD TABLE late",
        "INSERT INTO late VALUES (101, 'seen')",
    )
    pair.catch_up()
    pair.add("late")
    at = pair.bound
    before = pair.wanted("SELECT * FROM late")
    upstream.run("UPDATE late SET v = 'new' WHERE id < 50", "DELETE FROM late WHERE id > 90")
    rows, errors = pair.retry(lambda: pair.read(pair.source.start, at, outputs=frozenset({2})))
    assert not errors[2] and {row: n for row, n in rows[2].items() if n} == before
    pair.kept[2].update(rows[2])
    pair.catch_up()
    assert pair.table(2) == pair.wanted("SELECT * FROM late")


@pytest.mark.parametrize("change", ["TRUNCATE t", "DROP TABLE t", "ALTER TABLE t DROP b", "VACUUM FULL t"])
def test_a_table_changes_before_its_snapshot_is_read(
    upstream: UpstreamDatabase, opened: Opened, change: LiteralString
) -> None:
    upstream.run(
        "CREATE TABLE t (a int, b int)",
        "CREATE TABLE other (id int)",
        "INSERT INTO t VALUES (1, 2)",
        "INSERT INTO other VALUES (1)",
        *full("t", "other"),
        "CREATE PUBLICATION p FOR TABLE t, other",
    )
    world = opened("t", "other")
    lower, upper = world.bind(0)
    upstream.run(change, "INSERT INTO other VALUES (2)")
    world.keep(lower, upper)
    world.catch_up()
    assert world.table(1) == {(1,): 1, (2,): 1} and not world.errors[1]
    if "VACUUM" in change:
        assert world.table() == {(1, 2): 1} and not world.errors[0]
    else:
        assert world.errors[0], world.table()
