"""At ten million keys: a tick, a catch-up, hydration, and memory.

One topic that has each of the keys once, and one server whose source holds them. Ticks are compared with
those of smaller sources on the same server, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.kafka.load import Fold, Load, create_topic, ends, produce, produce_open
from bench.kafka.memory import Memory, Watch
from bench.kafka.ours import Ours, ours
from bench.kafka.steady import Steady
from bench.report import Figure, ms, p50_p99, print_table

POLL_SECONDS = 0.1
# The first ticks of a turn do not count.
WARM_TICKS = 3
CHANGED = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    keys: int
    # The smaller sources.
    others: tuple[int, ...]
    # The catch-up at this size, as in `catch_up`.
    messages: int
    touched: int
    # Ticks of one turn, and turns.
    ticks: int
    turns: int
    repeats: int


FULL = Sizes(10_000_000, (10_000, 1_000_000), 2_000_000, 500_000, 20, 3, 3)
QUICK = Sizes(20_000, (2_000,), 20_000, 5_000, 6, 1, 1)


class Held:
    """A source, its topic and its fold; how far its messages are numbered."""

    def __init__(self, one: Ours, keys: int) -> None:
        self.one = one
        self.keys = keys
        self.name = self.topic = f"keys_{keys}"
        self.load = Load(keys, keys, once=True)
        self.fold = Fold(keys).apply(self.load)
        self.number = keys
        # Of the first catch-up.
        self.seconds = 0.0
        self.peak = Memory()

    def begin(self) -> None:
        create_topic(self.one.bootstrap, self.topic)
        produce(self.one.bootstrap, self.topic, self.load)
        with Watch(self.one.server.pid) as watch:
            began = time.monotonic()
            self.one.create(self.name, self.topic)
            self.one.caught_up(self.name, self.topic)
            self.seconds = time.monotonic() - began
        self.peak = watch.peak

    def next(self, messages: int, keys: int) -> Load:
        """Another load, which is in the fold already."""
        load = Load(messages, keys, stride=self.keys // keys, first=self.number, seed=self.number)
        self.number += messages
        self.fold.apply(load)
        return load

    def check(self) -> None:
        self.fold.check(self.one.rows(self.name))


def _turn(held: Held, ticks: int) -> list[float]:
    """Seconds from binding to visible, of ticks of `CHANGED` keys each."""
    work = Steady(
        held.one.bootstrap, (held.topic,), CHANGED, 1.0, float(ticks + WARM_TICKS), held.keys, held.number
    )
    held.fold.apply(work.load)
    held.number += work.load.messages
    found: list[float] = []
    before = held.one.ticks(held.name)
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-steady-") as folder:
        producer = work.start(Path(folder) / "portions")
        try:
            while producer.poll() is None:
                now = held.one.ticks(held.name)
                if now.count > before.count:
                    # More than one only if asking took longer than a tick.
                    found.append((now.visible - before.visible) / (now.count - before.count))
                    before = now
                time.sleep(POLL_SECONDS)
        finally:
            producer.kill()
            producer.wait()
        if producer.returncode != 0:
            raise SystemExit("the producer failed")
    held.one.caught_up(held.name, held.topic)
    return found[WARM_TICKS:]


def _ticks(all_held: list[Held], sizes: Sizes) -> list[Figure]:
    times: dict[int, list[float]] = {held.keys: [] for held in all_held}
    for _ in range(sizes.turns):
        for held in all_held:
            times[held.keys] += _turn(held, sizes.ticks)
    figures: list[Figure] = []
    medians = {keys: statistics.median(found) for keys, found in times.items()}
    for keys, found in times.items():
        what = f"tick of {CHANGED:,} changed keys at {keys:,} keys, binding to visible"
        measured = f"{p50_p99(found)} ({len(found)} ticks)"
        figures.append(Figure(what, measured, "p50 <= 350 ms (250 ms)", medians[keys] <= 0.35))
    ratio = max(medians.values()) / min(medians.values())
    figures.append(
        Figure("... slowest size against fastest", f"{ratio:.2f}x", "<= 1.3x (1.1x)", ratio <= 1.3)
    )
    return figures


def _catch_up(held: Held, sizes: Sizes, rate: float | None) -> list[Figure]:
    """`rate` is that of an empty source at the same load."""
    rates: list[float] = []
    for _ in range(sizes.repeats):
        waiting = produce_open(held.one.bootstrap, held.topic, held.next(sizes.messages, sizes.touched))
        began = time.monotonic()
        waiting.commit()
        held.one.caught_up(held.name, held.topic)
        rates.append(sizes.messages / (time.monotonic() - began))
    middle = statistics.median(rates)
    what = f"{sizes.messages:,} upserts over {sizes.touched:,} of {held.keys:,} keys that are there"
    figures = [Figure(f"{what}: ours", f"{middle:,.0f} msg/s", "")]
    if rate:
        ratio = middle / rate
        figures.append(
            Figure("... against the empty source", f"{ratio:.2f}x", ">= 0.7x (0.9x)", ratio >= 0.7)
        )
    return figures


def _empty(bootstrap: str, sizes: Sizes) -> float:
    """The rate of catching up from nothing, in the same way: the backlog appears at one moment."""
    topic = name = "keys_none"
    rates: list[float] = []
    create_topic(bootstrap, topic)
    load = Load(sizes.messages, sizes.touched)
    produce(bootstrap, topic, load)
    for _ in range(sizes.repeats):
        with ours(bootstrap) as one:
            began = time.monotonic()
            one.create(name, topic)
            one.caught_up(name, topic)
            rates.append(sizes.messages / (time.monotonic() - began))
    return statistics.median(rates)


def _hydration(held: Held, sizes: Sizes) -> list[Figure]:
    """The server comes back without its cache; the first messages make it read the whole collection."""
    rates: list[float] = []
    misses = 0
    for _ in range(sizes.repeats):
        held.one.restart(without_cache=True)
        before = held.one.ticks(held.name)
        produce(held.one.bootstrap, held.topic, held.next(CHANGED, min(CHANGED, held.keys)))
        held.one.caught_up(held.name, held.topic)
        after = held.one.ticks(held.name)
        misses = after.misses - before.misses
        rates.append(held.keys / (after.visible - before.visible))
    rate = statistics.median(rates)
    what = f"hydration of {held.keys:,} keys after the cache was deleted ({misses} buckets), a tick included"
    if not misses:
        return [Figure(what, "FAILED: nothing was read anew", ">= 500,000 keys/s (1,000,000)", False)]
    aim = ">= 500,000 keys/s (1,000,000)"
    return [Figure(what, f"{rate:,.0f} keys/s ({ms(held.keys / rate)})", aim, rate >= 500_000)]


def _memory(held: Held) -> list[Figure]:
    """The same topic twice as long, from the beginning, on another server; the first one rests meanwhile."""
    held.one.drop(held.name)
    produce(held.one.bootstrap, held.topic, held.next(held.keys, held.keys))
    total = sum(ends(held.one.bootstrap, held.topic))
    with ours(held.one.bootstrap) as other:
        with Watch(other.server.pid) as watch:
            other.create("twice", held.topic)
            other.caught_up("twice", held.topic)
        held.fold.check(other.rows("twice"))
    ratio = watch.peak.share / held.peak.share
    return [
        Figure(
            f"memory while catching up with {held.keys:,} keys",
            held.peak.told(),
            "<= 6 GB (3 GB)",
            held.peak.share <= 6e9,
        ),
        Figure(
            f"... with a topic of {total:,} messages over the same keys",
            f"{watch.peak.told()}: {ratio:.2f}x",
            "<= 1.1x",
            ratio <= 1.1,
        ),
    ]


@contextmanager
def _holding(bootstrap: str, keys: int) -> Generator[Held]:
    with ours(bootstrap) as one:
        held = Held(one, keys)
        held.begin()
        yield held


def measure(bootstrap: str, parts: Collection[str], *, quick: bool) -> list[Figure]:
    sizes = QUICK if quick else FULL
    figures: list[Figure] = []

    def add(found: list[Figure]) -> None:
        """Its table at once: what comes later may fail."""
        print_table(found)
        figures.extend(found)

    # Alone on the machine: before the large source is there.
    rate = _empty(bootstrap, sizes) if "large" in parts else None
    with ExitStack() as stack:
        held = stack.enter_context(_holding(bootstrap, sizes.keys))
        loaded = held.keys / held.seconds
        add([Figure(f"{held.keys:,} new keys, CREATE SOURCE to caught up", f"{loaded:,.0f} msg/s", "")])
        if "large" in parts:
            add(_catch_up(held, sizes, rate))
        if "tick" in parts:
            others = [Held(held.one, keys) for keys in sizes.others]
            for other in others:
                other.begin()
            add(_ticks([*others, held], sizes))
            for other in others:
                other.check()
        if "hydration" in parts:
            add(_hydration(held, sizes))
        held.check()
        if "memory" in parts:
            add(_memory(held))
    return figures
