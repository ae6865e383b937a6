"""Clock steering: derives one steady time from the clocks of the machine; the oracle uses it as "now".

Promises: `now` never goes back while the process lives, and follows the wall clock whenever that is
plausible. A wall clock that was set back does not stop time: `now` runs at `AHEAD_RATE` of the monotonic
clock's speed until the wall clock has caught up. A wall clock that jumps forward by more than `JUMP_US`
against the monotonic clock is not followed at once, because times written in a wrong future can never be
retracted. `now` then runs at `CATCH_UP_RATE` until it catches up, and the jump is reported, so an operator
has time to correct the clock. Not thread-safe: the oracle calls it under its lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.time.bounds import MAX_TIME
from tidemill.time.clock import Clock

# More than NTP ever steps a healthy machine, less than any mistake of zone or date.
JUMP_US = 60_000_000
# (numerator, denominator) of the monotonic clock's speed. Half speed takes back ten seconds of lease after a
# crash in twenty; double speed gives an operator an hour to notice a clock that is an hour fast.
AHEAD_RATE = (1, 2)
CATCH_UP_RATE = (2, 1)


@dataclass(frozen=True, slots=True)
class Jump:
    """The wall clock moved against the monotonic clock by `by_ms` (negative: back) when our time was
    `at_ms`."""

    by_ms: int
    at_ms: int


class Steering:
    """Steady time from a clock. `start_ms` is a time that `now` must not be below (the end of the last
    lease)."""

    def __init__(
        self, clock: Clock, start_ms: int = 0, on_jump: Callable[[Jump], None] | None = None
    ) -> None:
        self._clock = clock
        self._on_jump = on_jump
        # The last readings: the difference of the monotonic ones is the time that truly passed.
        self._monotonic = clock.monotonic_us()
        self._wall = clock.wall_us()
        # Our time, in microseconds so that slow polls at half speed do not lose fractions.
        self._now = min(max(self._wall, start_ms * 1000), MAX_TIME * 1000)
        # True while a jump forward is being followed; until we are at the wall clock.
        self._catching_up = False

    @property
    def wall_ms(self) -> int:
        """The wall clock as last read by `now_ms`."""
        return self._wall // 1000

    @property
    def catching_up(self) -> bool:
        return self._catching_up

    def raise_to(self, ms: int) -> None:
        """Time is at least `ms` from here on."""
        self._now = max(self._now, ms * 1000)

    def now_ms(self) -> int:
        monotonic, wall = self._clock.monotonic_us(), self._clock.wall_us()
        passed = max(0, monotonic - self._monotonic)
        moved = (wall - self._wall) - passed
        self._monotonic, self._wall = monotonic, wall
        if abs(moved) > JUMP_US and self._on_jump is not None:
            self._on_jump(Jump(by_ms=moved // 1000, at_ms=self._now // 1000))
        if wall <= self._now:
            self._catching_up = False
            numerator, denominator = AHEAD_RATE
            self._now += passed * numerator // denominator
            self._now = max(self._now, wall)
        else:
            # Only a jump starts catching up: a long pause between two calls moves both clocks alike.
            if moved > JUMP_US and wall - (self._now + passed) > JUMP_US:
                self._catching_up = True
            if self._catching_up:
                numerator, denominator = CATCH_UP_RATE
                self._now = min(wall, self._now + passed * numerator // denominator)
                self._catching_up = self._now < wall
            else:
                self._now = wall
        self._now = min(self._now, MAX_TIME * 1000)
        return self._now // 1000
