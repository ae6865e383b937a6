"""Statements over the wire, against a real server: INSERT alone and from many sessions, a point SELECT,
SELECT 1."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import psycopg

from bench.report import Figure, p50_p99
from bench.serving import serving

SESSIONS = 50


def _times(repeat: int, do: Callable[[int], object]) -> list[float]:
    times: list[float] = []
    for n in range(repeat):
        began = time.perf_counter()
        do(n)
        times.append(time.perf_counter() - began)
    return times


def measure(*, quick: bool = False) -> list[Figure]:
    repeat = 20 if quick else 200
    figures: list[Figure] = []
    with serving() as server, psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE t (id bigint, name text)")
        one = _times(10 * repeat, lambda _: c.execute("SELECT 1").fetchone())[repeat:]
        figures.append(Figure("SELECT 1", p50_p99(one), "p50 <= 3 ms", statistics.median(one) <= 0.003))
        insert = _times(3 * repeat, lambda n: c.execute("INSERT INTO t VALUES (%s, %s)", (n, f"name {n}")))[
            repeat:
        ]
        figures.append(
            Figure("INSERT of one row", p50_p99(insert), "p50 <= 20 ms", statistics.median(insert) <= 0.02)
        )
        rate = _many(server.sql_dsn, 1.0 if quick else 10.0)
        figures.append(
            Figure(
                f"INSERT, {SESSIONS} sessions, one row each",
                f"{rate:.0f} rows/s",
                ">= 2,000 rows/s",
                rate >= 2000,
            )
        )
        c.execute("CREATE TABLE small (id bigint, name text)")
        c.execute(
            ("INSERT INTO small VALUES " + ", ".join(f"({n}, 'name {n}')" for n in range(1000))).encode()
        )
        point = _times(repeat, lambda n: c.execute("SELECT name FROM small WHERE id = %s", (n,)).fetchone())
        half = point[repeat // 4 :]
        figures.append(
            Figure(
                "point SELECT, 1,000 rows", p50_p99(half), "p50 <= 150 ms", statistics.median(half) <= 0.15
            )
        )
    return figures


def _many(dsn: str, seconds: float) -> float:
    """Rows per second that `SESSIONS` sessions insert, one row a statement."""
    counts = [0] * SESSIONS
    ready = threading.Barrier(SESSIONS + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as c:
            c.execute("INSERT INTO t VALUES (0, 'warm')")
            ready.wait()
            while not stop.is_set():
                c.execute("INSERT INTO t VALUES (%s, %s)", (number, "name"))
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(SESSIONS)]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)
