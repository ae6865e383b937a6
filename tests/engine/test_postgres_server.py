"""A PostgreSQL source from the statement to the rows, on a real server and a real PostgreSQL."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.upstream_postgres import UpstreamDatabase

OURS = "WHERE database = current_database() AND NOT temporary"
SLOTS = f"SELECT slot_name FROM pg_replication_slots {OURS}"

# One value of each kind of type, and a row of nulls.
TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN short AS varchar(5);
CREATE TABLE types (
  id int PRIMARY KEY, b bool, i2 int2, i8 int8, f4 float4, f8 float8, n numeric(10,2), t text, v varchar(3),
  c char(3), d date, tm time, ts timestamp, tz timestamptz, u uuid, j jsonb, by bytea, ia int[], s short,
  m mood, r int4range, big numeric(60, 2), gone text, iv interval);
INSERT INTO types VALUES (1, true, -2, 8000000000, 1.5, -0.25, 12.50, 'äöü', 'abc', 'x', '2024-02-29',
  '12:34:56.5', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05+02',
  'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
  '{"a": [1, null]}', '\\x00ff', '{1,NULL,3}', 'short', 'happy', '[1,5)',
  12345678901234567890123456789012345678901.25, 'x', '1 day 02:00:00');
INSERT INTO types (id) VALUES (2);
ALTER TABLE types REPLICA IDENTITY FULL;
"""


def connect(home: psycopg.Connection[Any], upstream: UpstreamDatabase) -> None:
    o = upstream.options
    run(
        home,
        f"CREATE CONNECTION pg TO POSTGRES (HOST '{o['host']}', PORT {o['port']}, "
        f"DATABASE '{o['database']}', USER 'postgres', SSL MODE 'disable')",
    )


def test_two_statements_give_live_tables(home: psycopg.Connection[Any], upstream: UpstreamDatabase) -> None:
    upstream.run(
        TYPES,
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)",
        "CREATE TABLE transfers (account int, amount int NOT NULL)",
        "ALTER TABLE accounts REPLICA IDENTITY FULL",
        "ALTER TABLE transfers REPLICA IDENTITY FULL",
        "INSERT INTO accounts VALUES (1, 100), (2, 100)",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    connect(home, upstream)
    run(
        home,
        "CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'p', TEXT COLUMNS (types.m, types.r, "
        "public.types.big), EXCLUDE COLUMNS (types.gone)) FOR ALL TABLES",
    )
    assert run(home, "SELECT id, balance FROM accounts ORDER BY 1") == [(1, 100), (2, 100)]
    first, second = run(home, "SELECT * FROM types ORDER BY id")
    assert second == (2, *[None] * 22)
    assert first[:11] == (
        1,
        True,
        -2,
        8000000000,
        1.5,
        -0.25,
        Decimal("12.50"),
        "äöü",
        "abc",
        "x  ",
        first[10],
    )
    assert first[19:22] == ("happy", "[1,5)", "12345678901234567890123456789012345678901.25")
    with psycopg.connect(home.info.dsn) as follower, upstream.session() as sql:
        follower.execute(
            "DECLARE c CURSOR FOR SUBSCRIBE (SELECT 'a' AS kind, id, balance AS n FROM accounts UNION ALL "
            "SELECT 't', account, amount FROM transfers)"
        )
        follower.execute("FETCH 2 c WITH (timeout = '60s')")
        sql.execute("BEGIN")
        sql.execute("UPDATE accounts SET balance = balance - 10 WHERE id = 1")
        sql.execute("INSERT INTO transfers VALUES (1, -10), (2, 10)")
        sql.execute("UPDATE accounts SET balance = balance + 10 WHERE id = 2")
        sql.execute("COMMIT")
        sql.execute("BEGIN; DELETE FROM accounts; ROLLBACK")
        sql.execute("CREATE TEMP TABLE again AS SELECT * FROM types WHERE id = 1")
        sql.execute("UPDATE again SET id = 3; INSERT INTO types SELECT * FROM again")
        changes = follower.execute("FETCH 6 c WITH (timeout = '60s')").fetchall()
    # The transaction has one time.
    assert len({row[0] for row in changes}) == 1
    assert sorted(row[1:] for row in changes) == [
        (-1, "a", 1, 100),
        (-1, "a", 2, 100),
        (1, "a", 1, 90),
        (1, "a", 2, 110),
        (1, "t", 1, -10),
        (1, "t", 2, 10),
    ]
    until(lambda: run(home, "SELECT count(*) FROM types"), [(3,)])
    same, streamed = run(home, "SELECT * FROM types WHERE id IN (1, 3) ORDER BY id")
    assert streamed[1:] == same[1:]
    # What happens to one table is an error of it alone.
    upstream.run("TRUNCATE transfers", "INSERT INTO accounts VALUES (3, 0)")
    until(lambda: run(home, "SELECT count(*) FROM accounts"), [(3,)])
    with pytest.raises(psycopg.Error, match=r"table public\.transfers was truncated upstream"):
        run(home, "SELECT * FROM transfers")
    ((_, shown),) = run(home, "SHOW CREATE SOURCE s")
    assert (
        "(PUBLICATION 'p', TEXT COLUMNS (public.types.m, public.types.r, public.types.big), EXCLUDE" in shown
    )
    assert "FOR TABLES (public.accounts AS accounts, public.transfers AS transfers, public.types AS" in shown
    assert len(upstream.query(SLOTS)) == 1
    run(home, "DROP SOURCE s")
    until(lambda: upstream.query(SLOTS), [])


