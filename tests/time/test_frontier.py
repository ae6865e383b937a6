"""Frontiers against brute force: a frontier is the set of times it still allows, on a small grid."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import Internal
from tidemill.time.frontier import Frontier, less_equal, minimal

SIDE = 5


def _grid(arity: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(SIDE), repeat=arity))


def _allowed(elements: set[tuple[int, ...]], arity: int) -> set[tuple[int, ...]]:
    """The model: what may still appear, by the definition alone."""
    return {t for t in _grid(arity) if any(all(e[i] <= t[i] for i in range(arity)) for e in elements)}


def _sets(arity: int) -> st.SearchStrategy[set[tuple[int, ...]]]:
    return st.sets(st.tuples(*[st.integers(0, SIDE - 1)] * arity), max_size=6)


@given(st.sets(st.integers(0, 9), max_size=5), st.sets(st.integers(0, 9), max_size=5), st.integers(0, 9))
def test_ints(a: set[int], b: set[int], t: int) -> None:
    fa, fb = Frontier.of(*a), Frontier.of(*b)
    allowed_a = {x for x in range(10) if any(e <= x for e in a)}
    allowed_b = {x for x in range(10) if any(e <= x for e in b)}
    assert len(fa) == (1 if a else 0)
    assert fa.less_equal(t) == (t in allowed_a)
    assert fa.insert(t) == Frontier.of(*a, t)
    assert {x for x in range(10) if fa.join(fb).less_equal(x)} == allowed_a & allowed_b
    assert (fa <= fb) == (allowed_b <= allowed_a)
    assert (fa < fb) == (allowed_b < allowed_a)
    assert (fa == fb) == (allowed_a == allowed_b)
    assert fa.closed == (not a)


@pytest.mark.parametrize("arity", [2, 3])
def test_products(arity: int) -> None:
    @given(_sets(arity), _sets(arity), st.tuples(*[st.integers(0, SIDE - 1)] * arity))
    def check(a: set[tuple[int, ...]], b: set[tuple[int, ...]], t: tuple[int, ...]) -> None:
        fa, fb = Frontier.of(*a), Frontier.of(*b)
        allowed_a, allowed_b = _allowed(a, arity), _allowed(b, arity)
        assert set(fa) == {x for x in a if not any(y != x and less_equal(y, x) for y in a)}
        assert fa.less_equal(t) == (t in allowed_a)
        assert fa.insert(t) == Frontier.of(*a, t)
        assert _allowed(set(fa.join(fb)), arity) == allowed_a & allowed_b
        assert (fa <= fb) == (allowed_b <= allowed_a)
        assert (fa < fb) == (allowed_b < allowed_a)
        assert (fa >= fb) == (allowed_a <= allowed_b)
        assert (fa > fb) == (allowed_a < allowed_b)
        assert (fa == fb) == (allowed_a == allowed_b)

    check()


def test_the_empty_frontier_is_the_greatest() -> None:
    closed: Frontier[int] = Frontier()
    assert closed.closed and not closed.less_equal(0)
    assert Frontier.of(7) <= closed and not closed <= Frontier.of(7)
    assert Frontier.of(7).join(closed) == closed


def test_orders_are_not_mixed() -> None:
    with pytest.raises(Internal, match="different orders"):
        less_equal((1, 2), (1, 2, 3))
    with pytest.raises(Internal, match="different orders"):
        minimal([(1, 2), (1, 2, 3)])
    with pytest.raises(Internal, match="not an antichain"):
        Frontier((2, 1))
