"""What a commit to a shard costs, with fsync, and whether it stays that way over a day of one commit a
second."""

from __future__ import annotations

import resource
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from bench.report import Figure, ms, p50_p99, percentile
from tidemill.persist.blob import open_blobs
from tidemill.persist.log import list_log
from tidemill.persist.settings import Ages, Settings
from tidemill.persist.shard import Shard
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("id", INT8), Column("name", TEXT)))
BATCH = 10
# One commit a second, simulated: the times are a second apart, the commits follow each other at once.
DAY = 86_400
RETAIN_SECONDS = 3600
# So the ages go faster too, by about as much as a commit is shorter than a second: there are as many entries
# and removed files about as on a real day, and as many fall due.
FASTER = 200
DAY_AGES = Ages(
    log_keep_seconds=2 * 3600 // FASTER,
    removed_keep_seconds=3600 // FASTER,
    sweep_slack_seconds=600 // FASTER,
)
DAY_SETTINGS = Settings(clean_after_seconds=300 / FASTER)
# A server looks after its shards once a second. Here a round comes after some five commits.
ROUND_SECONDS = 0.02


def _batch(first: int, at: int) -> pa.Table:
    ids = np.arange(first, first + BATCH)
    return pa.table(
        {
            "id": ids,
            "name": pa.array([f"name {i}" for i in ids]),
            "mz_timestamp": pa.array(np.full(BATCH, at)),
            "mz_diff": pa.array(np.ones(BATCH, dtype=np.int64)),
        }
    )


def _commit(shard: Shard, n: int) -> float:
    at = (n + 1) * 1000
    table = _batch(n * BATCH, at)
    began = time.perf_counter()
    part = shard.write_part(table, job="bench")
    shard.compare_and_append([part], shard.upper, at + 1)
    return time.perf_counter() - began


def _rss_mb() -> float:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 1e6


def measure(*, quick: bool = False) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        blobs = open_blobs(folder)
        shard = Shard.create(blobs, "live", DESC, epoch=1)
        live = 100 if quick else 1000
        for n in range(live):
            _commit(shard, n)
        times = [_commit(shard, live + n) for n in range(50 if quick else 500)]
        met = statistics.median(times) <= 0.005 and percentile(times, 99) <= 0.025
        figures.append(
            Figure(
                f"commit of {BATCH} rows, fsync, {live} live files",
                p50_p99(times),
                "p50 <= 5 ms, p99 <= 25 ms",
                met,
            )
        )
        figures += _day(folder, 2_000 if quick else DAY)
    return figures


def _day(folder: str, commits: int) -> list[Figure]:
    """A day's commits, and beside them, in a thread of its own, the maintenance that a server does."""
    blobs = open_blobs(folder)
    shard = Shard.create(blobs, "day", DESC, epoch=1, ages=DAY_AGES, settings=DAY_SETTINGS)
    before = _rss_mb()
    times: list[float] = []
    done = threading.Event()
    rounds: list[tuple[float, int, int]] = []

    def look_after() -> None:
        while not done.wait(ROUND_SECONDS):
            began = time.perf_counter()
            shard.downgrade_since(max(0, (len(times) - RETAIN_SECONDS) * 1000))
            found = shard.maintain()
            rounds.append((time.perf_counter() - began, len(shard.parts), found.cleaned + found.swept))

    with ThreadPoolExecutor(1) as pool:
        maintenance = pool.submit(look_after)
        try:
            for n in range(commits):
                times.append(_commit(shard, n))
        finally:
            done.set()
        maintenance.result()
    grown = _rss_mb() - before
    tenth = max(1, commits // 10)
    first, last = times[:tenth], times[-tenth:]
    ratio = statistics.median(last) / statistics.median(first)
    began = time.perf_counter()
    again = Shard.open(blobs, "day", epoch=1)
    reopened = time.perf_counter() - began
    if again.upper != shard.upper or len(again.parts) != len(shard.parts):
        raise AssertionError("the shard reopened as something else")
    most = max(files for _, files, _ in rounds)
    entries = len(list_log(blobs, "day").entries)
    return [
        Figure(
            f"{commits} commits beside maintenance, last tenth against first",
            f"{ratio:.2f}x; {p50_p99(times)}, at most {ms(max(times))}",
            "flat (<= 1.3x), p50 <= 5 ms, p99 <= 25 ms",
            ratio <= 1.3 and statistics.median(times) <= 0.005 and percentile(times, 99) <= 0.025,
        ),
        Figure(
            "... live files at most, and at the end", f"{most}, {len(shard.parts)}", "<= 1000", most <= 1000
        ),
        Figure("... reopening", f"{ms(reopened)} ({entries} log entries)", "<= 1 s", reopened <= 1),
        Figure("... growth of RSS", f"{grown:.0f} MB", "<= 200 MB", grown <= 200),
        Figure(
            "... a round of maintenance",
            f"{p50_p99([seconds for seconds, _, _ in rounds])}, {len(rounds)} rounds, "
            f"{sum(deleted for _, _, deleted in rounds)} files deleted",
            "",
        ),
    ]
