"""The soak: ten sources on a real server for half an hour. Memory does not grow, files stay few, ticks hold.

A line is printed every minute. Memory is the resident memory of the server, its JVM and Spark's Python
workers together; latencies are read from /metrics, so they are upper edges of the histogram's buckets.
"""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from prometheus_client.parser import text_string_to_metric_families

from bench.report import Figure
from bench.serving import serving
from support.server import ServerProcess
from tidemill.errors import TidemillError
from tidemill.persist.blob import open_blobs
from tidemill.persist.log import load

# Each makes about a thousand records a second, but for the auctions (a hundred): what only grows, what is
# overwritten, and short and long histories of both.
# (name, generator, history)
SOURCES = [
    ("grows", "COUNTER (TICK INTERVAL '1 ms')", "1h"),
    ("grows_short", "COUNTER (TICK INTERVAL '1 ms')", "5s"),
    ("slides", "COUNTER (TICK INTERVAL '1 ms', MAX CARDINALITY 10000)", "1m"),
    ("keys", "KEY VALUE (KEYS 10000, BATCH SIZE 1000)", "1h"),
    ("keys_short", "KEY VALUE (KEYS 10000, BATCH SIZE 1000)", "5s"),
    ("keys_many", "KEY VALUE (KEYS 1000000, BATCH SIZE 1000)", "1m"),
    ("keys_go", "KEY VALUE (KEYS 10000, BATCH SIZE 1000, TOMBSTONES '20%')", "1m"),
    ("records", "KEY VALUE (KEYS 10000, BATCH SIZE 1000) ENVELOPE NONE", "1h"),
    ("one.house", "AUCTION (TICK INTERVAL '10 ms') FOR ALL TABLES", "1h"),
    ("two.house", "AUCTION (TICK INTERVAL '10 ms') FOR ALL TABLES", "1m"),
]
MINUTES = 30.0
SAMPLE_SECONDS = 10.0
# Samples around a moment whose median is taken: memory breathes with the collectors.
AROUND = 6
WARM_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  # seconds from the first
    server: int
    jvm: int
    workers: int
    # Of the shard that has most.
    files: int
    # Ticks so far by the upper edge of their time to visible, not cumulated.
    ticks: Counter[float]
    skipped: int

    @property
    def rss(self) -> int:
        return self.server + self.jvm + self.workers


def take(server: ServerProcess, began: float) -> Sample:
    process = psutil.Process(server.pid)
    sizes: Counter[str] = Counter()
    for child in process.children(recursive=True):
        try:
            sizes["jvm" if "java" in child.name() else "workers"] += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    ticks, skipped = _ticks(server)
    own = process.memory_info().rss
    files = max(_files(server.data_dir).values(), default=0)
    return Sample(time.monotonic() - began, own, sizes["jvm"], sizes["workers"], files, ticks, skipped)


def _ticks(server: ServerProcess) -> tuple[Counter[float], int]:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    ticks: Counter[float] = Counter()
    skipped = 0
    for family in text_string_to_metric_families(text):
        below: Counter[str] = Counter()
        for s in family.samples:
            if s.name == "tidemill_tick_seconds_bucket" and s.labels["phase"] == "visible":
                source = s.labels["source"]
                ticks[float(s.labels["le"])] += int(s.value) - below[source]
                below[source] = int(s.value)
            elif s.name == "tidemill_source_ticks_skipped_total":
                skipped += int(s.value)
    return ticks, skipped


def _files(data_dir: str) -> dict[str, int]:
    """Live files per shard, as the logs say."""
    blobs = open_blobs(data_dir)
    found: dict[str, int] = {}
    for shard in blobs.folders("shards"):
        try:
            found[shard] = len(load(blobs, shard).state.parts)
        except TidemillError:
            continue  # it is being made, or swept
    return found


def edge(ticks: Counter[float], percent: float) -> float:
    """The bucket in which the percentile lies."""
    left = ticks.total() * percent / 100
    for upper in sorted(ticks):
        left -= ticks[upper]
        if left <= 0:
            return upper
    return float("inf")


def _told(sample: Sample, before: Sample) -> str:
    ticks = sample.ticks - before.ticks
    mb = [n / 1e6 for n in (sample.rss, sample.server, sample.jvm, sample.workers)]
    return (
        f"  {sample.at / 60:5.1f} min: {mb[0]:.0f} MB "
        f"(server {mb[1]:.0f}, JVM {mb[2]:.0f}, workers {mb[3]:.0f}), "
        f"at most {sample.files} files, {ticks.total()} ticks, p50 <= {edge(ticks, 50)} s, "
        f"p99 <= {edge(ticks, 99)} s, {sample.skipped - before.skipped} skipped"
    )


def _rss(samples: list[Sample], at: float) -> float:
    """Around a moment."""
    nearest = sorted(samples, key=lambda s: abs(s.at - at))[:AROUND]
    return statistics.median(s.rss for s in nearest) / 1e6


def measure(*, quick: bool = False, minutes: float = MINUTES) -> list[Figure]:
    minutes = 1.0 if quick else minutes
    pause = 2.0 if quick else SAMPLE_SECONDS
    samples: list[Sample] = []
    with serving() as server:
        with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA one")
            connection.execute("CREATE SCHEMA two")
            for name, generator, history in SOURCES:
                statement = f"CREATE SOURCE {name} FROM LOAD GENERATOR {generator}"
                connection.execute(f"{statement} WITH (RETAIN HISTORY FOR '{history}')".encode())
        time.sleep(WARM_SECONDS)
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes:
            samples.append(take(server, began))
            told = max(1, int(60 / pause))
            if len(samples) % told == 0:
                print(_told(samples[-1], samples[-told]), flush=True)
            time.sleep(max(0.0, began + len(samples) * pause - time.monotonic()))
        disk = sum(f.stat().st_size for f in Path(server.data_dir).rglob("*") if f.is_file())
    return _figures(samples, minutes, disk)


def _figures(samples: list[Sample], minutes: float, disk: int) -> list[Figure]:
    third, end = _rss(samples, 20 * minutes), _rss(samples, 60 * minutes)
    ratio = end / third
    most = max(s.files for s in samples)
    ticks = samples[-1].ticks - samples[0].ticks
    skipped = samples[-1].skipped - samples[0].skipped
    return [
        Figure(
            f"memory at minute {minutes:g} against minute {minutes / 3:.1f}",
            f"{end:.0f} MB / {third:.0f} MB = {ratio:.2f}x",
            "<= 1.1x",
            ratio <= 1.1,
        ),
        Figure("live files of a shard, at most", f"{most}", "<= 1,000", most <= 1000),
        Figure(
            f"{ticks.total():,} ticks of ten sources, binding to visible",
            f"p50 <= {edge(ticks, 50)} s, p99 <= {edge(ticks, 99)} s",
            "p99 <= 1 s",
            edge(ticks, 99) <= 1,
        ),
        Figure("ticks skipped", f"{skipped}", "none", skipped == 0),
        Figure("data directory at the end", f"{disk / 1e6:.0f} MB", ""),
    ]
