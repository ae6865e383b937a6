"""How long the server's log has been ahead of a position: known from looks at where the log ended.

Written by the thread of `receiver`, read by any.
"""

from __future__ import annotations

import threading
from bisect import bisect_right

# Looks that are kept; when there are more, every second one goes: a long lag needs no exact figure.
MOST_LOOKS = 4096


class LogClock:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Ends of the log, ascending, and when each was first seen.
        self._ends: list[int] = []
        self._times: list[float] = []

    def look(self, end: int, now: float) -> None:
        with self._lock:
            if self._ends and end <= self._ends[-1]:
                return
            self._ends.append(end)
            self._times.append(now)
            if len(self._ends) > MOST_LOOKS:
                del self._ends[1::2], self._times[1::2]

    def seconds_since(self, position: int, now: float) -> float | None:
        """How long ago the log was first seen to be longer; 0 if it is not, None before the first look."""
        with self._lock:
            if not self._ends:
                return None
            at = bisect_right(self._ends, position)
            return 0.0 if at == len(self._ends) else max(0.0, now - self._times[at])
