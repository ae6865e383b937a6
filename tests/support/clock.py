"""A clock that tests set."""

from __future__ import annotations

import threading


class ManualClock:
    """Stands still until told."""

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
