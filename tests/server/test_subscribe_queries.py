"""Subscribed queries over a real socket: those that are followed on their changes alone, beside those that
are not; EXPLAIN tells which."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess

pytestmark = pytest.mark.server

Connection = psycopg.Connection[tuple[Any, ...]]

QUERIES = (
    "SELECT k, upper(v) AS v, n + 1 AS more FROM t WHERE k > 1",
    "SELECT v FROM t WHERE n % 3 = 0 AND v LIKE 'v%'",
    "SELECT k, n FROM few UNION ALL SELECT k, 0 FROM other WHERE k < 3 UNION ALL VALUES (-1, -1)",
    "SELECT * FROM few",
    "SELECT k AS mz_diff, k, v AS k FROM t",
    # Answered anew.
    "SELECT k, count(*), min(v) FROM t GROUP BY k",
    "SELECT t.v, other.v FROM t JOIN other USING (k)",
)


@pytest.fixture
def database(server: ServerProcess) -> Iterator[str]:
    name = f"follow_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE DATABASE {name}".encode())
        yield server.sql_dsn.replace("dbname=materialize", f"dbname={name}")
        c.execute(f"DROP DATABASE {name} CASCADE".encode())


def now(c: Connection) -> int:
    (row,) = c.execute("SELECT mz_now()").fetchall()
    return int(row[0])


def history(c: Connection) -> tuple[int, int]:
    """Writes to both tables; the times before and after."""
    c.execute("CREATE TABLE t (k int, v text, n int)")
    c.execute("CREATE TABLE other (k int, v text)")
    c.execute("CREATE VIEW few AS SELECT k, v, n FROM t WHERE n > 2")
    c.execute("INSERT INTO t VALUES (1, 'v1', 1), (2, 'v2', 2), (2, 'v2', 2)")
    begin = now(c)
    for n in range(3, 6):
        c.execute("INSERT INTO t VALUES (%s, %s, %s), (%s, NULL, NULL)", [n % 4, f"v{n}", n, n % 4])
        c.execute("INSERT INTO other VALUES (%s, 'w')", [n % 5])
    c.execute("UPDATE t SET v = 'V' || k WHERE k > 1")
    c.execute("DELETE FROM t WHERE v IS NULL OR k = 2")
    c.execute("DELETE FROM other WHERE k = 0")
    return begin, now(c)


def test_snapshot_and_changes_are_the_answer(server: ServerProcess, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as c:
        begin, end = history(c)
        for query in QUERIES:
            for snapshot in (True, False) if query in QUERIES[:2] else (True,):
                options = f"WITH (SNAPSHOT = {snapshot}, PROGRESS) AS OF {begin} UP TO {end + 1}"
                rows: Counter[tuple[Any, ...]] = Counter()
                if not snapshot:
                    rows += Counter(c.execute(f"{query} AS OF {begin}".encode()).fetchall())
                last = begin
                for at, progressed, diff, *row in c.cursor().stream(
                    f"SUBSCRIBE ({query}) {options}".encode()
                ):
                    assert int(at) >= last
                    last = int(at)
                    if not progressed:
                        rows[tuple(row)] += diff
                answer = Counter(c.execute(f"{query} AS OF {end}".encode()).fetchall())
                assert (+rows, last) == (answer, end + 1), query
                assert not -rows


def test_readers_of_many_queries_get_what_is_committed(server: ServerProcess, database: str) -> None:
    """Twenty queries at once, over the changes of one table."""
    got: dict[int, list[tuple[Any, ...]]] = {n: [] for n in range(20)}
    ready = threading.Barrier(21, timeout=300)

    def read(n: int) -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            seen = ready
            query = f"SUBSCRIBE (SELECT a, b + {n} FROM t WHERE a = {n} OR b = 100) WITH (PROGRESS)"
            for _, progressed, diff, *row in mine.cursor().stream(query.encode()):
                if progressed:
                    if seen is not None:
                        seen.wait()
                        seen = None
                    continue
                got[n].append((diff, *row))
                if row[1] == 100 + n:
                    return

    with psycopg.connect(database, autocommit=True) as c:
        c.execute("CREATE TABLE t (a int, b int)")
        threads = [threading.Thread(target=read, args=(n,)) for n in got]
        for thread in threads:
            thread.start()
        ready.wait()
        for b in range(5):
            c.execute("INSERT INTO t SELECT a, %s FROM generate_series(0, 19) AS a", [b])
        c.execute("INSERT INTO t VALUES (-1, 100)")
        for thread in threads:
            thread.join(300)
    for n, rows in got.items():
        assert rows == [*((1, n, b + n) for b in range(5)), (1, -1, 100 + n)]


def test_an_error_in_a_change_ends_it_with_its_text(server: ServerProcess, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as c, psycopg.connect(database, autocommit=True) as w:
        c.execute("CREATE TABLE t (a int)")
        c.execute("INSERT INTO t VALUES (5)")
        rows: list[tuple[Any, ...]] = []
        with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"):
            for row in c.cursor().stream(b"SUBSCRIBE (SELECT 10 / a FROM t)"):
                rows.append(row[1:])
                w.execute(b"INSERT INTO t VALUES (2)" if len(rows) == 1 else b"INSERT INTO t VALUES (0)")
        assert rows == [(1, 2), (1, 5)]
        assert c.execute("SELECT count(*) FROM t").fetchall() == [(3,)]


def test_a_dropped_input_ends_it(server: ServerProcess, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as c, psycopg.connect(database, autocommit=True) as w:
        c.execute("CREATE TABLE t (a int)")
        c.execute("INSERT INTO t VALUES (5)")
        with pytest.raises(psycopg.errors.UndefinedObject, match="was dropped"):
            for _ in c.cursor().stream(b"SUBSCRIBE (SELECT a + 1 FROM t WHERE a > 2)"):
                w.execute("DROP TABLE t")


def test_as_of_before_what_is_known(server: ServerProcess, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as c:
        c.execute("CREATE TABLE t (a int)")
        with pytest.raises(psycopg.Error, match="could not find a valid timestamp") as e:
            c.execute("SUBSCRIBE (SELECT a + 1 FROM t) WITH (SNAPSHOT = false) AS OF 1")
        assert e.value.sqlstate == "22000" and '"t" is readable from' in str(e.value)
