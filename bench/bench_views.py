"""Materialized views: what a tick of a thousand rows costs over tables of several sizes, many views over one
table, a restart, and memory. A tick is the time from sending a COPY of rows until a subscriber of the view
has its first change.

Parts: `groups`, `joins`, `shapes`, `global`, `many`, `restart`. The first four share a server and its tables
for each of the sizes; `many` and `restart` have one of their own. A query that is slow has fewer ticks
(`QUERY_SECONDS`), so that all of it ends.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import psutil
import psycopg

from bench.report import Figure, ms, p50_p99, percentile
from bench.serving import serving
from support.server import ServerProcess

SIZES = (10_000, 1_000_000, 10_000_000)
QUICK_SIZES = (2_000, 50_000)
# Changed rows of a tick; of tables that are smaller, a tenth of their rows.
CHANGES = 1000
# Rows of a group of the many, and how many groups there are of the few.
ROWS_OF_GROUP = 100
FEW_GROUPS = 1000
# One INSERT of so many: what a transaction holds in memory is limited.
STEP = 1_000_000
# Until a view has its first rows, or its next change.
FIRST_SECONDS = 1800.0
NEXT_SECONDS = 300.0
# Before what is measured.
WARM_TICKS = 5
# A query has fewer ticks, but at least LEAST_TICKS, if they take longer than this.
QUERY_SECONDS = 60.0
LEAST_TICKS = 5
# Of `many`: how many views, the rows of the table and of its groups, and for how long it gets rows.
MANY_VIEWS = (50, 100)
MANY_ROWS = 1_000_000
MANY_ROWS_OF_GROUP = 10
MANY_SECONDS = 60
# The last changes are waited for so long.
LATE_SECONDS = 30.0

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

# By table, `{g}` is the column of the group.
GROUPS = {
    "count, sum, avg": "SELECT {g} AS g, count(*) AS n, sum(x) AS s, avg(x) AS a FROM facts GROUP BY {g}",
    "max": "SELECT {g} AS g, max(x) AS m FROM facts GROUP BY {g}",
    "count(DISTINCT)": "SELECT {g} AS g, count(DISTINCT x) AS n FROM facts GROUP BY {g}",
}
JOINS = {
    "join of two, GROUP BY": "SELECT f.g, count(*) AS n, sum(f.x + o.x) AS s FROM facts f "
    "JOIN others o ON f.id = o.id GROUP BY f.g",
    "left join": "SELECT f.id, f.x, o.x AS y FROM facts f LEFT JOIN others o ON f.id = o.id",
}
SHAPES = {
    "top 3 of each group": "SELECT g, id, x FROM (SELECT g, id, x, row_number() OVER "
    "(PARTITION BY g ORDER BY x DESC, id) AS r FROM facts) AS ranked WHERE r <= 3",
    "DISTINCT": "SELECT DISTINCT g, x FROM facts",
}
GLOBAL = {
    "count, sum": "SELECT count(*) AS n, sum(x) AS s FROM facts",
    "max": "SELECT max(x) AS m FROM facts",
}
# No two of the views are the same.
ALIKE = ("SELECT g, count(*) AS n, sum(x + {n}) AS s FROM facts WHERE x <> {n} GROUP BY g",)
MIXED = (
    *ALIKE,
    "SELECT id, x + {n} AS y FROM facts WHERE x % 100 = {n} % 100",
    "SELECT g, max(x + {n}) AS m FROM facts GROUP BY g",
    "SELECT DISTINCT g, x % (10 + {n}) AS y FROM facts",
    "SELECT k, avg(x) AS a, count(*) AS n FROM facts WHERE g % (2 + {n}) <> 0 GROUP BY k",
    "SELECT DISTINCT ON (g) g, id, x FROM facts WHERE x % 20 <> {n} % 20 ORDER BY g, x DESC, id",
    "SELECT g, count(DISTINCT x % (5 + {n})) AS n FROM facts GROUP BY g",
)


class Bench:
    """A server with two tables of some rows: `g` has many groups, `k` few."""

    def __init__(self, server: ServerProcess, rows: int, rows_of_group: int = ROWS_OF_GROUP) -> None:
        self.server = server
        self.rows = rows
        self.rows_of_group = rows_of_group
        # Larger than any before: a change of each group's max.
        self.next = 1_000_000
        self.rng = np.random.default_rng(21)

    @contextmanager
    def connected(self) -> Generator[Connection]:
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            yield c

    def load(self, *tables: str) -> None:
        with self.connected() as c:
            for table in tables:
                c.execute(f"CREATE TABLE {table} (id bigint, g bigint, k bigint, x bigint)".encode())
                for first in range(0, self.rows, STEP):
                    last = min(self.rows, first + STEP)
                    c.execute(
                        f"INSERT INTO {table} "
                        f"SELECT n, n / {self.rows_of_group}, n % {FEW_GROUPS}, n * 7919 % 10007 "
                        f"FROM generate_series({first}, {last - 1}) AS s(n)".encode()
                    )

    def change(self, c: Connection, table: str) -> float:
        """New rows in random groups; when they were sent."""
        count = min(CHANGES, self.rows // 10)
        near = self.rng.integers(0, self.rows, count).tolist()
        values = range(self.next, self.next + count)
        self.next += count
        lines = "".join(
            f"{n}\t{n // self.rows_of_group}\t{n % FEW_GROUPS}\t{x}\n"
            for n, x in zip(near, values, strict=True)
        )
        sent = time.monotonic()
        with c.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
            copy.write(lines)
        return sent

    @contextmanager
    def view(self, name: str, query: str) -> Generator[float]:
        """The view, and how long it took to have its first rows."""
        with self.connected() as c:
            c.execute(f"SET statement_timeout = {int(FIRST_SECONDS * 1000)}".encode())
            began = time.monotonic()
            c.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}".encode())
            c.execute(f"SELECT count(*) FROM {name}".encode()).fetchall()
            try:
                yield time.monotonic() - began
            finally:
                c.execute(f"DROP MATERIALIZED VIEW {name}".encode())

    def ticks(self, name: str, table: str, count: int) -> list[float]:
        """How long ticks took until a subscriber of the view had them."""
        found: list[float] = []
        began = time.monotonic()
        with self.connected() as c, subscribed(self, name) as news:
            for n in range(WARM_TICKS + count):
                if len(found) >= LEAST_TICKS and time.monotonic() - began > QUERY_SECONDS:
                    break
                while not news.empty():
                    news.get_nowait()
                sent = self.change(c, table)
                arrived = news.get(timeout=NEXT_SECONDS)
                if n >= WARM_TICKS:
                    found.append(arrived - sent)
                # Not always at the same place of the clock's interval.
                time.sleep(0.2 + 0.5 * float(self.rng.random()))
        return found

    def built(self) -> int:
        """The arrangements that the server has computed, rather than found on disk."""
        with urllib.request.urlopen(f"{self.server.http_url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = [line for line in lines if line.startswith("tidemill_arrangements_built_total ")]
        return int(float(found.split()[1]))

    def memory(self) -> str:
        """Of the server, its JVM and its workers."""
        process = psutil.Process(self.server.pid)
        of = [p.memory_info().rss for p in (process, *process.children(recursive=True))]
        return f"server {of[0] >> 20} MB, with JVM and workers {sum(of) >> 20} MB"


@contextmanager
def subscribed(bench: Bench, name: str) -> Generator[queue.SimpleQueue[float]]:
    """When the first row of each time arrived."""
    news: queue.SimpleQueue[float] = queue.SimpleQueue()
    begun = threading.Event()
    with bench.connected() as c:

        def read() -> None:
            last = ""
            statement = f"COPY (SUBSCRIBE {name} WITH (SNAPSHOT = false, PROGRESS)) TO STDOUT"
            try:
                with c.cursor().copy(statement.encode()) as copy:
                    for time_, progressed, *_ in copy.rows():
                        begun.set()
                        if progressed == "f" and time_ != last:
                            last = str(time_)
                            news.put(time.monotonic())
            except psycopg.errors.QueryCanceled:
                pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        begun.wait(NEXT_SECONDS)
        try:
            yield news
        finally:
            c.cancel()
            reader.join(NEXT_SECONDS)


def _shown(rows: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if rows >= size and rows % size == 0:
            return f"{rows // size}{unit}"
    return str(rows)


@dataclass(frozen=True, slots=True)
class Part:
    """Queries over tables of every size; each median is within `within` of the others of its query."""

    tables: tuple[str, ...]
    queries: dict[str, str]
    aim: float | None
    within: float


_KEYS = {"g": f"{ROWS_OF_GROUP} rows in a group", "k": f"{FEW_GROUPS} groups"}

SIZED = {
    "groups": Part(
        ("facts",),
        {
            f"GROUP BY, {told}: {what}": query.format(g=g)
            for g, told in _KEYS.items()
            for what, query in GROUPS.items()
        },
        0.35,
        1.3,
    ),
    "joins": Part(("facts", "others"), JOINS, 0.6, 1.3),
    "shapes": Part(("facts",), SHAPES, None, 1.5),
    "global": Part(("facts",), GLOBAL, 0.3, 1.3),
}


def _sized(names: Sequence[str], sizes: Sequence[int], ticks: int) -> list[Figure]:
    """Each query of these parts over each size; and how much larger the slowest median is than the
    fastest."""
    figures: list[Figure] = []
    medians: dict[tuple[str, str], list[float]] = {}
    tables = tuple(dict.fromkeys(t for name in names for t in SIZED[name].tables))
    for rows in sizes if names else ():
        with serving() as server:
            bench = Bench(server, rows)
            began = time.monotonic()
            bench.load(*tables)
            print(
                f"  {_shown(rows)} rows in {', '.join(tables)}: {time.monotonic() - began:.0f} s", flush=True
            )
            for name in names:
                part, began = SIZED[name], time.monotonic()
                for what, query in part.queries.items():
                    with bench.view("v", query) as hydrated:
                        found = bench.ticks("v", part.tables[0], ticks)
                        memory = bench.memory()
                    median = statistics.median(found)
                    medians.setdefault((name, what), []).append(median)
                    aim = part.aim
                    figures.append(
                        Figure(
                            f"{what}; {_shown(rows)} rows",
                            f"{p50_p99(found)} ({len(found)} ticks); first rows {hydrated:.1f} s; {memory}",
                            "" if aim is None else f"p50 <= {aim * 1000:.0f} ms",
                            None if aim is None else median <= aim,
                        )
                    )
                    print(f"  {figures[-1].what}: {figures[-1].measured}", flush=True)
                print(f"  {name}, {_shown(rows)} rows: {time.monotonic() - began:.0f} s", flush=True)
    for (name, what), found in medians.items():
        ratio, within = max(found) / min(found), SIZED[name].within
        figures.append(
            Figure(f"{what}: slowest / fastest size", f"{ratio:.2f}", f"<= {within}", ratio <= within)
        )
    return figures


def many(*, quick: bool) -> list[Figure]:
    """Different views over one table that gets rows every second."""
    rows = QUICK_SIZES[-1] if quick else MANY_ROWS
    seconds = 10 if quick else MANY_SECONDS
    figures: list[Figure] = []
    for told, queries, counts in (("sums", ALIKE, MANY_VIEWS), ("of seven shapes", MIXED, MANY_VIEWS)):
        with serving() as server:
            bench = Bench(server, rows, MANY_ROWS_OF_GROUP)
            bench.load("facts")
            made = 0
            for count in counts:
                began = time.monotonic()
                with bench.connected() as c:
                    c.execute(f"SET statement_timeout = {int(FIRST_SECONDS * 1000)}".encode())
                    for n in range(made, count):
                        query = queries[n % len(queries)].format(n=n)
                        c.execute(f"CREATE MATERIALIZED VIEW v{n} AS {query}".encode())
                    for n in range(made, count):
                        c.execute(f"SELECT count(*) FROM v{n}".encode()).fetchall()
                made, hydrated = count, time.monotonic() - began
                lags, unfinished = _lags(bench, seconds)
                late = percentile(lags, 99)
                figures.append(
                    Figure(
                        f"{count} views ({told}) over {_shown(rows)} rows, {CHANGES} changes a second, "
                        f"{seconds} s: until all have a change",
                        f"{p50_p99(lags)}; {unfinished} seconds without an end; "
                        f"first rows {hydrated:.1f} s; {bench.memory()}",
                        "p99 <= 2.5 s",
                        late <= 2.5 and not unfinished,
                    )
                )
                print(f"  {figures[-1].what}: {figures[-1].measured}", flush=True)
    return figures


def _lags(bench: Bench, seconds: int) -> tuple[list[float], int]:
    """Changes each second, whether or not the views have the last ones: how long until all views had them;
    and how many of them some view did not have LATE_SECONDS after the last."""
    waiting: list[tuple[int, float]] = []
    lags: list[float] = []
    lock, over = threading.Lock(), threading.Event()

    def write() -> None:
        with bench.connected() as c:
            begin = time.monotonic()
            for n in range(WARM_TICKS + seconds):
                over.wait(max(0.0, begin + n - time.monotonic()))
                sent = bench.change(c, "facts")
                ((asked,),) = c.execute("SELECT mz_now()").fetchall()
                with lock:
                    waiting.append((int(str(asked)), sent if n >= WARM_TICKS else 0.0))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    deadline = time.monotonic() + WARM_TICKS + seconds + LATE_SECONDS
    with bench.connected() as c:
        while (writer.is_alive() or waiting) and time.monotonic() < deadline:
            frontiers = c.execute(
                "SELECT f.write_frontier::text FROM mz_internal.mz_frontiers AS f "
                "JOIN mz_materialized_views AS v ON f.object_id = v.id"
            ).fetchall()
            now, least = time.monotonic(), min(int(str(f)) for (f,) in frontiers)
            with lock:
                lags += [now - sent for at, sent in waiting if at < least and sent]
                waiting[:] = [(at, sent) for at, sent in waiting if at >= least]
            time.sleep(0.05)
    over.set()
    writer.join()
    return lags or [float("inf")], len(waiting)


def restart(rows: int, ticks: int) -> list[Figure]:
    """kill -9 with a join; from when SQL answers to the view's next change."""
    with serving() as server:
        bench = Bench(server, rows)
        bench.load("facts", "others")
        with bench.connected() as c:
            c.execute(f"SET statement_timeout = {int(FIRST_SECONDS * 1000)}".encode())
            c.execute(f"CREATE MATERIALIZED VIEW v AS {JOINS['join of two, GROUP BY']}".encode())
            c.execute(b"SELECT count(*) FROM v").fetchall()
        bench.ticks("v", "facts", ticks)
        # What is on disk is at most so old.
        time.sleep(35)
        server.kill9()
        server.start()
        began = time.monotonic()
        with bench.connected() as c:
            bench.change(c, "facts")
            c.execute(f"SET statement_timeout = {int(FIRST_SECONDS * 1000)}".encode())
            c.execute(b"SELECT count(*) FROM v").fetchall()
        took = time.monotonic() - began
        after = bench.ticks("v", "facts", ticks)
        memory, built = bench.memory(), bench.built()
    return [
        Figure(
            f"kill -9 with a join of {_shown(rows)} rows: SQL answers -> the next answer",
            f"{ms(took)}; {built} arrangements computed",
            "<= 10 s, none",
            took <= 10 and not built,
        ),
        Figure("... ticks after it", f"{p50_p99(after)}; {memory}", "", None),
    ]


OTHERS = ("many", "restart")


def measure(*, quick: bool = False, only: Sequence[str] = (), sizes: Sequence[int] = ()) -> list[Figure]:
    known = (*SIZED, *OTHERS)
    unknown = set(only) - set(known)
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen, ticks = tuple(sizes) or (QUICK_SIZES if quick else SIZES), 3 if quick else 20
    wanted = only or known
    figures = _sized([name for name in SIZED if name in wanted], chosen, ticks)
    for name in OTHERS:
        if name in wanted:
            began = time.monotonic()
            figures += many(quick=quick) if name == "many" else restart(chosen[-1], ticks)
            print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)
    return figures