@contextlib.contextmanager
def transfers(upstream: UpstreamDatabase) -> Generator[None]:
    """Meanwhile every transaction moves something from a to b, or back."""
    stop, made = threading.Event(), [0]

    def move() -> None:
        with upstream.session() as sql:
            while not stop.is_set():
                amount = made[0] % 7 - 3
                with sql.transaction():
                    sql.execute("UPDATE a SET n = n - %s WHERE id = %s", [amount, made[0] % 5])
                    sql.execute("UPDATE b SET n = n + %s WHERE id = %s", [amount, made[0] % 3])
                made[0] += 1

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert made[0] > 10


def test_tables_that_are_added_later_fit_the_others(
    home: psycopg.Connection[Any], upstream: UpstreamDatabase
) -> None:
    upstream.run(
        "CREATE TABLE a AS SELECT i AS id, 100 AS n FROM generate_series(0, 4) i",
        "CREATE TABLE b AS SELECT i AS id, 100 AS n, '[1,5)'::int4range AS r FROM generate_series(0, 2) i",
        "ALTER TABLE a REPLICA IDENTITY FULL",
        "ALTER TABLE b REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE a",
    )
    connect(home, upstream)
    run(home, "CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'p')")
    run(home, "CREATE TABLE first (key) FROM SOURCE s (REFERENCE a)")
    whole = "(SELECT sum(n) FROM (SELECT n FROM first UNION ALL SELECT n FROM c) x)"
    with transfers(upstream):
        assert run(home, "SELECT count(key) FROM first") == [(5,)]
        with pytest.raises(psycopg.Error, match=r'publication "p" has no table "public\.b"') as missing:
            run(home, "ALTER SOURCE s ADD SUBSOURCE public.b AS c")
        assert missing.value.diag.message_hint is not None
        assert "ALTER PUBLICATION p ADD TABLE public.b" in missing.value.diag.message_hint
        upstream.run("ALTER PUBLICATION p ADD TABLE b")
        run(home, "ALTER SOURCE s ADD SUBSOURCE public.b AS c WITH (TEXT COLUMNS (b.r))")
        with psycopg.connect(home.info.dsn) as follower:
            follower.execute(f"DECLARE c CURSOR FOR SUBSCRIBE {whole}")
            rows = follower.execute("FETCH 1 c WITH (timeout = '60s')").fetchall()
            rows += follower.execute("FETCH 2 c WITH (timeout = '3s')").fetchall()
    # Never anything else.
    assert [row[1:] for row in rows] == [(1, 800)]
    for mine, theirs in (("key, n FROM first", "id, n FROM a"), ("id, n, r FROM c", "id, n, r::text FROM b")):
        wanted = upstream.query(f"SELECT {theirs} ORDER BY 1")
        until(lambda mine=mine: run(home, f"SELECT {mine} ORDER BY 1"), wanted)

    run(home, "CREATE VIEW v AS SELECT * FROM c")
    ((_, shown),) = run(home, "SHOW CREATE SOURCE s")
    assert "TEXT COLUMNS (public.b.r)) FOR TABLES (public.b AS c)" in shown
    ((_, shown),) = run(home, "SHOW CREATE TABLE first")
    assert shown.endswith("public.first (key) FROM SOURCE " + shown.split(" ")[-3] + " (REFERENCE a)")
    with pytest.raises(psycopg.Error, match="other objects depend on it"):
        run(home, "ALTER SOURCE s DROP SUBSOURCE c")
    with pytest.raises(psycopg.Error, match='"first" is not a subsource of source "s"'):
        run(home, "ALTER SOURCE s DROP SUBSOURCE first")
    run(home, "ALTER SOURCE s DROP SUBSOURCE IF EXISTS c, gone CASCADE")
    assert run(home, "SHOW SUBSOURCES ON s") == [("s_progress", "progress")]
    upstream.run("INSERT INTO a VALUES (7, 7)")
    until(lambda: run(home, "SELECT n FROM first WHERE key = 7"), [(7,)])
    run(home, "DROP TABLE first")
    run(home, "ALTER SOURCE s ADD TABLE a, b AS d WITH (EXCLUDE COLUMNS (b.r))")
    assert run(home, "SELECT a.n, d.* FROM a, d WHERE a.id = 7 AND d.id = 1") == [
        (7, *upstream.query("SELECT id, n FROM b WHERE id = 1")[0])
    ]
    run(home, "DROP SOURCE s")
    until(lambda: upstream.query(SLOTS), [])


