"""What drivers see of prepared statements whose result has changed: the new rows, or an error, and never rows
that are not as they were described."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from support.server import ServerProcess

pytestmark = pytest.mark.server

CHANGED = "cached plan must not change result type"


@pytest.fixture(scope="module")
def dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server; nothing here needs its Spark."""
    process = ServerProcess(tmp_path_factory.mktemp("kept") / "data")
    process.spark = False
    try:
        yield process.start().sql_dsn
    finally:
        process.close()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(dsn, autocommit=True) as c:
        yield c


def test_libpq_fetches_what_the_cursor_returns_now(
    connection: psycopg.Connection[tuple[Any, ...]],
) -> None:
    with connection.transaction():
        connection.execute("DECLARE c CURSOR FOR SELECT 1 AS a")
        assert connection.execute("FETCH ALL c", prepare=True).fetchall() == [(1,)]
        connection.execute("CLOSE c")
        connection.execute("DECLARE c CURSOR FOR SELECT 1 AS a, 'x' AS b")
        assert connection.execute("FETCH ALL c", prepare=True).fetchall() == [(1, "x")]


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE t ADD COLUMN b text", "DROP TABLE t; CREATE TABLE t (a text)"],
)
def test_libpq_is_told_that_a_result_has_changed(
    connection: psycopg.Connection[tuple[Any, ...]], dsn: str, change: str
) -> None:
    connection.execute("DROP TABLE IF EXISTS t")
    connection.execute("CREATE TABLE t (a int)")
    query = "INSERT INTO t VALUES (1) RETURNING *"
    assert connection.execute(query, prepare=True).fetchall() == [(1,)]
    with psycopg.connect(dsn, autocommit=True) as other:
        for statement in change.split("; "):
            other.execute(statement.encode())
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=CHANGED):
        connection.execute(query, prepare=True)


def test_now_is_that_of_each_run(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    query = "SELECT now() FROM pg_namespace LIMIT 1"
    moments = [connection.execute(query, prepare=True).fetchall()[0][0] for _ in range(3)]
    assert moments[0] < moments[1] < moments[2]


def _asyncpg(dsn: str) -> Any:
    parts = dict(p.split("=") for p in dsn.split())
    return asyncpg.connect(
        host=parts["host"], port=int(parts["port"]), user="materialize", database="materialize"
    )


def test_asyncpg_is_told_that_a_cursor_is_another(dsn: str) -> None:
    """It describes the statement and not the portal, so that it must not get rows of another form."""

    async def run() -> None:
        c = await _asyncpg(dsn)
        try:
            async with c.transaction():
                await c.execute("DECLARE c CURSOR FOR SELECT 1 AS a")
                fetch = await c.prepare("FETCH ALL c")
                assert [tuple(r) for r in await fetch.fetch()] == [(1,)]
                await c.execute("CLOSE c; DECLARE c CURSOR FOR SELECT 2 AS a")
                assert [tuple(r) for r in await fetch.fetch()] == [(2,)]
                await c.execute("CLOSE c")
                await c.execute("DECLARE c CURSOR FOR SELECT 1 AS a, 'x' AS b")
                with pytest.raises(asyncpg.InvalidCachedStatementError):
                    await fetch.fetch()
                raise _Done
        except _Done:
            pass
        finally:
            await c.close()

    asyncio.run(run())


class _Done(Exception):
    """Rolls the transaction back."""


def test_asyncpg_prepares_again(dsn: str) -> None:
    """Outside of a transaction it mends a changed result by itself, told by the error."""

    async def run() -> None:
        c = await _asyncpg(dsn)
        try:
            await c.execute("DROP TABLE IF EXISTS t")
            await c.execute("CREATE TABLE t (a int)")
            query = "INSERT INTO t VALUES (1) RETURNING *"
            assert [tuple(r) for r in await c.fetch(query)] == [(1,)]
            await c.execute("ALTER TABLE t ADD COLUMN b text")
            assert [tuple(r) for r in await c.fetch(query)] == [(1, None)]
        finally:
            await c.close()

    asyncio.run(run())
