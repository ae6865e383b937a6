"""Times of a CDCv2 stream: integers, or tuples of integers that are compared component by component.

Called by everything in this package. A frontier is a sorted tuple of times none of which is below another.
The empty frontier means that no more times can appear. The contents of a stream are checked once, on input;
after that all times have the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, cast

import numpy as np

from tidemill.cdcv2.problems import InvalidMessage
from tidemill.time import frontier

Time = int | tuple[int, ...]
Frontier = tuple[Time, ...]

# The encodings represent a time's components as signed 64-bit integers. A stream begins at zero, so that the
# least time is known before the stream is read.
MAX_COMPONENT = 2**63 - 1
# Components of one time. Rounds of nested iteration have two or three. Comparing two times is a loop over
# them, so a message must not determine its length.
MAX_ARITY = 16

# The thresholds from which numpy columns are faster than a loop: number of times, number of comparisons. And
# the number of comparisons per step, to stay in the processor's caches.
_WIDE = 32
_MANY = 512
_AT_ONCE = 1 << 18
# The number of rows that are compared with one another and then with all rows after them.
_BLOCK = 128

# The number of times that a text shows.
MAX_SHOWN = 5

# The kind of a time: 0 for integers, else the number of components of a product.
INTEGERS = 0


def kind_of(time: Time) -> int:
    return INTEGERS if isinstance(time, int) else len(time)


def least(kind: int) -> Time:
    return 0 if kind == INTEGERS else (0,) * kind


def checked(value: Any, origin: str) -> Time:
    """`value` as a time, else an error that names it."""
    # bool is an int to Python, and True a likely mistake.
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= MAX_COMPONENT:
            return value
        raise InvalidMessage(f"time out of range: {value}", origin)
    if isinstance(value, (tuple, list)):
        parts = cast("Sequence[Any]", value)
        if not 1 <= len(parts) <= MAX_ARITY:
            raise InvalidMessage(f"a time has 1 to {MAX_ARITY} components, not {len(parts)}", origin)
        for part in parts:
            if isinstance(part, bool) or not isinstance(part, int):
                raise InvalidMessage(f"not a time: {value!r}", origin)
            if not 0 <= part <= MAX_COMPONENT:
                raise InvalidMessage(f"time out of range: {value!r}", origin)
        return tuple(parts)
    raise InvalidMessage(f"not a time: {value!r}", origin)


def items_of(value: Any, what: str, origin: str) -> Iterable[Any]:
    """The items of the value; raises an error that names it if it is not iterable."""
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidMessage(f"not a list of {what}: {value!r}", origin)
    return cast("Iterable[Any]", value)


def shown(times: Sequence[Time]) -> str:
    """A bound as text for people; it may have thousands of times."""
    if len(times) <= MAX_SHOWN:
        return str(list(times))
    return f"[{', '.join(map(str, times[:MAX_SHOWN]))} and {len(times) - MAX_SHOWN} more]"


def less_equal(a: Time, b: Time) -> bool:
    """The order of two times of one kind."""
    if isinstance(a, int):
        return a <= cast("int", b)
    return all(x <= y for x, y in zip(a, cast("tuple[int, ...]", b), strict=True))


def join(a: Time, b: Time) -> Time:
    """The least time that is at or beyond both."""
    if isinstance(a, int):
        return max(a, cast("int", b))
    return tuple(max(x, y) for x, y in zip(a, cast("tuple[int, ...]", b), strict=True))


def minimal(times: Iterable[Time]) -> Frontier:
    """The frontier of `times`: its least elements, in order."""
    distinct = set(times)
    if len(distinct) < _WIDE:
        return frontier.minimal(cast("Iterable[Any]", distinct))
    if isinstance(next(iter(distinct)), int):
        return (min(cast("Any", distinct)),)
    return _least(np.array(list(distinct), np.int64))


def _least(rows: np.ndarray) -> Frontier:
    """The least of many products, in order."""
    if rows.shape[1] == 2:
        # Earlier rows have a first component that is not greater, so the second must be less than all of
        # theirs.
        rows = rows[np.lexsort(rows.T[::-1])]
        lowest = np.minimum.accumulate(rows[:, 1])
        kept = np.ones(len(rows), np.bool_)
        kept[1:] = rows[1:, 1] < lowest[:-1]
        return tuple(map(cast("Any", tuple), rows[kept].tolist()))
    # Sorted so that only earlier rows can be less, and rows that are less than most are first. (Rounded sums
    # keep this order; among equal sums the rows themselves decide.)
    rows = rows[np.lexsort((*rows.T[::-1], rows.astype(np.float64).sum(axis=1)))]
    rows = rows[np.insert((rows[1:] != rows[:-1]).any(axis=1), 0, True)]
    found: list[Time] = []
    while len(rows):
        first, rows = rows[:_BLOCK], rows[_BLOCK:]
        # Each row is beyond itself, so a minimal one is beyond exactly one.
        first = first[_beyond_rows(first, first, 1)]
        found += map(cast("Any", tuple), first.tolist())
        rows = rows[_beyond_rows(first, rows, 0)]
    return tuple(sorted(cast("list[Any]", found)))


def _beyond_rows(bound: np.ndarray, rows: np.ndarray, many: int) -> np.ndarray:
    """The rows that are beyond exactly `many` rows of `bound`."""
    found = np.zeros(len(rows), np.bool_)
    step = max(1, _AT_ONCE // max(1, len(bound)))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        every = part[:, :1] >= bound[:, 0]
        for i in range(1, part.shape[1]):
            every &= part[:, i : i + 1] >= bound[:, i]
        found[start : start + step] = every.sum(axis=1) == many
    return found


def beyond(bound: Sequence[Time], time: Time) -> bool:
    """Whether some element of `bound` <= `time`."""
    return any(less_equal(b, time) for b in bound)


def beyond_each(bound: Sequence[Time], times: Sequence[Time]) -> list[bool]:
    """`beyond` for each of `times`; fast for many times with a wide bound."""
    if not bound or not times:
        return [False] * len(times)
    if isinstance(bound[0], int):
        first = min(cast("Sequence[int]", bound))
        return [t >= first for t in cast("Sequence[int]", times)]
    if len(bound) * len(times) < _MANY:
        return [beyond(bound, t) for t in times]
    return (~_beyond_rows(np.array(bound, np.int64), np.array(times, np.int64), 0)).tolist()


def joins(times: Sequence[Time], time: Time) -> Frontier:
    """The least of the joins of `time` with each of `times`."""
    if len(times) < _WIDE or isinstance(time, int):
        return minimal(join(t, time) for t in times)
    return _least(np.maximum(np.array(times, np.int64), np.array(time, np.int64)))


def within_each(lower: Sequence[Time], upper: Sequence[Time], times: Sequence[Time]) -> list[bool]:
    """`within` for each of `times`."""
    inside = beyond_each(lower, times)
    outside = beyond_each(upper, list(compress(times, inside)))
    rest = iter(outside)
    return [i and not next(rest) for i in inside]


def within(lower: Sequence[Time], upper: Sequence[Time], time: Time) -> bool:
    """Whether `time` is beyond `lower` and not beyond `upper`."""
    return beyond(lower, time) and not beyond(upper, time)
