"""The retry policy for lost connections.

Pure: the course of a subscription gets the next delay from `Pauses`, and reports when data arrives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Retry:
    """All fields are seconds. After the n-th failure in a row the delay is between half of and all of `first
    * 2**(n-1)`, at most `longest`. The random part keeps a thousand clients from reconnecting at the same
    moment. When nothing has arrived for `give_up_after`, it gives up; None: never."""

    first: float = 0.1
    longest: float = 10.0
    give_up_after: float | None = 300.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest:
            raise InvalidValue(f"retry: first ({self.first}) must be above 0 and at most longest")
        if self.give_up_after is not None and self.give_up_after < 0:
            raise InvalidValue(f"retry: give_up_after ({self.give_up_after}) must not be negative")


# Beyond this the power of two exceeds any reasonable `longest`.
_MOST_DOUBLINGS = 30


class Pauses:
    """The failures of one subscription since the last arrival of data."""

    def __init__(
        self,
        retry: Retry,
        clock: Callable[[], float],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`clock` returns monotonic seconds, `chance` random numbers in [0, 1)."""
        self._retry = retry
        self._clock = clock
        self._chance = chance
        self._failures = 0
        # When the first failure since the last arrival happened; None if there was none.
        self._since: float | None = None

    def arrived(self) -> None:
        """Complete times arrived: the connection works."""
        self._failures = 0
        self._since = None

    def failed(self) -> float | None:
        """The delay before the next attempt; None to give up."""
        now = self._clock()
        if self._since is None:
            self._since = now
        limit = self._retry.give_up_after
        if limit is not None and now - self._since >= limit:
            return None
        whole = min(self._retry.first * 2 ** min(self._failures, _MOST_DOUBLINGS), self._retry.longest)
        self._failures += 1
        return whole * (0.5 + 0.5 * self._chance())
