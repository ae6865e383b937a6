"""Tick boundaries: times common to all sources, so that one time is a consistent cut.

A source with interval `i` binds at multiples of `i` of the one clock. Sources of equal interval share every
boundary. Sources of different intervals share the common multiples.
"""

from __future__ import annotations

# What a source that says nothing itself waits between two bindings.
DEFAULT_INTERVAL_MS = 1000
# A tick costs a job and two commits; more often than this it would do nothing else.
MIN_INTERVAL_MS = 100
MAX_INTERVAL_MS = 24 * 3600 * 1000


def boundary(now: int, interval: int) -> int:
    """The latest boundary at or before `now`."""
    return now - now % interval
