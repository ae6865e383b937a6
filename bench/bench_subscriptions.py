"""Durable subscriptions: how soon a reader has a commit, and how many acknowledgements a server writes."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from pathlib import Path

import psycopg

import tidemill
from bench.report import Figure, p50_p99, percentile
from support.server import ServerProcess

# Readers that acknowledge at the same time, each its own subscription.
READERS = 64


def measure(*, quick: bool = False) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        server = ServerProcess(Path(folder) / "data")
        server.spark = False  # a table needs none
        try:
            server.start()
            return [
                _latency(server.sql_dsn, 100 if quick else 1000),
                asyncio.run(_acknowledgements(server.sql_dsn, 3.0 if quick else 15.0)),
            ]
        finally:
            server.close()


def _latency(dsn: str, commits: int) -> Figure:
    """From the moment at which INSERT is sent to that at which its row is an object of the reader's program.
    The reader acknowledges each batch."""
    sent: dict[int, float] = {}
    came: dict[int, float] = {}
    with tidemill.connect(dsn) as db, psycopg.connect(dsn, autocommit=True) as writer:
        db.execute("CREATE TABLE t (id int)")
        db.execute("CREATE SUBSCRIPTION s FOR t")

        def read() -> None:
            with db.consume("s") as consumer:
                for batch in consumer:
                    now = time.perf_counter()
                    came.update((row["id"], now) for row in batch.rows())
                    consumer.acknowledge()
                    if len(came) == commits:
                        return

        reader = threading.Thread(target=read)
        reader.start()
        for n in range(commits):
            sent[n] = time.perf_counter()
            writer.execute(f"INSERT INTO t VALUES ({n})".encode())
            time.sleep(0.01)
        reader.join()
    times = [came[n] - sent[n] for n in range(commits)]
    met = percentile(times, 99) <= 0.1
    return Figure("INSERT sent -> row at the reader", p50_p99(times), "p99 <= 100 ms", met)


async def _acknowledgements(dsn: str, seconds: float) -> Figure:
    """Each moves a position, and is durable when it is answered."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        for n in range(READERS):
            await admin.execute(f"CREATE SUBSCRIPTION s{n} FOR t WITH (SNAPSHOT = false)".encode())
    done = 0
    until = time.monotonic() + seconds

    async def acknowledge(n: int) -> None:
        nonlocal done
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as c:
            while time.monotonic() < until:
                # Times are milliseconds of the clock: a little later than the last one, and surely past.
                position = time.time_ns() // 1_000_000 - 50
                await c.execute(f"ACKNOWLEDGE SUBSCRIPTION s{n} TO %s".encode(), (position,))
                done += 1

    await asyncio.sleep(0.1)
    began = time.monotonic()
    await asyncio.gather(*(acknowledge(n) for n in range(READERS)))
    rate = done / (time.monotonic() - began)
    return Figure(f"acknowledgements, {READERS} readers", f"{rate:,.0f}/s", ">= 2,000/s", rate >= 2000)
