"""CDCv2 by its definition, on a small grid of times, and streams to try it on.

The oracle keeps every message and looks at every time: a time is complete when some statement's region
holds it and as many distinct updates have come as that statement counts; the frontier is the least times
that are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tidemill.cdcv2 import Message, Progress, Updates
from tidemill.cdcv2.coverage import reaches
from tidemill.cdcv2.times import Time

Update = tuple[Any, Time, int]


def at_or_before(a: Time, b: Time) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        assert isinstance(a, int) and isinstance(b, int)
        return a <= b
    return all(x <= y for x, y in zip(a, b, strict=True))


def after(bound: Iterable[Time], time: Time) -> bool:
    return any(at_or_before(b, time) for b in bound)


def lowest(times: Iterable[Time]) -> tuple[Any, ...]:
    found = set(times)
    return tuple(sorted(t for t in found if not any(o != t and at_or_before(o, t) for o in found)))


def grid(kind: int, side: int) -> list[Time]:
    return list(range(side)) if kind == 0 else list(itertools.product(range(side), repeat=kind))


@dataclass
class Oracle:
    """All messages so far, and what they say by definition. `side` bounds the coordinates of the stream."""

    kind: int
    side: int
    start: tuple[Time, ...] | None = None
    updates: set[Update] = field(default_factory=set[Update])
    statements: set[tuple[Any, ...]] = field(default_factory=set[tuple[Any, ...]])

    def take(self, message: Message) -> None:
        if isinstance(message, Updates):
            self.updates.update(message.updates)
        else:
            self.statements.add((tuple(message.lower), tuple(message.upper), tuple(message.counts)))

    def frontier(self) -> tuple[Any, ...]:
        """One more in each direction than the stream has: what is incomplete there is incomplete for ever."""
        have: dict[Time, int] = {}
        for _, time, _ in self.updates:
            have[time] = have.get(time, 0) + 1
        complete: set[Time] = set()
        for lower, upper, counts in self.statements:
            stated = dict(counts)
            for time in grid(self.kind, self.side + 1):
                inside = after(lower, time) and not after(upper, time)
                if inside and have.get(time, 0) == stated.get(time, 0):
                    complete.add(time)
        return lowest(
            t
            for t in grid(self.kind, self.side + 1)
            if t not in complete and (self.start is None or after(self.start, t))
        )

    def released(self, frontier: Sequence[Time]) -> set[Update]:
        return {
            u
            for u in self.updates
            if not after(frontier, u[1]) and (self.start is None or after(self.start, u[1]))
        }

    def must_keep(self, frontier: Sequence[Time]) -> tuple[int, int]:
        """The bound on what a reader keeps: updates and statements beyond the frontier."""
        updates = sum(after(frontier, t) for _, t, _ in self.updates)
        statements = sum(reaches(tuple(frontier), s[0], s[1]) for s in self.statements)
        return updates, statements


def history(rng: Random, kind: int, side: int, size: int) -> list[Update]:
    times = grid(kind, side)
    chosen: dict[tuple[str, Time], int] = {}
    for _ in range(size):
        chosen[rng.choice("abcde"), rng.choice(times)] = rng.choice((-2, -1, 1, 2))
    return [(data, time, diff) for (data, time), diff in chosen.items()]


def count(updates: Iterable[Update], lower: Sequence[Time], upper: Sequence[Time]) -> list[tuple[Time, int]]:
    counts: dict[Time, int] = {}
    for _, time, _ in updates:
        if after(lower, time) and not after(upper, time):
            counts[time] = counts.get(time, 0) + 1
    return list(counts.items())


def statements(
    rng: Random, updates: Sequence[Update], kind: int, side: int, cuts: int, *, end: bool = True
) -> list[Progress]:
    """One writer's: a chain of frontiers from the least time to the end."""
    times = grid(kind, side)
    bounds: list[tuple[Any, ...]] = [lowest(times)]
    for _ in range(cuts):
        ahead = [t for t in times if after(bounds[-1], t)]
        if not ahead:
            break
        bounds.append(lowest(rng.choice(ahead) for _ in range(rng.randint(1, 3))))
    if end:
        bounds.append(())
    return [Progress(a, b, count(updates, a, b)) for a, b in itertools.pairwise(bounds) if a != b]


def batches(rng: Random, updates: Sequence[Update]) -> list[Updates]:
    """All updates, some of them twice in one message, in messages of any size."""
    rows = list(updates)
    rng.shuffle(rows)
    result: list[Updates] = []
    while rows:
        size = rng.randint(1, 4)
        chunk, rows = rows[:size], rows[size:]
        if rng.random() < 0.3:
            chunk.append(rng.choice(chunk))
        result.append(Updates(chunk))
    return result


def stream(
    rng: Random, kind: int, side: int, *, writers: int = 2, size: int = 8, cuts: int = 3
) -> list[Message]:
    """What several writers say of one history, mangled by a transport."""
    updates = history(rng, kind, side, size)
    messages: list[Message] = []
    for _ in range(writers):
        messages += statements(rng, updates, kind, side, rng.randint(0, cuts))
        messages += batches(rng, updates)
    if kind and rng.random() < 0.5:
        # Regions that no chain has: each true by itself.
        messages += regions(rng, updates, kind, side, 3)
    messages += [rng.choice(messages) for _ in range(rng.randint(0, 4))]
    rng.shuffle(messages)
    return messages


def regions(rng: Random, updates: Sequence[Update], kind: int, side: int, number: int) -> list[Progress]:
    times = grid(kind, side)
    found: list[Progress] = []
    for _ in range(number):
        lower = lowest(rng.choice(times) for _ in range(rng.randint(1, 3)))
        upper = lowest(t for t in rng.sample(times, min(3, len(times))) if after(lower, t))
        found.append(Progress(lower, upper, count(updates, lower, upper)))
    return found
