"""Coverage: which statement covers which times, and how far they reach without a gap.

Called by `Tally`. There are two forms: intervals of a line, and regions of a product order. Each keeps only
the coverage beyond the reported frontier. Redundant regions are dropped where this is cheap to detect.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Protocol, cast

from tidemill.cdcv2.times import INTEGERS, Frontier, Time, beyond_each, joins, minimal, shown, within_each

# The maximum number of elements of the progress frontier of products. With three or more components it can
# have the product of the sizes of two bounds; finding the least of so many takes some tenths of a second.
MAX_FRONTIER = 10_000


@dataclass(frozen=True, slots=True)
class StatedSpan:
    """The stored part of a progress message: its bounds and its origin. Its counts are stored with their
    times."""

    lower: Frontier
    upper: Frontier
    origin: str

    def __str__(self) -> str:
        return f"progress from {shown(self.lower)} to {shown(self.upper)} of {self.origin}"


class Coverage(Protocol):
    # The frontier that `extend` returned could advance further, but would have too many elements.
    held_back: bool

    def add(self, statement: StatedSpan) -> None: ...

    def covering(self, time: Time) -> StatedSpan | None:
        """A statement whose region contains `time`."""
        ...

    def covering_each(self, times: Sequence[Time]) -> list[StatedSpan | None]:
        """`covering` for each of `times`."""
        ...

    def extend(self, frontier: Frontier, statement: StatedSpan | None) -> Frontier:
        """`frontier` is the least uncovered times; returns the same after `statement` was added (None: any).
        If the result is held back, everything before it is still covered."""
        ...

    def forget(self, reported: Frontier) -> None:
        """Drops the state that only times not beyond `reported` need."""
        ...

    def nearest(self, time: Time) -> Frontier:
        """The least times beyond `time`, which is uncovered, that some statement covers."""
        ...

    def statements(self) -> Sequence[StatedSpan]:
        """All stored statements; adding them to an empty coverage gives an equal one."""
        ...

    def __len__(self) -> int: ...


def empty_coverage(kind: int, max_frontier: int = MAX_FRONTIER) -> Coverage:
    return LineCoverage() if kind == INTEGERS else ProductCoverage(max_frontier)


class LineCoverage:
    """For integers: disjoint intervals in order. A later statement replaces those that it covers completely,
    so there are never more intervals than statements."""

    held_back = False

    def __init__(self) -> None:
        # Interval i is [starts[i], ends[i]); the end is infinity if a statement ends the stream.
        self._starts: list[int] = []
        self._ends: list[float] = []
        self._by: list[StatedSpan] = []

    def add(self, statement: StatedSpan) -> None:
        low = cast("int", statement.lower[0])
        high = cast("int", statement.upper[0]) if statement.upper else math.inf
        first = bisect_left(self._starts, low)
        if first < len(self._starts) and self._starts[first] == low and self._ends[first] >= high:
            return
        if first and self._ends[first - 1] > low:
            if self._ends[first - 1] >= high:
                return
            self._ends[first - 1] = low
        last = first
        while last < len(self._starts) and self._ends[last] <= high:
            last += 1
        if last < len(self._starts) and self._starts[last] < high:
            self._starts[last] = cast("int", high)  # its end is above, so this is finite
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]
        self._by[first:last] = [statement]

    def covering(self, time: Time) -> StatedSpan | None:
        at = bisect_right(self._starts, cast("int", time)) - 1
        return self._by[at] if at >= 0 and self._ends[at] > cast("int", time) else None

    def covering_each(self, times: Sequence[Time]) -> list[StatedSpan | None]:
        return [self.covering(t) for t in times]

    def extend(self, frontier: Frontier, statement: StatedSpan | None) -> Frontier:
        if not frontier:
            return frontier
        here = cast("int", frontier[0])
        at = bisect_right(self._starts, here) - 1
        while 0 <= at < len(self._starts) and self._starts[at] <= here < self._ends[at]:
            if self._ends[at] == math.inf:
                return ()
            here = cast("int", self._ends[at])
            at += 1
        return (here,)

    def forget(self, reported: Frontier) -> None:
        gone = bisect_right(self._ends, cast("int", reported[0])) if reported else len(self._ends)
        if gone:
            del self._starts[:gone], self._ends[:gone], self._by[:gone]

    def nearest(self, time: Time) -> Frontier:
        at = bisect_right(self._starts, cast("int", time))
        return (self._starts[at],) if at < len(self._starts) else ()

    def statements(self) -> Sequence[StatedSpan]:
        return [
            StatedSpan((start,), () if end == math.inf else (cast("int", end),), by.origin)
            for start, end, by in zip(self._starts, self._ends, self._by, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._starts)


class ProductCoverage:
    """For products of integers: the regions as they were stated, without duplicates. Lookups scan all of
    them; there are as many as distinct statements that touch unreported times."""

    def __init__(self, max_frontier: int = MAX_FRONTIER) -> None:
        self.held_back = False
        self._max_frontier = max_frontier
        self._regions: dict[tuple[Frontier, Frontier], StatedSpan] = {}

    def add(self, statement: StatedSpan) -> None:
        self._regions.setdefault((statement.lower, statement.upper), statement)

    def covering(self, time: Time) -> StatedSpan | None:
        return self.covering_each((time,))[0]

    def covering_each(self, times: Sequence[Time]) -> list[StatedSpan | None]:
        found: list[StatedSpan | None] = [None] * len(times)
        left = list(range(len(times)))
        for (lower, upper), statement in self._regions.items():
            if not left:
                break
            inside = within_each(lower, upper, [times[i] for i in left])
            for i in compress(left, inside):
                found[i] = statement
            left = [i for i, here in zip(left, inside, strict=True) if not here]
        return found

    def extend(self, frontier: Frontier, statement: StatedSpan | None) -> Frontier:
        """Moves each element in a region to the region's exit: everything between is covered. This repeats to
        a fixpoint, because the new element may lie in another region. Only the element, not the whole
        frontier, must be beyond `lower`; otherwise two statements that each need the other's half of the
        frontier would wait for each other."""
        if statement is not None:
            inside = within_each(statement.lower, statement.upper, frontier)
            if not any(inside):
                return frontier
            # The new statement first: it may cover in one step what the others cover in too many pieces.
            moved = self._moved(frontier, [statement if i else None for i in inside])
            frontier = frontier if moved is None else moved
        while any(by := self.covering_each(frontier)):
            moved = self._moved(frontier, by)
            if moved is None:
                self.held_back = True
                return frontier
            frontier = moved
        self.held_back = False
        return frontier

    def _moved(self, frontier: Frontier, by: Sequence[StatedSpan | None]) -> Frontier | None:
        """Moves each element that is in a region to the region's exit; None if the result would have too many
        elements."""
        # Only minimal elements matter: a time that is uncovered beyond a greater one is also beyond the
        # lesser.
        found = [p for p, s in zip(frontier, by, strict=True) if s is None]
        for p, s in zip(frontier, by, strict=True):
            if s is None:
                continue
            found += joins(s.upper, p)
            if len(found) > 2 * self._max_frontier:
                found = list(minimal(found))
                if len(found) > self._max_frontier:
                    return None
        moved = minimal(found)
        return None if len(moved) > self._max_frontier else moved

    def forget(self, reported: Frontier) -> None:
        if not reported:
            self._regions.clear()
        self._regions = {k: s for k, s in self._regions.items() if reaches(reported, *k)}

    def nearest(self, time: Time) -> Frontier:
        """The times at which `time` would enter a region when it advances."""
        found: list[Time] = []
        for lower, upper in self._regions:
            entered = joins(lower, time)
            found += [t for t, out in zip(entered, beyond_each(upper, entered), strict=True) if not out]
        return minimal(found)

    def statements(self) -> Sequence[StatedSpan]:
        return list(self._regions.values())

    def __len__(self) -> int:
        return len(self._regions)


def reaches(reported: Frontier, lower: Frontier, upper: Frontier) -> bool:
    """Whether the region between `lower` and `upper` has a time beyond `reported`."""
    # A time beyond `upper` stays beyond it after a join.
    here = [r for r, out in zip(reported, beyond_each(upper, reported), strict=True) if not out]
    if not here or not lower:
        return False
    if any(beyond_each(lower, here)) or any(within_each(here, upper, lower)):
        return True
    return any(not all(beyond_each(upper, joins(lower, r))) for r in here)
