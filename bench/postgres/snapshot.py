"""A snapshot of one table beside `psql COPY ... TO STDOUT` into nothing: read alone, and as a source.

Read alone are the tasks' own half, in two processes, up to rows in storage form. A source also writes them
into its shard, by Spark; it is there when SQL says so.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import psycopg

from bench.postgres.ours import ours
from bench.postgres.upstream import PUBLICATION, Upstream
from bench.report import Figure
from tidemill.dev.postgres import DATABASE, USER
from tidemill.dev.process import HOST
from tidemill.sources.postgres.connect import connect
from tidemill.sources.postgres.definition import ReplicatedTable
from tidemill.sources.postgres.describe import look, replicated
from tidemill.sources.postgres.snapshot import SnapshotPlan, plan_snapshot

TABLE = "pgbench_accounts"
ROWS_PER_SCALE = 100_000
PROCESSES = 2


def measure(upstream: Upstream, *, quick: bool) -> list[Figure]:
    scale, repeats = (1, 1) if quick else (50, 2)
    rows = scale * ROWS_PER_SCALE
    upstream.fill(scale)
    upstream.copy_seconds(TABLE)  # the cache is warm
    copies: list[float] = []
    alone: list[float] = []
    sources: list[float] = []
    with ours(upstream) as one:
        for number in range(repeats):
            copies.append(upstream.copy_seconds(TABLE))
            alone.append(_alone(upstream, rows))
            name = f"s{number}"
            began = time.monotonic()
            one.create(name, [TABLE])
            one.until(name, upstream.position())
            sources.append(time.monotonic() - began)
            if not number:
                one.check(upstream, [TABLE])
            one.execute(f"DROP SOURCE {name} CASCADE")
            copies.append(upstream.copy_seconds(TABLE))
    base = statistics.median(copies)
    figures = [Figure(f"psql COPY of {rows:,} rows to nothing", f"{rows / base:,.0f} rows/s", "")]
    for what, found in (("the snapshot read alone, two processes", alone), ("... as a source", sources)):
        seconds = statistics.median(found)
        ratio = base / seconds
        shown = f"{ratio:.2f}x ({rows / seconds:,.0f} rows/s, {seconds:.1f} s)"
        figures.append(Figure(what, shown, ">= 0.5x", ratio >= 0.5))
    return figures


def _alone(upstream: Upstream, rows: int) -> float:
    options = {
        "host": HOST,
        "port": upstream.process.port,
        "database": DATABASE,
        "user": USER,
        "ssl_mode": "disable",
    }
    found = look(options, PUBLICATION)
    tables = [replicated(found, t) for t in found.tables if t.table == TABLE]
    with psycopg.connect(upstream.process.dsn) as holder, connect(options) as sql:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((name,),) = holder.execute("SELECT pg_export_snapshot()").fetchall()
        plan = plan_snapshot(sql, name, list(enumerate(tables)))
        spawned = multiprocessing.get_context("spawn")
        ready, counts = spawned.Barrier(PROCESSES + 1), spawned.Queue()
        edges = [plan.count * n // PROCESSES for n in range(PROCESSES + 1)]
        readers = [
            spawned.Process(target=_read, args=(plan, options, tables, *edges[n : n + 2], ready, counts))
            for n in range(PROCESSES)
        ]
        for reader in readers:
            reader.start()
        ready.wait()
        began = time.monotonic()
        total = sum(counts.get() for _ in readers)
        seconds = time.monotonic() - began
        for reader in readers:
            reader.join()
    if total != rows:
        raise SystemExit(f"the snapshot has {total} rows, not {rows}")
    return seconds


def _read(
    plan: SnapshotPlan,
    options: dict[str, Any],
    tables: list[ReplicatedTable],
    first: int,
    last: int,
    ready: Barrier,
    counts: Any,
) -> None:
    ready.wait()
    counts.put(sum(batch.rows.num_rows for batch in plan.read(options, tables, first, last)))
