"""The client library: how fast a snapshot arrives beside other ways to read the same SUBSCRIBE (and what of
its processor the client needs for a row), and how soon a commit is in a live table."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg

import tidemill
from bench.report import Figure, p50_p99
from bench.serving import serving
from support.server import ServerProcess

TABLE = "CREATE TABLE c (id bigint, k int, name text, at timestamptz, x double precision)"
ROW = "{n}\t{k}\tname {n}\t2026-11-15 10:00:{s:02}.{m:03}+00\t{x}\n"
ROUNDS = 3


def measure(*, quick: bool = False) -> list[Figure]:
    rows, commits = (20_000, 20) if quick else (500_000, 300)
    with serving(ready=False) as server:
        at = _fill(server, rows)
        ways: dict[str, Callable[[], int]] = {
            "psycopg, cursor.stream": lambda: _psycopg(server, at),
            "asyncpg, fetch": lambda: asyncio.run(_asyncpg(server, at)),
            "tidemill.client, subscribe": lambda: _subscribe(server, at),
            "tidemill.client, asyncio": lambda: asyncio.run(_subscribe_async(server, at)),
            "tidemill.client, live table": lambda: _live(server),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        # In turns, for machines are noisy.
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began, cpu = time.perf_counter(), time.process_time()
                count = way()
                rates[name].append(count / (time.perf_counter() - began))
                costs[name].append((time.process_time() - cpu) / count * 1e6)
                if count not in (rows, rows + 2):  # with or without progress
                    raise AssertionError(f"{name}: {count} rows instead of {rows}")
        figures = [
            Figure(
                f"snapshot of {rows:,} rows of 5 columns: {name}",
                f"{statistics.median(rates[name]):,.0f} rows/s, {statistics.median(costs[name]):.1f} µs each",
                "",
            )
            for name in ways
        ]
        return [
            *figures,
            Figure("commit -> on_update of a live table", p50_p99(_delays(server, commits)), ""),
        ]


def _fill(server: ServerProcess, rows: int) -> int:
    """A table, and a time at which it has its rows."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        with connection.cursor().copy("COPY c FROM STDIN") as copy:
            copy.write(
                "".join(ROW.format(n=n, k=n % 1000, s=n % 60, m=n % 1000, x=n / 7) for n in range(rows))
            )
        (found,) = connection.execute("SELECT mz_now()").fetchall()
        return int(found[0])


def _statement(at: int) -> str:
    return f"SUBSCRIBE c WITH (PROGRESS) AS OF {at} UP TO {at + 1}"


def _psycopg(server: ServerProcess, at: int) -> int:
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        return sum(1 for _ in connection.cursor().stream(_statement(at).encode()))


async def _asyncpg(server: ServerProcess, at: int) -> int:
    connection: Any = await asyncpg.connect(  # pyright: ignore[reportUnknownMemberType]
        host="127.0.0.1", port=server.sql_port, user="materialize", database="materialize"
    )
    try:
        return len(await connection.fetch(_statement(at)))
    finally:
        await connection.close()


def _subscribe(server: ServerProcess, at: int) -> int:
    with tidemill.connect(server.sql_dsn) as db:
        return sum(len(batch) for batch in db.subscribe("c", as_of=at, up_to=at + 1))


async def _subscribe_async(server: ServerProcess, at: int) -> int:
    async with await tidemill.connect_async(server.sql_dsn) as db:
        return sum([len(batch) async for batch in await db.subscribe("c", as_of=at, up_to=at + 1)])


def _live(server: ServerProcess) -> int:
    with tidemill.connect(server.sql_dsn) as db, db.live_table("c", key=["id"]) as live:
        next(iter(live))
        return len(live)


def _delays(server: ServerProcess, commits: int) -> list[float]:
    """Seconds from the answer to a commit until the callback, one after another."""
    seen = threading.Event()
    with tidemill.connect(server.sql_dsn) as db:
        db.execute("CREATE TABLE d (id bigint)")
        with db.live_table("d", key=["id"], on_update=lambda _table, _changes: seen.set()).start() as live:
            live.wait(60)
            found: list[float] = []
            for n in range(commits):
                seen.clear()
                db.execute(f"INSERT INTO d VALUES ({n})")
                began = time.perf_counter()
                if not seen.wait(60):
                    raise AssertionError("a commit did not reach the live table")
                found.append(time.perf_counter() - began)
            return found
