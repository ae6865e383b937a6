"""A hundred different filtered queries over one relation: from the commit to the row at each client.

Every reader is a connection of its own, all in this process; each sees its hundredth of what a tick writes.
"""

from __future__ import annotations

import asyncio
import time

import psycopg

from bench.report import Figure, p50_p99, percentile
from bench.serving import serving
from support.server import ServerProcess

# Seconds between two commits, and what is aimed for from a commit to its rows.
TICK_SECONDS = 1.0
AIM_SECONDS = 2.5
# Ticks that are not counted: the JVM learns the plan.
WARM_TICKS = 5

# The filters cannot fail and are one projection of a job, or they compute and are branches of a union.
PLAIN = (
    "SELECT tick, id, amount + 1 AS more, upper(note) AS note FROM load WHERE region = 'r{n}' AND amount >= 0"
)
COMPUTED = "SELECT tick, id, upper(note) AS note FROM load WHERE id % {queries} = {n} AND amount + 1 > {n}"


async def _read(dsn: str, query: str, ticks: int, ready: asyncio.Event, seen: dict[int, float]) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as c:
        cursor = c.cursor()
        statement = f"SUBSCRIBE ({query}) WITH (SNAPSHOT = false, PROGRESS)"
        async for row in cursor.stream(statement.encode()):
            ready.set()
            if not row[1]:
                seen[int(row[3])] = time.monotonic()
                if len(seen) == ticks:
                    return


async def _write(dsn: str, ticks: int, rows: int, queries: int) -> list[float]:
    """The moments at which the ticks were confirmed."""
    committed: list[float] = []
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as c:
        began = time.monotonic()
        for tick in range(ticks):
            await asyncio.sleep(max(0.0, began + tick * TICK_SECONDS - time.monotonic()))
            first = tick * rows
            values = ", ".join(
                f"({tick}, {n}, 'r{n % queries}', {n % 1000 + queries}, 'note {n}')"
                for n in range(first, first + rows)
            )
            await c.execute(f"INSERT INTO load VALUES {values}".encode())
            committed.append(time.monotonic())
    return committed


async def _run(server: ServerProcess, template: str, queries: int, rows: int, ticks: int) -> list[float]:
    async with await psycopg.AsyncConnection.connect(server.sql_dsn, autocommit=True) as c:
        await c.execute("DROP TABLE IF EXISTS load")
        await c.execute("CREATE TABLE load (tick int8, id int8, region text, amount int4, note text)")
    seen: list[dict[int, float]] = [{} for _ in range(queries)]
    readers: list[asyncio.Task[None]] = []
    # Ten at a time: this measures what goes on, not how a hundred plans are made at once.
    for begin in range(0, queries, 10):
        waiting: list[asyncio.Event] = []
        for n in range(begin, min(queries, begin + 10)):
            ready = asyncio.Event()
            waiting.append(ready)
            query = template.format(n=n, queries=queries)
            readers.append(asyncio.create_task(_read(server.sql_dsn, query, ticks, ready, seen[n])))
        for ready in waiting:
            await ready.wait()
    committed = await _write(server.sql_dsn, ticks, rows, queries)
    await asyncio.wait_for(asyncio.gather(*readers), 120)
    return [
        max(0.0, arrived[tick] - committed[tick]) for arrived in seen for tick in range(WARM_TICKS, ticks)
    ]


def measure_queries(*, quick: bool) -> list[Figure]:
    queries, rows, ticks = (10, 100, WARM_TICKS + 3) if quick else (100, 1000, WARM_TICKS + 30)
    figures: list[Figure] = []
    with serving() as server:
        for name, template in (("", PLAIN), (", filters that compute", COMPUTED)):
            delays = asyncio.run(_run(server, template, queries, rows, ticks))
            figures.append(
                Figure(
                    f"{queries} filtered queries{name}, {rows} changes a second",
                    p50_p99(delays),
                    f"p99 <= {AIM_SECONDS} s",
                    percentile(delays, 99) <= AIM_SECONDS,
                )
            )
    return figures
