"""Clocks of the machine, behind a protocol so that tests can set them.

`wall` may jump in both directions (an operator, NTP, a virtual machine that wakes). `monotonic` only runs
forward, has an arbitrary origin and does not survive the process.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings; both cheap, both thread-safe."""

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds since a fixed point; never goes back."""
        ...


# Includes the time for which the machine was suspended, so that waking up is not a jump of the wall clock.
# Linux only.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The real clocks."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        if _BOOT_CLOCK is not None:
            return time.clock_gettime_ns(_BOOT_CLOCK) // 1000
        return time.monotonic_ns() // 1000
