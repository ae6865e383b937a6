"""Times of a CDCv2 stream: integers, or tuples of integers that are compared component by component.

Called by everything in this package. A frontier is a tuple of times none of which is below another, in
order; the empty one says that nothing more comes. What a stream says is checked here once, at the door;
behind it all times are of one kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from tidemill.cdcv2.problems import InvalidMessage
from tidemill.time import frontier

Time = int | tuple[int, ...]
Frontier = tuple[Time, ...]

# The encodings carry a time's components as signed 64-bit integers; a stream begins at zero, so that the
# least time is known before anything of it is.
MAX_COMPONENT = 2**63 - 1
# Components of one time. Rounds of nested iteration have two or three; the comparison of two times is a
# loop over them, so a message must not choose how long it is.
MAX_ARITY = 16

# The kind of a time: 0 for integers, else how many components a product has.
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
    """To go through, else an error that names it."""
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidMessage(f"not a list of {what}: {value!r}", origin)
    return cast("Iterable[Any]", value)


def less_equal(a: Time, b: Time) -> bool:
    """The order of two times of one kind."""
    if isinstance(a, int):
        return a <= cast("int", b)
    return all(x <= y for x, y in zip(a, cast("tuple[int, ...]", b), strict=True))


def join(a: Time, b: Time) -> Time:
    """The least time that both are <= of."""
    if isinstance(a, int):
        return max(a, cast("int", b))
    return tuple(max(x, y) for x, y in zip(a, cast("tuple[int, ...]", b), strict=True))


def minimal(times: Iterable[Time]) -> Frontier:
    """The frontier of `times`: its least elements, in order."""
    return frontier.minimal(cast("Iterable[Any]", times))


def beyond(bound: Sequence[Time], time: Time) -> bool:
    """Is some element of `bound` <= `time`?"""
    return any(less_equal(b, time) for b in bound)


def within(lower: Sequence[Time], upper: Sequence[Time], time: Time) -> bool:
    """Is `time` beyond `lower` and not beyond `upper`?"""
    return beyond(lower, time) and not beyond(upper, time)
