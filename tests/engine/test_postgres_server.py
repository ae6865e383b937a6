"""A PostgreSQL source from the statement to the rows, on a real server and a real PostgreSQL."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg

from engine.asking import run, until
from support.upstream_postgres import UpstreamDatabase

SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"

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
    ((_, shown),) = run(home, "SHOW CREATE SOURCE s")
    assert (
        "(PUBLICATION 'p', TEXT COLUMNS (public.types.m, public.types.r, public.types.big), EXCLUDE" in shown
    )
    assert "FOR TABLES (public.accounts AS accounts, public.transfers AS transfers, public.types AS" in shown
    assert len(upstream.query(SLOTS)) == 1
    run(home, "DROP SOURCE s")
    until(lambda: upstream.query(SLOTS), [])
