"""Beside PostgreSQL, in the same run and with the same clients: a million rows, round trips of `SELECT 1`,
and five thousand connections at once.

`rows`: 1,000,000 rows of 6 columns to psycopg, asyncpg and pgjdbc, as text and in binary. `trips`: pgbench,
which is PostgreSQL's own and costs little beside the servers. `connections`: what each costs in memory, and
that all of them answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.pg.connections import measure_connections
from bench.pg.rows import measure_rows
from bench.pg.trips import measure_trips
from bench.report import Figure
from bench.serving import serving
from support.server import ServerProcess
from tidemill.dev.postgres import Postgres

# Room for 500 clients of pgbench; enough memory to have the table at hand, as an owner would give it.
SETTINGS = {"max_connections": "600", "shared_buffers": "512MB", "max_wal_size": "1GB"}
PARTS = {"rows": measure_rows, "trips": measure_trips, "connections": measure_connections}


def measure(*, quick: bool = False, only: Sequence[str] = ()) -> list[Figure]:
    if unknown := set(only) - set(PARTS):
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: list[Figure] = []
    with both() as (ours, theirs):
        for name, part in PARTS.items():
            if not only or name in only:
                figures += part(ours, theirs, quick=quick)
    return figures


@contextmanager
def both() -> Generator[tuple[ServerProcess, Postgres]]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-pg-") as folder, serving() as server:
        postgres = Postgres(Path(folder) / "postgres", settings=SETTINGS)
        postgres.start()
        try:
            yield server, postgres
        finally:
            postgres.stop()
