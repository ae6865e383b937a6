"""asyncpg asks pg_type about types that it does not know: ours, arrays of them, and codecs by name; and it
takes connections back into a pool as they were."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from support.server import ServerProcess


def ask(server: ServerProcess, database: str, work: Any) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(
            host="127.0.0.1", port=server.sql_port, user="materialize", database=database, timeout=300
        )
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


def test_types_of_ours(server: ServerProcess, database: str) -> None:
    async def work(c: Any) -> list[Any]:
        return [
            await c.fetchval("SELECT 7::uint2"),
            await c.fetchval("SELECT 18446744073709551615::uint8"),
            await c.fetchval("SELECT '{1,2}'::int list"),
            await c.fetchval("SELECT $1::int4[]", [1, None]),
        ]

    assert ask(server, database, work) == ["7", "18446744073709551615", "{1,2}", [1, None]]


def test_the_catalogs_own_types(server: ServerProcess, database: str) -> None:
    async def work(c: Any) -> list[Any]:
        row = await c.fetchrow("SELECT oid, relname, relkind, reloptions FROM pg_class WHERE oid = $1", 1259)
        names = await c.fetch("SELECT typname FROM pg_type WHERE oid = any($1::oid[]) ORDER BY 1", [23, 25])
        return [tuple(row), [r["typname"] for r in names]]

    assert ask(server, database, work) == [(1259, "pg_class", b"r", None), ["int4", "text"]]


def test_a_codec_by_name(server: ServerProcess, database: str) -> None:
    async def work(c: Any) -> Any:
        await c.set_type_codec("uint8", encoder=str, decoder=int, schema="pg_catalog")
        prepared = await c.prepare("SELECT 5::uint8 AS n")
        return prepared.get_attributes()[0].type.name, await prepared.fetchval()

    assert ask(server, database, work) == ("uint8", 5)


def test_a_pool_takes_connections_back(server: ServerProcess, database: str) -> None:
    async def main() -> list[Any]:
        pool = await asyncpg.create_pool(
            host="127.0.0.1",
            port=server.sql_port,
            user="materialize",
            database=database,
            min_size=1,
            max_size=1,
            timeout=300,
        )
        found: list[Any] = []
        async with pool:
            for _ in range(2):
                async with pool.acquire() as connection:
                    found.append(await connection.fetchval("SHOW statement_timeout"))
                    await connection.execute("SET statement_timeout = '5min'")
        return found

    assert asyncio.run(main()) == ["0", "0"]
