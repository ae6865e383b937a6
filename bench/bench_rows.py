"""Memory of one upstream transaction of millions of rows: what the server, the JVM and the workers take more
than before it.

Memory is what the processes have for themselves and their share of what they have in common (PSS), sampled
while PostgreSQL writes the transaction, and it is received, read and committed here.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench.report import Figure
from bench.serving import serving
from tidemill.dev.postgres import DATABASE, USER, Postgres
from tidemill.dev.process import HOST

ROWS, QUICK_ROWS = 5_000_000, 100_000
AIM_MB = 512
SAMPLE_SECONDS = 0.25
IDLE_SECONDS = 10.0
POLL_SECONDS = 0.5
SECONDS = 1800.0
# Before memory is looked at, so that all code has run, and all tasks have their workers.
WARM_ROWS, WARM_TIMES = 200_000, 3
# The disk is not what is measured.
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB", "fsync": "off"}
CHECK = "SELECT count(*), sum(id), sum(amount::bigint) FROM large"


@dataclass
class Sampler:
    """Of one server, in a thread. `most` is the largest sum, with its parts."""

    pid: int
    most: Counter[str] = field(default_factory=Counter[str])
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.most = Counter()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> Counter[str]:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self.most

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            found = taken(self.pid)
            if found.total() > self.most.total():
                self.most = found


def taken(pid: int) -> Counter[str]:
    """Bytes by kind of process."""
    process = psutil.Process(pid)
    sizes: Counter[str] = Counter(server=process.memory_full_info().pss)
    for child in process.children(recursive=True):
        try:
            sizes["JVM" if "java" in child.name() else "workers"] += child.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return sizes


def measure(*, quick: bool = False) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-upstream-") as folder:
        process = Postgres(Path(folder) / "postgres", settings=SETTINGS)
        process.start()
        try:
            with (
                serving() as server,
                psycopg.connect(process.dsn, autocommit=True) as upstream,
                psycopg.connect(server.sql_dsn, autocommit=True) as ours,
            ):
                return _measured(process, upstream, ours, server.pid, QUICK_ROWS if quick else ROWS)
        finally:
            process.stop()


def _measured(
    process: Postgres,
    upstream: psycopg.Connection[Any],
    ours: psycopg.Connection[Any],
    pid: int,
    rows: int,
) -> list[Figure]:
    for statement in (
        "CREATE TABLE large (id bigint, amount int, note text)",
        "ALTER TABLE large REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE large",
    ):
        upstream.execute(statement.encode())
    place = f"HOST '{HOST}', PORT {process.port}, USER '{USER}', DATABASE '{DATABASE}', SSL MODE 'disable'"
    ours.execute(f"CREATE CONNECTION pg TO POSTGRES ({place})".encode())
    ours.execute(b"CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'p') FOR ALL TABLES")
    there = 0
    for _ in range(WARM_TIMES):
        there += _insert(upstream, WARM_ROWS)
        _visible(ours, there)
    time.sleep(IDLE_SECONDS)
    sampler = Sampler(pid)
    sampler.start()
    time.sleep(IDLE_SECONDS)
    idle = sampler.end()
    sampler.start()
    began = time.monotonic()
    there += _insert(upstream, rows)
    written = time.monotonic() - began
    _visible(ours, there)
    seconds = time.monotonic() - began - written
    most = sampler.end()
    mine, theirs = (c.execute(CHECK.encode()).fetchall()[0] for c in (ours, upstream))
    if [int(x) for x in mine] != [int(x) for x in theirs]:
        raise SystemExit(f"the table has {mine}, upstream {theirs}")
    grown = (most.total() - idle.total()) >> 20
    parts = ", ".join(f"{kind} {(most[kind] - idle[kind]) >> 20:+d}" for kind in ("server", "JVM", "workers"))
    return [
        Figure(
            f"one transaction of {rows:,} rows: memory over idle ({idle.total() >> 20} MB)",
            f"{grown:+d} MB ({parts})",
            f"<= +{AIM_MB} MB",
            grown <= AIM_MB,
        ),
        Figure("... written upstream, then until it is committed", f"{written:.1f} s, {seconds:.1f} s", ""),
    ]


def _insert(upstream: psycopg.Connection[Any], rows: int) -> int:
    upstream.execute(
        "INSERT INTO large SELECT i, i % 1000, 'a note of some length ' || i "
        f"FROM generate_series(1, {rows}) i".encode()
    )
    return rows


def _visible(ours: psycopg.Connection[Any], rows: int) -> None:
    """Until so many rows are committed here: asked of statistics, which costs the server nothing."""
    deadline = time.monotonic() + SECONDS
    query = b"SELECT updates_committed FROM mz_internal.mz_source_statistics"
    while True:
        found = ours.execute(query).fetchall()
        if found and int(found[0][0]) >= rows:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{found} of {rows} rows are here")
        time.sleep(POLL_SECONDS)
