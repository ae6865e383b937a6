"""Common base of both recoveries: the state between messages, except the storage of updates.

`Recovery` keeps updates as Python values, `ColumnRecovery` as Arrow columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from tidemill.cdcv2.column_stash import ColumnStash
from tidemill.cdcv2.messages import Progress, no_message
from tidemill.cdcv2.problems import SpillFailed, Stalled, report
from tidemill.cdcv2.row_stash import RowStash
from tidemill.cdcv2.stalls import Stall
from tidemill.cdcv2.tally import Tally
from tidemill.errors import LimitExceeded, TidemillError

S = TypeVar("S", RowStash, ColumnStash)
R = TypeVar("R")


class Pending(ABC, Generic[S, R]):
    """The state between messages; all of it concerns times beyond the reported frontier."""

    def __init__(self, stash: S, tally: Tally) -> None:
        # The updates at unreported times: to release them once, and to detect repetitions.
        self._stash = stash
        # The counts and arrivals of each time; the frontiers.
        self._tally = tally
        # Released, and not yet returned, because the push that released them also raised an error.
        self._ready: list[R] = []
        # The number of messages so far: the origin of messages without one.
        self._pushed = 0

    @property
    def stashed(self) -> int:
        """The number of stashed updates, in memory and on disk."""
        return len(self._stash)

    @property
    def pending_statements(self) -> int:
        """The number of statements that are kept because they reach beyond the frontier."""
        return self._tally.pending_statements

    def stalls(self) -> list[Stall]:
        """The times of the frontier that wait, the reason, and for how long; empty if nothing has arrived
        beyond it."""
        return self._tally.stalls()

    def drain(self) -> list[R]:
        """The released updates that were not returned because `push` raised."""
        ready, self._ready = self._ready, []
        return ready

    @abstractmethod
    def push(self, message: Any) -> list[R]:
        """Takes a message; returns the updates that it released."""

    def _origin(self, message: Any, updates: type) -> str:
        """The origin of the message; raises InvalidMessage if the object is no message."""
        if not isinstance(message, (updates, Progress)):
            raise no_message(message, self._pushed, updates, Progress)
        self._pushed += 1
        return message.origin or f"message {self._pushed - 1}"

    def _handed_out(self, failed: TidemillError | None) -> list[R]:
        """The end of every push: returns the released updates, unless there was an error or a limit is
        exceeded."""
        found = self._tally.take_found()
        self._stash.drop([c.time for c in found if c.time is not None])
        # Both are called, independent of the first result: the stash also moves excess data to disk.
        for check in (self._stash.check_limits, self._tally.check_limits):
            try:
                check()
            except (LimitExceeded, SpillFailed) as e:
                failed = failed or e
        if found or failed is not None:
            report(found, failed)
        return self.drain()


def releases(recovery: Pending[Any, R], messages: Iterable[Any]) -> Iterator[R]:
    """All updates that the messages release, as described for `recover`."""
    for message in messages:
        try:
            released = recovery.push(message)
        except TidemillError:
            yield from recovery.drain()
            raise
        yield from released
    if stalls := recovery.stalls():
        raise Stalled(stalls)
