"""The stream under pgbench: how fast a backlog is read beside pg_recvlogical, and whether it keeps up.

A backlog is made while our server is stopped (SIGSTOP). pg_recvlogical then writes its slot into a file;
afterwards our server goes on, until SQL shows all of it.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.postgres.ours import Ours, ours
from bench.postgres.upstream import CHANGES_PER_TRANSACTION, PUBLICATION, TABLES, Upstream, tps
from bench.report import Figure, p50_p99
from tidemill.dev.postgres import DATABASE
from tidemill.sources.postgres.lsn import lsn_text

CLIENTS = 8
SLOT = "bench_recvlogical"
SAMPLE_SECONDS = 0.5
# Workers start, code gets warm.
WARM_SECONDS = 10.0
BASELINE_SECONDS = 20
# Of the lag: it must not be more in the last quarter than in the second one, but for this.
GROWTH, GROWTH_SECONDS = 1.5, 1.0


def backlog(upstream: Upstream, *, quick: bool) -> list[Figure]:
    transactions, repeats = (4_000, 1) if quick else (100_000, 2)
    upstream.fill(1 if quick else 10)
    changes = transactions * CHANGES_PER_TRANSACTION
    theirs: list[float] = []
    mine: list[float] = []
    with ours(upstream) as one, tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        one.create("s", TABLES)
        one.until("s", upstream.position())
        for _ in range(repeats):
            upstream.run(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
            os.kill(one.server.pid, signal.SIGSTOP)
            try:
                tps(upstream.load("-t", str(transactions // CLIENTS)))
                end = upstream.position()
                theirs.append(_received(upstream, end, Path(folder) / "out"))
            finally:
                os.kill(one.server.pid, signal.SIGCONT)
            began = time.monotonic()
            one.until("s", end)
            mine.append(time.monotonic() - began)
            upstream.run(f"SELECT pg_drop_replication_slot('{SLOT}')")
        one.check(upstream, TABLES)
    base, seconds = statistics.median(theirs), statistics.median(mine)
    ratio = base / seconds
    return [
        Figure(f"pg_recvlogical, {changes:,} changes to a file", f"{changes / base:,.0f} changes/s", ""),
        Figure(
            "... the same until SQL shows them",
            f"{ratio:.2f}x ({changes / seconds:,.0f} changes/s)",
            ">= 0.3x",
            ratio >= 0.3,
        ),
    ]


def _received(upstream: Upstream, end: int, out: Path) -> float:
    arguments = [
        "-d",
        DATABASE,
        "-S",
        SLOT,
        "--start",
        "--no-loop",
        "--endpos",
        lsn_text(end),
        "-f",
        str(out),
    ]
    options = ["-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}"]
    return upstream.finished(upstream.command("pg_recvlogical", *arguments, *options))


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  # seconds since the load began
    behind: float  # seconds
    bytes: int
    # Log that PostgreSQL keeps for the slot.
    kept: int


def steady(upstream: Upstream, *, quick: bool, minutes: float) -> list[Figure]:
    upstream.fill(1 if quick else 10)
    seconds = 15 if quick else round(60 * minutes)
    plain = tps(upstream.load("-T", str(3 if quick else BASELINE_SECONDS)))
    with ours(upstream) as one:
        one.create("s", TABLES)
        one.until("s", upstream.position())
        rate, samples = _watched(upstream, one, seconds)
        began = time.monotonic()
        one.until("s", upstream.position())
        rest = time.monotonic() - began
        one.check(upstream, TABLES)
        skipped = one.ticks("s").skipped
    warm = [s for s in samples if s.at > (3 if quick else WARM_SECONDS)]
    behind = [s.behind for s in warm]
    quarters = [statistics.median(part) for part in np.array_split(np.array(behind), 4)]
    bounded = quarters[3] <= GROWTH * quarters[1] + GROWTH_SECONDS
    what = f"pgbench, {CLIENTS} clients, {seconds} s: {rate:,.0f} transactions/s"
    return [
        Figure(
            f"{what}: lag",
            f"{p50_p99(behind)}, max {max(behind):.1f} s, {max(s.bytes for s in warm) >> 20} MB; "
            f"by quarters {', '.join(f'{q:.1f}' for q in quarters)} s",
            "bounded",
            bounded,
        ),
        Figure("... from the end of the load to all of it visible", f"{rest:.1f} s", ""),
        Figure("... log that PostgreSQL keeps, at most", f"{max(s.kept for s in warm) >> 20} MB", ""),
        Figure("... ticks skipped", f"{skipped}", ""),
        Figure(
            f"... pgbench without a source, {plain:,.0f} transactions/s", f"{rate / plain:.2f}x with it", ""
        ),
    ]


def _watched(upstream: Upstream, one: Ours, seconds: int) -> tuple[float, list[Sample]]:
    """The rate of pgbench, and how far the source was behind meanwhile."""
    kept = (
        "SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn))::int8 FROM pg_replication_slots "
        "WHERE slot_type = 'logical'"
    )
    pgbench = upstream.load("-T", str(seconds))
    began = time.monotonic()
    moments: list[float] = []
    positions: list[int] = []
    samples: list[Sample] = []
    while pgbench.poll() is None:
        committed = one.committed("s")
        # Where the log was when we asked.
        moments.append(time.monotonic() - began)
        positions.append(upstream.position())
        # The first moment at which the upstream was seen beyond what is committed here.
        first = int(np.searchsorted(positions, committed, side="right"))
        behind = moments[-1] - moments[first] if first < len(moments) else 0.0
        samples.append(Sample(moments[-1], behind, positions[-1] - committed, int(upstream.value(kept) or 0)))
        time.sleep(SAMPLE_SECONDS)
    return tps(pgbench), samples
