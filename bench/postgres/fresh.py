"""From a commit in PostgreSQL to visible here, with ticks of a second; and what an idle source costs.

A commit is there from the first binding on that covers its position, and that time can be read once the
source's frontier is past it (as in `bench.kafka.fresh`). There is one clock, the machine's.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import psycopg

from bench.busy import core_seconds
from bench.postgres.ours import ours
from bench.postgres.upstream import PUBLICATION, Upstream
from bench.report import Figure, p50_p99, percentile
from tidemill.sources.postgres.lsn import parse_lsn

TABLE = "rows"
ROWS = 10_000
WARM_SECONDS = 5.0
POLL_SECONDS = 0.025
IDLE_SECONDS = 30.0
# Of log that no published table has.
OTHER_BYTES = 256 << 20
MOVED_SECONDS = 120.0


class Writer(threading.Thread):
    """Commits `rate` updates a second, each of one row; `committed` has the time behind each, and `positions`
    where the log then was."""

    def __init__(self, dsn: str, rate: int, seconds: float) -> None:
        super().__init__(name="bench-writer", daemon=True)
        self._dsn = dsn
        self._every = 1 / rate
        self.committed = np.zeros(int(rate * seconds))
        self.positions = np.zeros(len(self.committed), np.int64)
        self.failed: psycopg.Error | None = None

    def run(self) -> None:
        statement = f"UPDATE {TABLE} SET n = %s WHERE id = %s".encode()
        try:
            with psycopg.connect(self._dsn, autocommit=True) as sql:
                began = time.monotonic()
                for n in range(len(self.committed)):
                    time.sleep(max(0.0, began + n * self._every - time.monotonic()))
                    sql.execute(statement, (n, n % ROWS + 1))
                    self.committed[n] = time.time()
                    ((position,),) = sql.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
                    self.positions[n] = parse_lsn(position)
        except psycopg.Error as e:
            self.failed = e


def _table(upstream: Upstream) -> None:
    upstream.run(
        f"DROP PUBLICATION IF EXISTS {PUBLICATION}",
        f"DROP TABLE IF EXISTS {TABLE}",
        f"CREATE TABLE {TABLE} (id int PRIMARY KEY, n bigint NOT NULL, note text)",
        f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL",
        f"INSERT INTO {TABLE} SELECT i, -1, repeat('x', 100) FROM generate_series(1, {ROWS}) i",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}",
    )


def commits(upstream: Upstream, *, quick: bool) -> list[Figure]:
    rate, seconds = (50, 10.0) if quick else (200, 60.0)
    _table(upstream)
    with ours(upstream) as one:
        one.create("s", [TABLE])
        one.created(TABLE)
        one.until("s", upstream.position())
        writer = Writer(upstream.process.dsn, rate, seconds + WARM_SECONDS)
        seen: list[tuple[float, int]] = [(0.0, 0)]
        writer.start()
        ended = None
        while ended is None or seen[-1][1] <= ended + 2000:
            frontier = one.frontiers([TABLE])[TABLE]
            if frontier > seen[-1][1]:
                seen.append((time.time(), frontier))
            if ended is None and not writer.is_alive():
                ended = time.time() * 1000
            if writer.failed is not None:
                raise writer.failed
            time.sleep(POLL_SECONDS)
        one.until("s", int(writer.positions[-1]))
        bound = one.bindings("s").sort("time")
        ((rows, total),) = one.execute(f"SELECT count(*), sum(n) FROM {TABLE}")
    ((expected,),) = upstream.sql.execute(f"SELECT sum(n) FROM {TABLE}".encode()).fetchall()
    if (int(rows), int(total)) != (ROWS, int(expected)):
        raise SystemExit(f"the table has {rows} rows whose sum is {total}, not {ROWS} and {expected}")
    times = bound["time"].to_numpy()[np.searchsorted(bound["value"].to_numpy(), writer.positions)]
    frontiers = np.array([frontier for _, frontier in seen])
    visible = np.array([at for at, _ in seen])[np.searchsorted(frontiers, times, side="right")]
    late = writer.committed > writer.committed[0] + WARM_SECONDS
    found = (visible - writer.committed)[late].tolist()
    met = percentile(found, 50) <= 1.0 and percentile(found, 99) <= 2.0
    what = f"commit to visible, {rate} commits/s, ticks of 1 s, {seconds:.0f} s"
    return [Figure(what, p50_p99(found), "p50 <= 1.0 s, p99 <= 2 s", met)]


def idle(upstream: Upstream, *, quick: bool) -> list[Figure]:
    seconds = 5.0 if quick else IDLE_SECONDS
    _table(upstream)
    shares: list[float] = []
    with ours(upstream) as one:
        for source in (False, True):
            if source:
                one.create("s", [TABLE])
                one.until("s", upstream.position())
                time.sleep(seconds / 3)
            before = core_seconds(one.server.pid) + core_seconds(upstream.process.pid)
            time.sleep(seconds)
            after = core_seconds(one.server.pid) + core_seconds(upstream.process.pid)
            shares.append((after - before) / seconds)
        size = OTHER_BYTES >> (4 if quick else 0)
        moved, most = _other_log(upstream, size)
    return [
        Figure(
            "idle: server, Spark and PostgreSQL together",
            f"{shares[1]:.1%} of a core (without the source {shares[0]:.1%})",
            "",
        ),
        Figure(
            f"{size >> 20} MB of log of other tables: until the slot is behind them",
            f"{moved:.1f} s, it kept {most >> 20} MB at most",
            "kept moving",
            moved < MOVED_SECONDS,
        ),
    ]


def _other_log(upstream: Upstream, size: int) -> tuple[float, int]:
    """Seconds until the slot is confirmed beyond what an unpublished table wrote; the log kept meanwhile."""
    upstream.run("DROP TABLE IF EXISTS other", "CREATE TABLE other (a text)")
    goal = upstream.position() + size
    kept = (
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, confirmed_flush_lsn::text "
        "FROM pg_replication_slots WHERE slot_type = 'logical'"
    )
    most = 0
    while upstream.position() < goal:
        upstream.run("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        ((held, _),) = upstream.sql.execute(kept.encode()).fetchall()
        most = max(most, int(held))
    goal = upstream.position()
    began = time.monotonic()
    while (passed := time.monotonic() - began) < MOVED_SECONDS:
        ((held, confirmed),) = upstream.sql.execute(kept.encode()).fetchall()
        most = max(most, int(held))
        if parse_lsn(confirmed) >= goal:
            break
        time.sleep(0.1)
    return passed, most
