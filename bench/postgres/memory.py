"""Memory of a transaction of many rows: what the server, the JVM and the workers take more than before it.

Memory is what the processes have for themselves and their share of what they have in common (PSS), sampled
while the transaction is written upstream, received, read and committed here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from bench.postgres.ours import Ours, ours
from bench.postgres.upstream import PUBLICATION, Upstream
from bench.report import Figure

AIM_MB = 512
SAMPLE_SECONDS = 0.25
IDLE_SECONDS = 10.0
# Rows that warm the JVM and the workers before memory is looked at: all code has run, and all tasks have
# their workers.
WARM_ROWS = 200_000
TABLE = "large"


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


def measure(upstream: Upstream, *, quick: bool) -> list[Figure]:
    rows = 100_000 if quick else 5_000_000
    upstream.run(
        f"DROP PUBLICATION IF EXISTS {PUBLICATION}",
        f"DROP TABLE IF EXISTS {TABLE}",
        f"CREATE TABLE {TABLE} (id bigint, amount int, note text)",
        f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}",
    )
    with ours(upstream) as one:
        one.create("s", [TABLE])
        for _ in range(3):
            _insert(upstream, WARM_ROWS)
            one.until("s", upstream.position())
        time.sleep(IDLE_SECONDS)
        sampler = Sampler(one.server.pid)
        sampler.start()
        time.sleep(IDLE_SECONDS)
        idle = sampler.end()
        sampler.start()
        began = time.monotonic()
        _insert(upstream, rows)
        written = time.monotonic() - began
        one.until("s", upstream.position())
        seconds = time.monotonic() - began - written
        most = sampler.end()
        _check(upstream, one)
    grown = (most.total() - idle.total()) >> 20
    parts = ", ".join(f"{kind} {(most[kind] - idle[kind]) >> 20:+d}" for kind in ("server", "JVM", "workers"))
    return [
        Figure(
            f"a transaction of {rows:,} rows: memory over idle ({idle.total() >> 20} MB), at most",
            f"+{grown} MB ({parts})",
            f"<= +{AIM_MB} MB",
            grown <= AIM_MB,
        ),
        Figure("... written upstream, then until it is visible", f"{written:.1f} s, {seconds:.1f} s", ""),
    ]


def _insert(upstream: Upstream, rows: int) -> None:
    upstream.run(
        f"INSERT INTO {TABLE} SELECT i, i % 1000, 'a note of some length ' || i FROM generate_series(1, {rows}) i"
    )


def _check(upstream: Upstream, one: Ours) -> None:
    query = f"SELECT count(*), sum(id), sum(amount::bigint) FROM {TABLE}"
    mine, theirs = (one.execute(query)[0], upstream.sql.execute(query.encode()).fetchall()[0])
    if [int(x) for x in mine] != [int(x) for x in theirs]:
        raise SystemExit(f"{TABLE} has {mine}, upstream {theirs}")
