"""Catching up with a topic, against the bare ceiling and two peers; in turns, on one broker and one topic.

The machine is noisy, so each run stands between two runs of the ceiling, and what is compared is its rate
as a part of theirs. Every result is checked against the fold; a peer that is missing or fails is a line of
the table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import psycopg

from bench.kafka.load import Fold, Load, Wrong, create_topic, produce
from bench.kafka.memory import Memory, Watch
from bench.kafka.ours import ours
from bench.ours import Stalled
from bench.peers.programs import Failed, Missing, Peer, Run, ceiling, delta, flink
from bench.report import Figure
from support.server import ServerError

TOPIC = "catch-up"
OURS = "ours"


@dataclass(slots=True)
class Runs:
    """Of one contestant. `parts` are its rates as parts of the ceiling's around it."""

    rates: list[float] = field(default_factory=list[float])
    parts: list[float] = field(default_factory=list[float])
    memory: list[Memory] = field(default_factory=list[Memory])
    # Why there is nothing.
    trouble: str = ""

    @property
    def told(self) -> str:
        if not self.rates:
            return self.trouble
        middle = statistics.median(self.rates)
        spread = f", {min(self.rates):,.0f} to {max(self.rates):,.0f}" if len(self.rates) > 1 else ""
        return f"{middle:,.0f} msg/s{spread}"

    @property
    def part(self) -> float:
        return statistics.median(self.parts)


class Race:
    """All contestants on one topic."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        self.bootstrap = bootstrap
        self.load = load
        self.fold = Fold(load.keys * load.stride).apply(load)
        self.runs: dict[str, Runs] = {}
        self._ceiling: Peer | None = None
        # The rate of the ceiling's last run.
        self._before: float | None = None

    def prepare(self) -> None:
        create_topic(self.bootstrap, TOPIC)
        produce(self.bootstrap, TOPIC, self.load)
        runs = self.runs.setdefault("ceiling", Runs())
        try:
            self._ceiling = ceiling()
        except Missing as e:
            runs.trouble = _trouble(e)

    def run(self, name: str, once: Callable[[], Run]) -> None:
        """One run between two of the ceiling."""
        runs = self.runs.setdefault(name, Runs())
        before = self._before or self.run_ceiling()
        try:
            one = once()
        except (Missing, Failed, Wrong, Stalled, ServerError, psycopg.Error) as e:
            runs.trouble = _trouble(e)
            print(f"  {name}: {e}", flush=True)
            return
        rate = self.load.messages / one.seconds
        runs.rates.append(rate)
        runs.memory.append(one.memory)
        self._before = after = self.run_ceiling()
        part = ""
        if before and after:
            runs.parts.append(rate / statistics.mean((before, after)))
            part = f", {runs.parts[-1]:.3f} of the ceiling"
        print(f"  {name}: {rate:,.0f} msg/s{part}; {one.memory.told()}", flush=True)

    def run_ceiling(self) -> float | None:
        if self._ceiling is None:
            return None
        run = self._ceiling.run(self.bootstrap, TOPIC, self.fold)
        rate = self.load.messages / run.seconds
        self.runs["ceiling"].rates.append(rate)
        self.runs["ceiling"].memory.append(run.memory)
        return rate

    def ours(self) -> Run:
        """A server that is ready, CREATE SOURCE, until all can be read."""
        with ours(self.bootstrap) as one, Watch(one.server.pid) as watch:
            began = time.monotonic()
            one.create("s", TOPIC)
            one.caught_up("s", TOPIC)
            seconds = time.monotonic() - began
            self.fold.check(one.rows("s"))
        return Run(seconds, watch.peak)

    def peer(self, make: Callable[[], Peer]) -> Callable[[], Run]:
        return lambda: make().run(self.bootstrap, TOPIC, self.fold)

    def best_batch(self, sizes: Sequence[int]) -> int:
        """The batch size at which Delta is fastest; one run each."""
        rates: dict[int, float] = {}
        for size in sizes:
            try:
                run = self.peer(lambda size=size: delta(size))()
            except (Missing, Failed, Wrong) as e:
                print(f"  Delta with batches of {size:,}: {e}", flush=True)
                continue
            rates[size] = self.load.messages / run.seconds
            print(f"  Delta with batches of {size:,}: {rates[size]:,.0f} msg/s", flush=True)
        return max(rates, key=lambda size: rates[size]) if rates else sizes[0]


def _trouble(error: Exception) -> str:
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{'MISSING' if isinstance(error, Missing) else 'FAILED'}: {first}"


def measure(bootstrap: str, parts: Collection[str], *, quick: bool) -> list[Figure]:
    load = Load(50_000, 12_500) if quick else Load(2_000_000, 500_000)
    rounds = 1 if quick else 5
    race = Race(bootstrap, load)
    race.prepare()
    if "ceiling" in parts:
        race.run_ceiling()
    fractions = (1,) if quick else (8, 4, 2, 1)
    batch = race.best_batch([load.messages // n for n in fractions]) if "delta" in parts else 0
    for _ in range(rounds):
        if "catch-up" in parts:
            race.run(OURS, race.ours)
        if "flink" in parts:
            race.run("flink", race.peer(flink))
        if "delta" in parts:
            race.run("delta", race.peer(lambda: delta(batch)))
    return _figures(race, parts, rounds, batch)


def _figures(race: Race, parts: Collection[str], rounds: int, batch: int) -> list[Figure]:
    load = race.load
    what = f"{load.messages:,} upserts over {load.keys:,} keys, {rounds} rounds"
    figures: list[Figure] = []
    names = {
        "ceiling": "the bare ceiling (Rust, a hash map)",
        OURS: "ours, CREATE SOURCE to caught up",
        "flink": "Flink 2.3 -> Paimon",
        "delta": f"Spark 4.2 + Delta MERGE, batches of {batch:,}",
    }
    for name, runs in race.runs.items():
        aim, met = "", None
        if name == OURS:
            aim, met = ">= 100,000 msg/s", bool(runs.rates) and statistics.median(runs.rates) >= 100_000
        elif runs.trouble:
            aim, met = "runs, with the right result", False
        figures.append(Figure(f"{what}: {names[name]}", runs.told, aim, met))
        if runs.memory:
            most = max(runs.memory, key=lambda m: m.share)
            figures.append(Figure("... memory at most", most.told(), ""))
    mine = race.runs.get(OURS, Runs())
    if mine.parts:
        figures.append(
            Figure("ours against the ceiling", f"{mine.part:.3f}x", ">= 0.25x (0.4x)", mine.part >= 0.25)
        )
    for name, least, more in (("flink", 2, 3), ("delta", 4, 6)):
        if name not in parts or "catch-up" not in parts:
            continue
        theirs = race.runs[name]
        if mine.parts and theirs.parts:
            ratio = mine.part / theirs.part
            measured, met = f"{ratio:.1f}x", ratio >= least
        else:
            measured, met = "not compared: see above", False
        figures.append(Figure(f"ours against {names[name]}", measured, f">= {least}x ({more}x)", met))
    return figures
