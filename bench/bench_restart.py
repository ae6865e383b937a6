"""How soon SQL answers after kill -9 with a hundred tables."""

from __future__ import annotations

import time

import psycopg

from bench.report import Figure, ms
from bench.serving import serving


def measure(*, quick: bool = False) -> list[Figure]:
    tables = 10 if quick else 100
    with serving(ready=False) as server:
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            for n in range(tables):
                c.execute(f"CREATE TABLE t{n} (id bigint, name text)".encode())
                c.execute(f"INSERT INTO t{n} VALUES (1, 'one')".encode())
        server.kill9()
        began = time.perf_counter()
        server.start()
        answered = time.perf_counter() - began
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            for n in range(tables):
                c.execute(f"INSERT INTO t{n} VALUES (2, 'two')".encode())
        written = time.perf_counter() - began
    return [
        Figure(
            f"kill -9 with {tables} tables, then SQL answers after", ms(answered), "<= 5 s", answered <= 5
        ),
        Figure("... and every table was written to after", ms(written), "", None),
    ]
