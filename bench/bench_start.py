"""How soon a server on a new data directory answers: SQL at once, a query as soon as Spark is there."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psycopg

from bench.report import Figure, ms
from support.server import ServerProcess


def measure(*, quick: bool = False) -> list[Figure]:
    answers: list[float] = []
    firsts: list[float] = []
    warm: list[float] = []
    for _ in range(1 if quick else 3):
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
            server = ServerProcess(Path(folder) / "data")
            server.warm = True
            try:
                began = time.perf_counter()
                server.start()
                answers.append(time.perf_counter() - began)
                with psycopg.connect(server.sql_dsn, autocommit=True) as c:
                    c.execute("CREATE TABLE t (a int, b text)")
                    c.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
                    c.execute("SELECT a, count(*) FROM t WHERE b > 'a' GROUP BY a ORDER BY a")
                    firsts.append(time.perf_counter() - began)
                server.wait_ready()
                warm.append(time.perf_counter() - began)
            finally:
                server.close()

    def told(values: list[float]) -> str:
        return ", ".join(ms(value) for value in values)

    return [
        Figure("a new server: SQL answers after", told(answers), "<= 3 s", min(answers) <= 3),
        Figure("... the first SELECT from a table", told(firsts), "", None),
        Figure("... Spark is warm (/readyz)", told(warm), "", None),
    ]
