"""Frontiers: antichains of times, for total orders (int) and product orders (tuples of ints).

A frontier is the lower bound of the times that can still appear: a time t may still appear if some element is
<= t. The empty frontier means that no more times can appear ("closed"). Product times are compared component
by component, so (1, 5) and (2, 3) are incomparable and may be in one frontier. Frontiers are immutable
values; equal frontiers compare equal.

The order of frontiers follows the times that they allow: F <= G when F allows every time that G allows.
`meet` allows the times that either side allows (the union), and `join` those that both allow (the
intersection). The empty frontier is the greatest, and `of(0)` (or zeros) the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from tidemill.errors import Internal

Product = tuple[int, ...]
T = TypeVar("T", int, Product)


def less_equal(a: T, b: T) -> bool:
    """The order of times: `<=` for ints, componentwise for tuples of the same length."""
    if isinstance(a, int):
        if not isinstance(b, int):
            raise Internal(f"times of different orders compared: {a!r} and {b!r}")
        return a <= b
    if isinstance(b, int) or len(a) != len(b):
        raise Internal(f"times of different orders compared: {a!r} and {b!r}")
    return all(x <= y for x, y in zip(a, b, strict=True))


def least_upper_bound(a: T, b: T) -> T:
    """The least time that both are <= of."""
    if isinstance(a, int) or isinstance(b, int):
        return a if less_equal(b, a) else b
    if len(a) != len(b):
        raise Internal(f"times of different orders joined: {a!r} and {b!r}")
    return cast("T", tuple(max(x, y) for x, y in zip(a, b, strict=True)))


def minimal(times: Iterable[T]) -> tuple[T, ...]:
    """The minimal elements, sorted (lexicographically for tuples). Lexicographic order extends the product
    order, so an element can only be dominated by one before it: one pass for ints and pairs, quadratic in the
    result otherwise."""
    ordered = sorted(set(times))
    if not ordered:
        return ()
    first = ordered[0]
    if isinstance(first, int):
        for t in ordered:
            less_equal(first, t)  # refuses a mixture
        return (first,)
    kept: list[T] = []
    if len(first) == 2:
        for t in ordered:
            less_equal(first, t)
            # Every kept pair has a first component <= t's; the last kept one has the least second component.
            if not kept or cast("Product", t)[1] < cast("Product", kept[-1])[1]:
                kept.append(t)
        return tuple(kept)
    for t in ordered:
        if not any(less_equal(k, t) for k in kept):
            kept.append(t)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Frontier(Generic[T]):
    """An antichain. Make it with `Frontier.of`, which keeps the minimal elements only."""

    # Mutually incomparable, sorted, without repeats: so that equal frontiers are equal values.
    elements: tuple[T, ...] = ()

    def __post_init__(self) -> None:
        if self.elements != minimal(self.elements):
            raise Internal(f"not an antichain in order: {self.elements!r}")

    @staticmethod
    def of(*times: T) -> Frontier[T]:
        """The frontier of the minimal elements of `times`; closed without any."""
        return Frontier(minimal(times))

    @property
    def closed(self) -> bool:
        """Nothing more appears."""
        return not self.elements

    def less_equal(self, time: T) -> bool:
        """Is `time` at or beyond the frontier: may it still appear?"""
        return any(less_equal(e, time) for e in self.elements)

    def insert(self, time: T) -> Frontier[T]:
        """The frontier that allows `time` as well."""
        return self if self.less_equal(time) else Frontier(minimal((*self.elements, time)))

    def join(self, other: Frontier[T]) -> Frontier[T]:
        """The least frontier >= both: allows what both allow."""
        return Frontier(minimal(least_upper_bound(a, b) for a in self.elements for b in other.elements))

    def __le__(self, other: Frontier[T]) -> bool:
        return all(self.less_equal(e) for e in other.elements)

    def __lt__(self, other: Frontier[T]) -> bool:
        return self != other and self <= other

    def __ge__(self, other: Frontier[T]) -> bool:
        return other <= self

    def __gt__(self, other: Frontier[T]) -> bool:
        return other < self

    def __iter__(self) -> Iterator[T]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)
