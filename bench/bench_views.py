"""Materialized views: what a tick of a thousand rows costs over tables of several sizes, fifty views over one
table, a restart, and memory. A tick is the time from sending a COPY of rows until a subscriber of the view
has its first change.

Parts: `groups`, `joins`, `shapes`, `global`, `many`, `restart`.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
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
MANY_VIEWS = 50

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


class Bench:
    """A server with two tables of some rows: `g` has many groups, `k` few."""

    def __init__(self, server: ServerProcess, rows: int) -> None:
        self.server = server
        self.rows = rows
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
                        f"SELECT n, n / {ROWS_OF_GROUP}, n % {FEW_GROUPS}, n * 7919 % 10007 "
                        f"FROM generate_series({first}, {last - 1}) AS s(n)".encode()
                    )

    def change(self, c: Connection, table: str) -> float:
        """New rows in random groups; when they were sent."""
        count = min(CHANGES, self.rows // 10)
        near = self.rng.integers(0, self.rows, count).tolist()
        values = range(self.next, self.next + count)
        self.next += count
        lines = "".join(
            f"{n}\t{n // ROWS_OF_GROUP}\t{n % FEW_GROUPS}\t{x}\n" for n, x in zip(near, values, strict=True)
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
        with self.connected() as c, subscribed(self, name) as news:
            for n in range(WARM_TICKS + count):
                while not news.empty():
                    news.get_nowait()
                sent = self.change(c, table)
                arrived = news.get(timeout=NEXT_SECONDS)
                if n >= WARM_TICKS:
                    found.append(arrived - sent)
                # Not always at the same place of the clock's interval.
                time.sleep(0.2 + 0.5 * float(self.rng.random()))
        return found

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


def _sized(
    tables: Sequence[str],
    queries: dict[str, str],
    sizes: Sequence[int],
    ticks: int,
    aim: float | None,
    within: float,
) -> list[Figure]:
    """Each query over each size; and how much larger the slowest median is than the fastest."""
    figures: list[Figure] = []
    medians: dict[str, list[float]] = {}
    for rows in sizes:
        with serving() as server:
            bench = Bench(server, rows)
            bench.load(*tables)
            for what, query in queries.items():
                with bench.view("v", query) as hydrated:
                    found = bench.ticks("v", tables[0], ticks)
                    memory = bench.memory()
                median = statistics.median(found)
                medians.setdefault(what, []).append(median)
                said = "" if aim is None else f"p50 <= {aim * 1000:.0f} ms"
                figures.append(
                    Figure(
                        f"{what}; {_shown(rows)} rows",
                        f"{p50_p99(found)}; first rows {hydrated:.1f} s; {memory}",
                        said,
                        None if aim is None else median <= aim,
                    )
                )
                print(f"  {figures[-1].what}: {figures[-1].measured}", flush=True)
    for what, found in medians.items():
        ratio = max(found) / min(found)
        figures.append(
            Figure(f"{what}: slowest / fastest size", f"{ratio:.2f}", f"<= {within}", ratio <= within)
        )
    return figures


def groups(sizes: Sequence[int], ticks: int) -> list[Figure]:
    names = {"g": f"{ROWS_OF_GROUP} rows in a group", "k": f"{FEW_GROUPS} groups"}
    queries = {
        f"GROUP BY, {told}: {what}": query.format(g=g)
        for g, told in names.items()
        for what, query in GROUPS.items()
    }
    return _sized(["facts"], queries, sizes, ticks, 0.35, 1.3)


def joins(sizes: Sequence[int], ticks: int) -> list[Figure]:
    return _sized(["facts", "others"], JOINS, sizes, ticks, 0.6, 1.3)


def shapes(sizes: Sequence[int], ticks: int) -> list[Figure]:
    return _sized(["facts"], SHAPES, sizes, ticks, None, 1.5)


def global_(sizes: Sequence[int], ticks: int) -> list[Figure]:
    return _sized(["facts"], GLOBAL, sizes, ticks, 0.3, 1.3)


def many(sizes: Sequence[int], ticks: int) -> list[Figure]:
    """Different views over one table, and a tick each second."""
    rows = sizes[min(1, len(sizes) - 1)]
    with serving() as server:
        bench = Bench(server, rows)
        bench.load("facts")
        with bench.connected() as c:
            for n in range(MANY_VIEWS):
                c.execute(
                    f"CREATE MATERIALIZED VIEW v{n} AS SELECT g, count(*) AS n, sum(x + {n}) AS s FROM facts "
                    f"WHERE x <> {n} GROUP BY g".encode()
                )
            for n in range(MANY_VIEWS):
                c.execute(f"SELECT count(*) FROM v{n}".encode()).fetchall()
            lags: list[float] = []
            for _ in range(ticks):
                began = time.monotonic()
                bench.change(c, "facts")
                ((asked,),) = c.execute("SELECT mz_now()").fetchall()
                while True:
                    found = c.execute(
                        "SELECT count(*) FROM mz_internal.mz_frontiers AS f JOIN mz_materialized_views AS v "
                        "ON f.object_id = v.id WHERE f.write_frontier <= %s::mz_timestamp",
                        [str(asked)],
                    ).fetchall()
                    if found == [(0,)]:
                        break
                    time.sleep(0.02)
                lags.append(time.monotonic() - began)
                time.sleep(max(0.0, began + 1 - time.monotonic()))
            memory = bench.memory()
    late = percentile(lags, 99)
    what = f"{MANY_VIEWS} views over {_shown(rows)} rows, until all have a tick"
    return [Figure(what, f"{p50_p99(lags)}; {memory}", "p99 <= 2.5 s", late <= 2.5)]


def restart(sizes: Sequence[int], ticks: int) -> list[Figure]:
    """kill -9 with a join; from when SQL answers to the view's next change."""
    rows = sizes[-1]
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
        memory = bench.memory()
    return [
        Figure(
            f"kill -9 with a join of {_shown(rows)} rows: SQL answers -> the next answer",
            ms(took),
            "<= 10 s",
            took <= 10,
        ),
        Figure("... ticks after it", f"{p50_p99(after)}; {memory}", "", None),
    ]


PARTS: dict[str, Callable[[Sequence[int], int], list[Figure]]] = {
    "groups": groups,
    "joins": joins,
    "shapes": shapes,
    "global": global_,
    "many": many,
    "restart": restart,
}


def measure(*, quick: bool = False, only: Sequence[str] = (), sizes: Sequence[int] = ()) -> list[Figure]:
    unknown = set(only) - set(PARTS)
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    chosen = tuple(sizes) or (QUICK_SIZES if quick else SIZES)
    return [figure for part in (only or PARTS) for figure in PARTS[part](chosen, 3 if quick else 30)]
