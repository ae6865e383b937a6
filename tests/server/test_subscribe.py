"""SUBSCRIBE over a real socket: what is sent adds up to what SELECT says, in every output and by every way to
read it; and it ends when it should."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess, connected

Connection = psycopg.Connection[tuple[Any, ...]]


def until(server: ServerProcess, database: str, statement: str, end: int) -> list[tuple[Any, ...]]:
    """All rows of a subscription up to a time."""
    with connected(server, database) as c:
        return list(c.cursor().stream(f"{statement} UP TO {end}".encode()))


def now(c: Connection) -> int:
    (row,) = c.execute("SELECT mz_now()").fetchall()
    return int(row[0])


def history(c: Connection, seed: int, statements: int = 30) -> tuple[int, int]:
    """Random writes; the times before and after."""
    rng = random.Random(seed)
    c.execute("CREATE TABLE t (k int, v text, n int)")
    begin = now(c)
    for n in range(statements):
        k = rng.randrange(6)
        match rng.randrange(4):
            case 0:
                c.execute("DELETE FROM t WHERE k = %s", [k])
            case 1:
                c.execute("UPDATE t SET v = %s WHERE k = %s", [f"v{n}", k])
            case _:
                c.execute("INSERT INTO t VALUES (%s, %s, %s), (%s, 'w', NULL)", [k, f"v{n}", n, k])
    return begin, now(c)


def test_snapshot_and_changes_are_the_relation_at_every_progress(
    server: ServerProcess, database: str
) -> None:
    with connected(server, database) as c:
        begin, end = history(c, 1)
        c.execute("CREATE VIEW doubled AS SELECT k, count(*) AS many FROM t GROUP BY k")
        for relation, columns in (("t", "*"), ("doubled", "*")):
            statement = f"SUBSCRIBE {relation} WITH (PROGRESS) AS OF {begin}"
            rows: Counter[tuple[Any, ...]] = Counter()
            told: list[int] = []
            for at, progressed, diff, *row in until(server, database, statement, end + 1):
                assert not told or at >= told[-1]
                if not progressed:
                    rows[tuple(row)] += diff
                    continue
                told.append(int(at))
                if int(at) <= begin or len(told) % 5:
                    continue
                query = f"SELECT {columns} FROM {relation} AS OF {int(at) - 1}"
                assert +rows == Counter(c.execute(query.encode()).fetchall()), at
            assert told[0] == begin and told[-1] == end + 1
            final = c.execute(f"SELECT {columns} FROM {relation} AS OF {end}".encode()).fetchall()
            assert +rows == Counter(final)


def test_each_output_tells_the_same_story(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE kv (key int, value int)")
        begin = now(c)
        c.execute("INSERT INTO kv VALUES (1, 2), (2, 4)")
        c.execute("UPDATE kv SET value = 10 WHERE key = 1")
        c.execute("INSERT INTO kv VALUES (3, 6)")
        c.execute("DELETE FROM kv")
        c.execute("INSERT INTO kv VALUES (1, 1), (1, 2)")
        end = now(c) + 1
    bounds = f"AS OF {begin}"
    upsert = until(server, database, f"SUBSCRIBE kv {bounds}", end)
    assert Counter((d, k, v) for _, d, k, v in upsert) == Counter(
        [
            *[(1, 1, 2), (1, 2, 4), (-1, 1, 2), (1, 1, 10), (1, 3, 6)],
            *[(-1, 1, 10), (-1, 2, 4), (-1, 3, 6), (1, 1, 1), (1, 1, 2)],
        ]
    )
    with connected(server, database) as c:
        said = c.cursor().stream(f"SUBSCRIBE kv {bounds} UP TO {end} ENVELOPE UPSERT (KEY (key))".encode())
        assert [row[1:] for row in said] == [
            ("upsert", 1, 2),
            ("upsert", 2, 4),
            ("upsert", 1, 10),
            ("upsert", 3, 6),
            ("delete", 1, None),
            ("delete", 2, None),
            ("delete", 3, None),
            ("key violation", 1, None),
        ]
        said = c.cursor().stream(f"SUBSCRIBE kv {bounds} UP TO {end} ENVELOPE DEBEZIUM (KEY (key))".encode())
        assert [row[1:] for row in said] == [
            ("insert", 1, None, 2),
            ("insert", 2, None, 4),
            ("upsert", 1, 2, 10),
            ("insert", 3, None, 6),
            ("delete", 1, 10, None),
            ("delete", 2, 4, None),
            ("delete", 3, 6, None),
            ("key violation", 1, None, None),
        ]


def test_a_reader_gets_what_is_committed_while_it_reads(server: ServerProcess, database: str) -> None:
    found: list[tuple[Any, ...]] = []
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (a int)")
        c.execute("INSERT INTO t VALUES (0)")

        def read() -> None:
            with connected(server, database) as mine:
                for row in mine.cursor().stream(b"SUBSCRIBE t"):
                    found.append(row)
                    if row[2] == 5:
                        mine.cancel_safe()

        threads = [threading.Thread(target=_ignoring_cancel, args=(read,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        _wait_for(lambda: len(found) == 3)
        for n in range(1, 6):
            c.execute("INSERT INTO t VALUES (%s)", [n])
        for thread in threads:
            thread.join(180)
    assert Counter(row[2] for row in found) == Counter(dict.fromkeys(range(6), 3))


def _ignoring_cancel(read: Any) -> None:
    try:
        read()
    except psycopg.errors.QueryCanceled:
        pass


def _wait_for(what: Any) -> None:
    deadline = time.monotonic() + 180
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cursor_loses_and_repeats_nothing(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c, connected(server, database) as writer:
        c.execute("CREATE TABLE t (a int)")
        c.execute("INSERT INTO t SELECT * FROM generate_series(1, 10)")
        got: list[int] = []
        with c.transaction():
            c.execute("DECLARE c CURSOR FOR SUBSCRIBE t")
            assert c.execute("FETCH 0 c").fetchall() == []
            got += [row[2] for row in c.execute("FETCH 4 c").fetchall()]
            assert len(got) == 4
            got += [row[2] for row in c.execute("FETCH ALL c WITH (TIMEOUT = '0s')").fetchall()]
            assert sorted(got) == list(range(1, 11))
            assert c.execute("FETCH ALL c WITH (TIMEOUT = '100ms')").fetchall() == []
            writer.execute("INSERT INTO t VALUES (11), (12)")
            got += [row[2] for row in c.execute("FETCH ALL c").fetchall()]
            assert sorted(got) == list(range(1, 13))


def test_copy_and_its_end(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (a int, b text)")
        c.execute("INSERT INTO t VALUES (1, 'x')")
        at = now(c)
        with c.cursor().copy(f"COPY (SUBSCRIBE t AS OF {at} UP TO {at + 1}) TO STDOUT".encode()) as copy:
            assert b"".join(bytes(data) for data in copy).decode() == f"{at}\t1\t1\tx\n"


def test_a_system_relation_tells_what_is_new(server: ServerProcess, database: str) -> None:
    first, second = f"a_{database}", f"b_{database}"
    with connected(server, database) as c, connected(server, database) as reader:
        c.execute(f"CREATE TABLE {first} (a int)".encode())
        query = f"SELECT name FROM mz_tables WHERE name LIKE '%{database}'"
        rows = reader.cursor().stream(f"SUBSCRIBE ({query})".encode())
        assert next(rows)[1:] == (1, first)
        c.execute(f"CREATE TABLE {second} (a int)".encode())
        assert next(rows)[1:] == (1, second)
        c.execute(f"DROP TABLE {first}".encode())
        assert next(rows)[1:] == (-1, first)
        reader.cancel()
        with pytest.raises(psycopg.errors.QueryCanceled):
            next(rows)


def test_a_constant_completes_and_empty_bounds_are_told(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        rows = c.execute("SUBSCRIBE (VALUES (1, 'a'), (1, 'a'), (2, 'b')) ENVELOPE UPSERT (KEY (column1))")
        assert [row[1:] for row in rows.fetchall()] == [("key violation", 1, None), ("upsert", 2, "b")]
        notices: list[str] = []
        c.add_notice_handler(lambda n: notices.append(n.message_primary or ""))
        c.execute("CREATE TABLE t (a int)")
        at = now(c)
        assert c.execute(f"SUBSCRIBE t AS OF {at} UP TO {at}".encode()).fetchall() == []
        assert any("AS OF equals UP TO" in notice for notice in notices)


def test_a_dropped_relation_ends_it(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c, connected(server, database) as other:
        c.execute("CREATE TABLE t (a int)")
        c.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(psycopg.errors.UndefinedObject) as e:
            for _ in c.cursor().stream(b"SUBSCRIBE t"):
                other.execute("DROP TABLE t")
        assert e.value.diag.message_primary == f"relation '{database}.public.t' was dropped"


def test_a_relation_that_is_dropped_while_the_first_time_is_waited_for(
    server: ServerProcess, database: str
) -> None:
    with connected(server, database) as c, connected(server, database) as other:
        c.execute("CREATE TABLE t (a int)")

        def waits(notice: psycopg.errors.Diagnostic) -> None:
            other.execute("DROP TABLE IF EXISTS t")

        c.add_notice_handler(waits)
        with pytest.raises(psycopg.errors.UndefinedObject, match="was dropped"):
            c.execute("SUBSCRIBE t AS OF now() + INTERVAL '15 s' UP TO LATEST")


@pytest.mark.parametrize(
    ("statement", "state", "text"),
    [
        ("SUBSCRIBE t ENVELOPE UPSERT (KEY (x))", "42703", 'column "x" does not exist'),
        ("SUBSCRIBE nothing", "42P01", "nothing"),
        ("SUBSCRIBE t AS OF 2000000000000000000 UP TO 5", "22000", "subscription lower bound (`AS OF`)"),
        ("SUBSCRIBE t AS OF 1", "22000", "could not find a valid timestamp for the query"),
        ("SUBSCRIBE (SELECT now(), a FROM t)", "0A000", "now()"),
        ("TAIL t", "42601", "TAIL has been renamed to SUBSCRIBE"),
    ],
)
def test_errors(server: ServerProcess, database: str, statement: str, state: str, text: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (a int)")
        with pytest.raises(psycopg.Error) as e:
            c.execute(statement.encode())
        assert (e.value.sqlstate, text in str(e.value)) == (state, True), str(e.value)


def test_it_is_the_only_read_of_its_transaction(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (a int)")
        with pytest.raises(psycopg.Error, match="must be the only read statement"), c.transaction():
            c.execute("SELECT * FROM t")
            c.execute("DECLARE c CURSOR FOR SUBSCRIBE t")


def test_sources_and_their_progress(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE SOURCE s FROM LOAD GENERATOR COUNTER (TICK INTERVAL '100ms', UP TO 20)")
        _wait_for(lambda: c.execute("SELECT count(*) FROM s").fetchall() == [(20,)])
        at = now(c)
        rows = c.execute(f"SUBSCRIBE s AS OF {at} UP TO {at + 1}".encode()).fetchall()
        assert sorted(row[2] for row in rows) == list(range(1, 21))
        rows = c.execute(f"SUBSCRIBE s_progress AS OF {at} UP TO {at + 1}".encode()).fetchall()
        assert [(row[1], int(row[2])) for row in rows] == [(1, 20)]
