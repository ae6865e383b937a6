"""A million rows of six columns to each client, text and binary."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import psycopg

from bench.bench_wire import fill
from bench.report import Figure
from support.server import ServerProcess
from tidemill.dev.jars import Bundle, cache_folder, fetch
from tidemill.dev.postgres import Postgres
from tidemill.errors import Unavailable

AIM = 0.4
QUERY = "SELECT * FROM w"
PGJDBC = Bundle("pgjdbc", ("org.postgresql:postgresql:42.7.13",), alone=True)

# From a libpq connection string and the number of rows to rows per second.
Fetch = Callable[[str, int], float]


def measure_rows(ours: ServerProcess, theirs: Postgres, *, quick: bool) -> list[Figure]:
    rows = 20_000 if quick else 1_000_000
    repeats = 1 if quick else 3
    for dsn in (ours.sql_dsn, theirs.dsn):
        with psycopg.connect(dsn, autocommit=True) as c:
            fill(c, rows)
    clients: list[tuple[str, Fetch]] = [
        ("psycopg, text", lambda dsn, n: _psycopg(dsn, n, binary=False)),
        ("psycopg, binary", lambda dsn, n: _psycopg(dsn, n, binary=True)),
        ("asyncpg, binary", _asyncpg),
    ]
    jar = _driver()
    if jar is not None:
        clients += [
            ("pgjdbc, text", lambda dsn, n: _pgjdbc(jar, dsn, n, binary=False)),
            ("pgjdbc, binary", lambda dsn, n: _pgjdbc(jar, dsn, n, binary=True)),
        ]
    return [_compare(name, run, ours.sql_dsn, theirs.dsn, rows, repeats) for name, run in clients]


def _compare(name: str, run: Fetch, ours: str, theirs: str, rows: int, repeats: int) -> Figure:
    # The first of each is not counted: a JVM warms up, a page cache fills.
    run(ours, rows)
    run(theirs, rows)
    pairs = [(run(ours, rows), run(theirs, rows)) for _ in range(repeats)]
    ratio = statistics.median(o / t for o, t in pairs)
    mine, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
    measured = f"{ratio:.2f}x ({mine / 1000:.0f}k rows/s, PostgreSQL {peer / 1000:.0f}k)"
    return Figure(f"{rows} rows x 6 to {name}", measured, f">= {AIM}x of PostgreSQL", ratio >= AIM)


def _psycopg(dsn: str, rows: int, *, binary: bool) -> float:
    with psycopg.connect(dsn, autocommit=True) as c, c.cursor(binary=binary) as cursor:
        began = time.perf_counter()
        count = sum(1 for _ in cursor.stream(QUERY, size=1000))
        taken = time.perf_counter() - began
    return _rate(rows, count, taken)


def _asyncpg(dsn: str, rows: int) -> float:
    """asyncpg asks for binary and nothing else. A cursor, so that no client holds a million records."""
    words = dict(word.split("=") for word in dsn.split())

    async def fetch() -> tuple[int, float]:
        c = await asyncpg.connect(
            host=words["host"], port=int(words["port"]), user=words["user"], database=words["dbname"]
        )
        began = time.perf_counter()
        count = 0
        async with c.transaction():
            cursor = await c.cursor(QUERY)
            while batch := await cursor.fetch(10_000):
                count += len(batch)
        taken = time.perf_counter() - began
        await c.close()
        return count, taken

    return _rate(rows, *asyncio.run(fetch()))


def _rate(rows: int, count: int, seconds: float) -> float:
    if count != rows:
        raise AssertionError(f"{count} rows instead of {rows}")
    return rows / seconds


def _driver() -> Path | None:
    """The jar of pgjdbc, Debezium's if that was ever fetched; None where there is no JDK or no jar."""
    if shutil.which("javac") is None:
        return None
    found = sorted(cache_folder().glob("debezium-postgres-*/*/postgresql-*.jar"))
    try:
        return found[0] if found else next(fetch(PGJDBC).glob("postgresql-*.jar"))
    except Unavailable:
        return None


def _pgjdbc(jar: Path, dsn: str, rows: int, *, binary: bool) -> float:
    """One JVM for each: it fetches twice, and the second time, when its code is compiled, counts."""
    words = dict(word.split("=") for word in dsn.split())
    # -1: binary from the first execution on; 0: never a prepared statement of the server's, hence text.
    url = (
        f"jdbc:postgresql://{words['host']}:{words['port']}/{words['dbname']}?user={words['user']}"
        f"&sslmode=disable&prepareThreshold={-1 if binary else 0}&binaryTransfer={str(binary).lower()}"
    )
    command = ["java", "-Xmx512m", "-cp", str(jar), str(Path(__file__).with_name("Fetch.java")), url, QUERY]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    count, seconds = run.stdout.split()
    return _rate(rows, int(count), float(seconds))