def test_how_far_it_is(home: psycopg.Connection[Any], upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t AS SELECT i AS id, repeat('x', 100) AS t FROM generate_series(1, 50000) i",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ANALYZE t",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    connect(home, upstream)
    run(
        home,
        "CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'p') FOR TABLES (t) EXPOSE PROGRESS AS far "
        "WITH (RETAIN HISTORY FOR '1h')",
    )
    assert run(home, "SELECT count(*) FROM t") == [(50000,)]
    ((lsn,),) = run(home, "SELECT lsn::text::int8 FROM far")
    ((behind,),) = upstream.query("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8 - %s", [lsn])
    assert 0 <= behind < 1 << 20
    mine = "FROM mz_sources JOIN mz_schemas c ON c.id = schema_id JOIN mz_databases d ON d.id = database_id"
    ((source,),) = run(
        home, f"SELECT mz_sources.id {mine} WHERE mz_sources.name = 's' AND d.name = current_database()"
    )
    statistics = f"FROM mz_internal.mz_source_statistics WHERE id = '{source}'"
    until(
        lambda: run(
            home,
            f"SELECT snapshot_records_known, snapshot_records_staged, snapshot_bytes_known > 5000000, "
            f"snapshot_bytes_known - snapshot_bytes_staged {statistics}",
        ),
        [(50000, 50000, True, 0)],
    )
    # It is never far behind while nothing happens, and knows it.
    until(lambda: run(home, f"SELECT lag_bytes < 1000000, lag < '30 s' {statistics}"), [(True, True)])
    bound = (
        f"SELECT count(*) > 0 FROM mz_internal.mz_source_bindings WHERE source_id = '{source}' AND value > 0"
    )
    assert run(home, bound) == [(True,)]
    ((publication, slot, timeline),) = run(
        home,
        f"SELECT publication, replication_slot, timeline_id FROM mz_postgres_sources WHERE id = '{source}'",
    )
    assert (publication, [(slot,)], timeline) == ("p", upstream.query(SLOTS), 1)
    # The slot goes on while only other tables are written: the server need not keep that log.
    ((before,),) = upstream.query(f"SELECT confirmed_flush_lsn FROM pg_replication_slots {OURS}")
    upstream.run("CREATE TABLE other AS SELECT generate_series(1, 1000)")
    until(
        lambda: upstream.query(f"SELECT confirmed_flush_lsn > %s FROM pg_replication_slots {OURS}", [before]),
        [(True,)],
    )
    run(home, "DROP SOURCE s")
    until(lambda: upstream.query(SLOTS), [])
