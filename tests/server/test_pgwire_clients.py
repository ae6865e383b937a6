"""The clients people use, against the wire server: psycopg 3, asyncpg, psql."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import subprocess
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg import sql
from tablets import Tablets, table
from wireserver import PSQL, Served

from tidemill.types import model

ROWS = [
    (1, "plain", Decimal("1.50"), True, dt.date(2024, 2, 29), b"\x00\xff"),
    (2, 'tab\there, "quote", back\\slash\nand a line', None, False, None, b""),
    (3, None, Decimal("-0.01"), None, dt.date(1, 1, 1), None),
]
COLUMNS = [
    ("id", model.INT8),
    ("name", model.TEXT),
    ("amount", model.numeric(10, 2)),
    ("ok", model.BOOL),
    ("day", model.DATE),
    ("raw", model.BYTEA),
]


@pytest.fixture
def served() -> Iterator[Served]:
    engine = Tablets()
    engine.tables["t"] = table(*COLUMNS, rows=ROWS)
    engine.tables["into"] = table(*COLUMNS)
    with Served(engine) as served:
        yield served


@pytest.fixture
def connection(served: Served) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(served.dsn, autocommit=True) as connection:
        yield connection


# -- psycopg


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_rows(connection: psycopg.Connection[Any], binary: bool) -> None:
    with connection.cursor(binary=binary) as cursor:
        assert cursor.execute("SELECT * FROM t").fetchall() == ROWS
        assert [d.name for d in cursor.description or []] == [name for name, _ in COLUMNS]
        values = (7, "x", 1.5, UUID(int=7))
        cursor.execute("SELECT %s::int8, %s::text, %s::float8, %s::uuid", values)
        assert cursor.fetchall() == [values]


def test_psycopg_prepared_statements(connection: psycopg.Connection[Any]) -> None:
    for i in range(8):
        assert connection.execute("SELECT %s::int8", (i,), prepare=True).fetchall() == [(i,)]


def test_psycopg_pipeline(connection: psycopg.Connection[Any]) -> None:
    with connection.pipeline() as pipeline:
        cursors = [connection.execute("SELECT %s::int8", (i,)) for i in range(50)]
        pipeline.sync()
        assert [c.fetchall() for c in cursors] == [[(i,)] for i in range(50)]
        after = connection.cursor()
        # The error may be here before the next statement is sent, or only when it is waited for.
        with pytest.raises(psycopg.errors.SyntaxError):
            connection.execute("select nonsense")
            after.execute("SELECT %s::int8", (1,))
            pipeline.sync()
        with contextlib.suppress(psycopg.errors.PipelineAborted):
            pipeline.sync()
        with pytest.raises(psycopg.ProgrammingError, match="no result"):
            after.fetchall()
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_psycopg_transactions_and_streams(served: Served) -> None:
    with psycopg.connect(served.dsn) as connection:
        assert connection.execute("select generate(5000)").rowcount == 5000
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        connection.rollback()
        stream = connection.cursor().stream("select generate(5000)")
        assert sum(n for (n,) in stream) == sum(range(5000))
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select broken(10)")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR


@pytest.mark.parametrize(
    "options",
    [
        sql.SQL(""),
        sql.SQL("(format csv)"),
        sql.SQL("(format csv, header)"),
        sql.SQL("(format binary)"),
    ],
    ids=["text", "csv", "header", "binary"],
)
def test_psycopg_copy_out_and_in(
    served: Served, connection: psycopg.Connection[Any], options: sql.SQL
) -> None:
    with connection.cursor().copy(sql.SQL("COPY t TO STDOUT {}").format(options)) as out:
        data = b"".join(bytes(block) for block in out)
    cursor = connection.cursor()
    with cursor.copy(sql.SQL("COPY into FROM STDIN {}").format(options)) as copy:
        for at in range(0, len(data), 7):
            copy.write(data[at : at + 7])
    assert cursor.statusmessage == "COPY 3"
    assert served.engine.rows("into") == ROWS


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_copies_rows(served: Served, connection: psycopg.Connection[Any], binary: bool) -> None:
    options = sql.SQL("(format binary)" if binary else "")
    types = ["int8", "text", "numeric", "bool", "date", "bytea"]
    with connection.cursor().copy(sql.SQL("COPY t TO STDOUT {}").format(options)) as copy:
        copy.set_types(types)
        assert list(copy.rows()) == ROWS
    with connection.cursor().copy(sql.SQL("COPY into FROM STDIN {}").format(options)) as copy:
        copy.set_types(types)
        for row in ROWS:
            copy.write_row(row)
    assert served.engine.rows("into") == ROWS


def test_psycopg_copy_errors(served: Served, connection: psycopg.Connection[Any]) -> None:
    start = connection.cursor().copy
    with (
        pytest.raises(psycopg.errors.InvalidTextRepresentation) as caught,
        start("COPY into FROM STDIN") as copy,
    ):
        copy.write(b"1\ta\t1\tt\t2024-01-01\t\\N\n")
        copy.write(b"2\ta\tmuch\tt\t2024-01-01\t\\N\n")
    assert caught.value.diag.context == 'COPY into, line 2, column amount: "much"'
    with pytest.raises(ZeroDivisionError), start("COPY into FROM STDIN") as copy:
        raise ZeroDivisionError
    assert served.engine.rows("into") == []
    assert [s.failed is not None for s in served.engine.sessions[-1].sinks] == [True, True]
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_psycopg_cancel_and_notices(served: Served, connection: psycopg.Connection[Any]) -> None:
    heard: list[str | None] = []
    connection.add_notice_handler(lambda d: heard.append(d.message_primary))
    connection.execute("select notice(hello)")
    assert heard == ["hello"]

    def cancel() -> None:
        while not served.engine.sessions[-1].open_streams:
            time.sleep(0.01)
        connection.cancel_safe()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("select sleep(30)")
    thread.join()


def test_newest_protocol_version(served: Served) -> None:
    dsn = served.dsn + " max_protocol_version=latest"
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
        connection.cancel_safe()


# -- asyncpg


def with_asyncpg(served: Served, work: Any) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=served.port, user="materialize", database="materialize"
        )
        try:
            await work(connection)
        finally:
            await connection.close()

    asyncio.run(run())


def test_asyncpg_rows_and_parameters(served: Served) -> None:
    async def work(c: Any) -> None:
        assert [tuple(r) for r in await c.fetch("SELECT * FROM t")] == ROWS
        got = await c.fetchrow("select $1::int8, $2::text, $3::timestamptz", 5, None, dt.datetime.now(dt.UTC))
        assert tuple(got)[:2] == (5, None)
        await c.executemany("select $1::int8", [(i,) for i in range(100)])
        with pytest.raises(asyncpg.UndefinedTableError) as caught:
            await c.fetch("SELECT * FROM nothing")
        assert caught.value.as_dict()["position"] == "15"

    with_asyncpg(served, work)


def test_asyncpg_cursors_are_row_limited_portals(served: Served) -> None:
    async def work(c: Any) -> None:
        session = served.engine.sessions[-1]
        async with c.transaction():
            cursor = await c.cursor("select generate(100000)")
            assert [r[0] for r in await cursor.fetch(10)] == list(range(10))
            assert [r[0] for r in await cursor.fetch(2000)] == list(range(10, 2010))
            assert session.pulled <= 5
        assert session.open_streams == 0
        async with c.transaction():
            got = [r[0] async for r in c.cursor("select generate(3210)", prefetch=100)]
        assert got == list(range(3210))

    with_asyncpg(served, work)


def test_asyncpg_copies(served: Served) -> None:
    async def work(c: Any) -> None:
        blocks: list[bytes] = []

        async def keep(block: bytes) -> None:
            blocks.append(block)

        assert await c.copy_from_table("t", output=keep, format="csv") == "COPY 3"

        async def source() -> Any:
            for block in blocks:
                yield block

        assert await c.copy_to_table("into", source=source(), format="csv") == "COPY 3"

    with_asyncpg(served, work)
    assert served.engine.rows("into") == ROWS


def test_asyncpg_timeouts_cancel(served: Served) -> None:
    async def work(c: Any) -> None:
        with pytest.raises(TimeoutError):
            await c.fetch("select sleep(30)", timeout=0.2)
        assert await c.fetchval("SELECT 1") == 1

    with_asyncpg(served, work)


# -- psql


def psql(served: Served, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(PSQL), "-X", "-h", "127.0.0.1", "-p", str(served.port), "-U", "materialize", "materialize"]
    return subprocess.run([*command, *arguments], input=given, capture_output=True, text=True, timeout=120)


def test_psql(served: Served) -> None:
    got = psql(served, "-c", "SELECT 1", "-c", "insert; insert")
    assert (got.stdout, got.returncode) == (" n \n---\n 1\n(1 row)\n\nINSERT 0 1\nINSERT 0 1\n", 0)
    got = psql(served, given="\\set FETCH_COUNT 2\nWRONG;\nselect notice(hello);\n")
    assert "ERROR:  syntax error at or near" in got.stderr
    assert "LINE 1: WRONG" in got.stderr
    assert "NOTICE:  hello" in got.stderr
    assert "(1 row)" in got.stdout


def test_psql_copies(served: Served) -> None:
    given = 'COPY into FROM STDIN CSV;\n1,"a\nb",1,t,2024-01-01,\n2,,,,,\n\\.\nCOPY into TO STDOUT;\n'
    got = psql(served, given=given)
    assert got.stdout == "COPY 2\n1\ta\\nb\t1.00\tt\t2024-01-01\t\\N\n2\t\\N\t\\N\t\\N\t\\N\t\\N\n"
    got = psql(served, "-c", "COPY into FROM STDIN", given="1\t2\n")
    assert 'ERROR:  missing data for column "amount"' in got.stderr
    assert 'COPY into, line 1: "1\t2"' in got.stderr
