"""The machine's clocks, behind a protocol so that tests can set them.

`wall` may jump in both directions (an operator, NTP, a virtual machine that wakes); `monotonic` only runs
forward, has an arbitrary origin and does not survive the process.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Two readings; both cheap, both thread-safe."""

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds since some fixed point; never goes back."""
        ...


# Counts the time a suspended machine sleeps, so that waking up is no jump of the wall clock. Linux only.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The real clocks."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic_us(self) -> int:
        if _BOOT_CLOCK is not None:
            return time.clock_gettime_ns(_BOOT_CLOCK) // 1000
        return time.monotonic_ns() // 1000


class ManualClock:
    """A clock for tests: stands still until told."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._lock = threading.Lock()
        self._wall = wall_ms * 1000
        self._monotonic = 0

    def wall_us(self) -> int:
        with self._lock:
            return self._wall

    def monotonic_us(self) -> int:
        with self._lock:
            return self._monotonic

    def advance(self, ms: int) -> None:
        """Time passes: both clocks run."""
        with self._lock:
            self._wall += ms * 1000
            self._monotonic += ms * 1000

    def jump(self, ms: int) -> None:
        """Somebody sets the wall clock, forward or (negative) back; no time passes."""
        with self._lock:
            self._wall = max(0, self._wall + ms * 1000)

    def restart(self) -> None:
        """The machine was restarted: the monotonic clock has a new origin."""
        with self._lock:
            self._monotonic = 0
