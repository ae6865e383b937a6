"""Freshness: how long after a message was produced its row can be read, at a steady rate.

A message is there from the first binding on that covers its offset, and that time can be read once the
source's frontier is past it. The bindings are asked for at the end, the frontier all the time; so each of
the messages counts, with what SQL could have shown, and no query disturbs the ticks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from bench.kafka.load import PARTITIONS, Fold, Load, create_topic, produce
from bench.kafka.ours import Ours, ours
from bench.kafka.steady import Steady
from bench.report import Figure, p50_p99, percentile

# The keys that are there at the beginning, and are overwritten.
KEYS = 100_000
# What is produced in the first seconds does not count: workers start, code gets warm.
WARM_SECONDS = 5.0
# How often the frontier is asked for: freshness is told too high by half of this.
POLL_SECONDS = 0.025


def watch(one: Ours, names: Sequence[str], steady: Steady) -> np.ndarray:
    """Seconds from produced to readable, of each message."""
    seen: dict[str, list[tuple[float, int]]] = {name: [(0.0, 0)] for name in names}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-steady-") as folder:
        out = Path(folder) / "portions"
        producer = steady.start(out)
        try:
            ended = None
            # Until the frontiers have passed all that was produced.
            while ended is None or min(seen[name][-1][1] for name in names) <= ended + 2000:
                for name, frontier in one.frontiers(names).items():
                    if frontier > seen[name][-1][1]:
                        seen[name].append((time.time(), frontier))
                if ended is None and producer.poll() is not None:
                    ended = time.time() * 1000
                time.sleep(POLL_SECONDS)
            if producer.returncode != 0:
                raise SystemExit("the producer failed")
            portions = pl.read_parquet(out)
        finally:
            producer.kill()
            producer.wait()
    portions = portions.filter(pl.col("at") > pl.col("at").min() + WARM_SECONDS)
    found = [
        _fresh(portions.filter(pl.col("topic") == topic), one.bindings(name), seen[name])
        for name, topic in zip(names, steady.topics, strict=True)
    ]
    for name, topic in zip(names, steady.topics, strict=True):
        one.caught_up(name, topic)
    return np.concatenate(found)


def _fresh(portions: pl.DataFrame, bindings: pl.DataFrame, seen: list[tuple[float, int]]) -> np.ndarray:
    when = np.array([at for at, _ in seen])
    frontiers = np.array([frontier for _, frontier in seen])
    found: list[np.ndarray] = []
    for partition in range(PARTITIONS):
        mine = portions.filter(pl.col("partition") == partition)
        bound = bindings.filter(pl.col("partition") == partition).sort("time")
        counts = mine["count"].to_numpy()
        # Offsets of a portion follow each other.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.repeat(mine["first"].to_numpy(), counts) + within
        times = bound["time"].to_numpy()[np.searchsorted(bound["value"].to_numpy(), offsets, side="right")]
        visible = when[np.searchsorted(frontiers, times, side="right")]
        found.append(visible - np.repeat(mine["at"].to_numpy(), counts))
    return np.concatenate(found)


def _check(one: Ours, name: str, keys: int, *loads: Load) -> None:
    fold = Fold(keys)
    for load in loads:
        fold.apply(load)
    fold.check(one.rows(name))


def steady(bootstrap: str, *, quick: bool) -> list[Figure]:
    """One source at 10,000 messages a second, with ticks of a second and of 200 ms."""
    rate, seconds, keys = (1_000, 10.0, 5_000) if quick else (10_000, 60.0, KEYS)
    figures: list[Figure] = []
    with ours(bootstrap) as one:
        for tick, p50_aim, p99_aim, aim in (
            ("1s", 1.2, 2.0, "p50 <= 1.2 s, p99 <= 2 s"),
            ("200ms", 0.5, None, "p50 <= 500 ms"),
        ):
            topic = name = f"fresh_{tick}"
            create_topic(bootstrap, topic)
            before = Load(keys, keys, once=True)
            produce(bootstrap, topic, before)
            one.create(name, topic, tick=tick)
            one.caught_up(name, topic)
            work = Steady(bootstrap, (topic,), rate, 0.01, seconds + WARM_SECONDS, keys, keys)
            found = watch(one, [name], work)
            _check(one, name, keys, before, work.load)
            skipped = one.ticks(name).skipped
            one.drop(name)
            values = found.tolist()
            met = percentile(values, 50) <= p50_aim and (p99_aim is None or percentile(values, 99) <= p99_aim)
            what = f"freshness at {rate:,} msg/s, ticks of {tick}, {seconds:.0f} s"
            figures.append(Figure(what, f"{p50_p99(values)}; {skipped} ticks skipped", aim, met))
    return figures


def ten(bootstrap: str, *, quick: bool) -> list[Figure]:
    """Ten sources of 1,000 messages a second each, with ticks of a second."""
    sources, rate, seconds, keys = (3, 100, 10.0, 1_000) if quick else (10, 1_000, 60.0, 10_000)
    names = tuple(f"ten_{n}" for n in range(sources))
    before = Load(keys, keys, once=True)
    with ours(bootstrap) as one:
        for name in names:
            create_topic(bootstrap, name)
            produce(bootstrap, name, before)
            one.create(name, name)
        for name in names:
            one.caught_up(name, name)
        skipped = {name: one.ticks(name).skipped for name in names}
        work = Steady(bootstrap, names, rate, 0.05, seconds + WARM_SECONDS, keys, keys)
        values = watch(one, names, work).tolist()
        late = sum(one.ticks(name).skipped - skipped[name] for name in names)
        _check(one, names[-1], keys, before, work.load)
    p99 = percentile(values, 99)
    what = f"{sources} sources of {rate:,} msg/s, ticks of 1s, {seconds:.0f} s"
    return [
        Figure(f"{what}: freshness", p50_p99(values), "p99 <= 2.5 s (1.5 s)", p99 <= 2.5),
        Figure("... ticks skipped", f"{late}", "none", late == 0),
    ]
