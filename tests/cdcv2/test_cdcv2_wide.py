"""Bounds of hundreds of product times: whole columns say what the definitions say, element by element."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from cdcv2_oracle import after, at_or_before, lowest

from tidemill.cdcv2 import Progress, Recovery, Updates
from tidemill.cdcv2.coverage import ProductCoverage, StatedSpan, reaches
from tidemill.cdcv2.problems import Stalled
from tidemill.cdcv2.tally import MAX_STALLS, Tally
from tidemill.cdcv2.times import beyond_each, joins, minimal, shown, within_each
from tidemill.cdcv2.writer import resume_from
from tidemill.errors import LimitExceeded

SIZES = (0, 1, 31, 32, 70)


def some(rng: Random, arity: int, size: int) -> list[Any]:
    """Times near an antichain, some of them above others."""
    found: list[Any] = []
    for _ in range(size):
        parts = [rng.randrange(size + 1) for _ in range(arity - 1)]
        found.append((*parts, max(0, size - sum(parts)) + rng.randrange(3)))
    return found


def join(a: Any, b: Any) -> Any:
    return tuple(map(max, a, b))


@pytest.mark.parametrize("arity", [1, 2, 3, 4])
def test_columns_say_what_the_definitions_say(arity: int) -> None:
    rng = Random(arity)
    for size in SIZES:
        for other in SIZES:
            bound, times, upper = some(rng, arity, size), some(rng, arity, other), some(rng, arity, size)
            assert list(minimal(times)) == sorted(lowest(times))
            assert beyond_each(bound, times) == [after(bound, t) for t in times]
            inside = [after(bound, t) and not after(upper, t) for t in times]
            assert within_each(bound, upper, times) == inside
            for t in times[:2]:
                assert list(joins(bound, t)) == sorted(lowest([join(b, t) for b in bound]))


@pytest.mark.parametrize("arity", [2, 3])
def test_wide_regions_as_the_definitions_have_them(arity: int) -> None:
    rng = Random(7)
    for n in range(16):
        size = 3 if n % 4 else 36
        reported, lower, upper = (minimal(some(rng, arity, size)) for _ in range(3))
        expected = any(not after(upper, join(r, low)) for r in reported for low in lower)
        assert reaches(reported, lower, upper) == expected
        coverage = ProductCoverage()
        statements = [StatedSpan(lower, tuple(upper), "a"), StatedSpan(tuple(upper), tuple(reported), "b")]
        moved = lower
        for statement in statements:
            coverage.add(statement)
            moved = coverage.extend(moved, statement)
        # By the elements that were there: each one that is covered moves, one by one.
        left, uncovered, seen = list(lower), set[Any](), set[Any](lower)
        while left:
            p = left.pop()
            by = next((s for s in statements if after(s.lower, p) and not after(s.upper, p)), None)
            if by is None:
                uncovered.add(p)
            else:
                further = {join(p, u) for u in by.upper} - seen
                seen |= further
                left += further
        assert list(moved) == sorted(lowest(list(uncovered)))
        nearest = [join(lower[0], low) for s in statements for low in s.lower]
        entered = [t for t in nearest if any(after(s.lower, t) and not after(s.upper, t) for s in statements)]
        if coverage.covering(lower[0]) is None:
            assert all(any(at_or_before(n, t) for n in coverage.nearest(lower[0])) for t in entered)


def test_a_stream_with_bounds_of_hundreds() -> None:
    width = 300

    def stairs(n: int) -> list[Any]:
        return [(i + n, width - i + n) for i in range(width)]

    recovery = Recovery()
    at = [(i + 1, width - i + 1) for i in range(0, width, 3)]
    recovery.push(Progress(stairs(1), stairs(2), [(t, 1) for t in at]))
    recovery.push(Updates([("x", t, 1) for t in at]))
    assert recovery.stalls() and recovery.pending_statements == 1
    ((released, frontier),) = recovery.push(Progress([(0, 0)], stairs(1)))
    assert released == [("x", t, 1) for t in at] and frontier == stairs(2)
    assert recovery.push(Progress(stairs(2), [])) == [([], [])]


def _crossed(n: int) -> list[Progress]:
    """Two statements with bounds of n times each whose regions together end at n * n times."""
    first: list[Any] = [(i, n - 1 - i, 0, 0) for i in range(n)]
    second: list[Any] = [(0, 0, i, n - 1 - i) for i in range(n)]
    return [Progress([(0, 0, 0, 0)], first, [((0, 0, 0, 0), 1)]), Progress([(0, 0, 0, 0)], second)]


def test_the_progress_frontier_has_a_limit() -> None:
    recovery = Recovery(max_frontier=20)
    recovery.push(Updates([("a", (0, 0, 0, 0), 1), ("b", (20, 9, 9, 9), 1)]))
    wide, crossed = _crossed(5)
    ((released, frontier),) = recovery.push(wide)
    assert released == [("a", (0, 0, 0, 0), 1)] and len(frontier) == 5
    with pytest.raises(LimitExceeded, match="the progress frontier has more than 20 times") as caught:
        recovery.push(replace(crossed, counts=[((0, 0, 0, 0), 1)]))
    assert caught.value.hint is not None and "max_frontier" in caught.value.hint
    # It was taken in and nothing wrong came out; every push says so, until what is stated fits.
    assert recovery.frontier == frontier and recovery.stalls() and recovery.stashed == 1
    with pytest.raises(LimitExceeded, match="the progress frontier"):
        recovery.push(Updates([("b", (20, 9, 9, 9), 1)]))
    ((released, frontier),) = recovery.push(Progress([(0, 0, 0, 0)], [(10, 0, 0, 0)], [((0, 0, 0, 0), 1)]))
    assert released == [] and frontier == [(10, 0, i, 4 - i) for i in range(5)]
    assert recovery.push(Progress(frontier, [], [((20, 9, 9, 9), 1)])) == [([("b", (20, 9, 9, 9), 1)], [])]


def test_the_limit_is_kept_across_a_restart() -> None:
    tally = Tally(None, content=lambda _: 0, max_frontier=20)
    for statement in _crossed(5):
        tally.declare(replace(statement, counts=[]), "a test")
        tally.advance()
    again = Tally(None, content=lambda _: 0, max_frontier=20)
    again.load(json.loads(json.dumps(tally.dump())))
    with pytest.raises(LimitExceeded, match="the progress frontier"):
        again.check_limits()
    wider = Tally(None, content=lambda _: 0)
    wider.load(tally.dump())
    wider.check_limits()
    assert len(wider.progress) == 25
    with pytest.raises(LimitExceeded, match="more than 10000 times"):
        resume_from([replace(s, counts=[]) for s in _crossed(101)], [(0, 0, 0, 0)])


def test_a_wide_frontier_is_told_in_a_few_words() -> None:
    recovery = Recovery()
    bound: list[Any] = [(i, 999 - i) for i in range(1000)]
    recovery.push(Progress([(0, 0)], bound))
    recovery.push(Progress([(i + 1, 1000 - i) for i in range(999)], [], [((2000, 2000), 1)]))
    stalls = recovery.stalls()
    assert len(stalls) == MAX_STALLS
    assert shown(bound) == "[(0, 999), (1, 998), (2, 997), (3, 996), (4, 995) and 995 more]"
    assert (
        stalls[1].describe().endswith("GAP between it and [(1, 1000), (2, 999), (3, 998)]")
        and len(str(Stalled(stalls))) < 5000
    )
