"""Holds: keep the time of a reader readable and its files in place while it reads.

Each shard owns one set of holds per process. Holds are not durable: after a crash there is no reader to
protect, and external readers rely on the grace period of removed files. A hold at `t` keeps `since` from
passing `t`. A hold with a version also keeps every file that was live at that version.
"""

from __future__ import annotations

import threading
from types import TracebackType

from tidemill.errors import Internal
from tidemill.time.bounds import MAX_TIME

# The `at` of a hold that keeps files, and the shard from being swept when it is dropped, but no time that a
# reader could ask for.
NO_TIME = MAX_TIME - 1


class Hold:
    """A promise made to one reader; give it back with `release` (or use it as a context manager)."""

    __slots__ = ("_holds", "at", "version")

    def __init__(self, holds: Holds, at: int, version: int | None) -> None:
        self._holds: Holds | None = holds
        self.at = at
        # The version whose live files the reader may still open; None if it opens none itself.
        self.version = version

    def advance(self, at: int, version: int | None = None) -> None:
        """Advance the hold: the reader no longer needs times before `at`."""
        if at < self.at:
            raise Internal(f"a hold at {self.at} cannot go back to {at}")
        self.at = at
        self.version = version

    def release(self) -> None:
        """Idempotent."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.drop(self)

    @property
    def released(self) -> bool:
        return self._holds is None

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Holds:
    """The holds of one open shard. Thread-safe by its own lock, which is never held while another is
    taken."""

    def __init__(self) -> None:
        self._held: set[Hold] = set()
        self._lock = threading.Lock()

    def acquire(self, at: int, version: int | None = None) -> Hold:
        """The caller has checked, under the shard's lock, that `at` is not before since."""
        hold = Hold(self, at, version)
        with self._lock:
            self._held.add(hold)
        return hold

    def drop(self, hold: Hold) -> None:
        with self._lock:
            self._held.discard(hold)

    def earliest(self) -> int | None:
        """The least time held, or None."""
        with self._lock:
            return min((hold.at for hold in self._held), default=None)

    def oldest_version(self) -> int | None:
        """The least version whose files a reader may still open, or None."""
        with self._lock:
            return min((hold.version for hold in self._held if hold.version is not None), default=None)

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)
