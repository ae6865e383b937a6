"""Stalls of a stream: one line for each time at which the reported frontier stands still.

Created by `Tally.stalls`, shown to people. Waiting is not an error, because the next message may end it. At
the end of a bounded input it becomes one (`problems.Stalled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemill.cdcv2.times import Frontier, Time, shown


class Waits(Enum):
    """The reasons why a time waits."""

    # Counted by a statement, and not all of its updates have arrived.
    MISSING = "missing"
    # No statement counts it, though something beyond it has arrived.
    GAP = "gap"
    # Never released: see the contradiction.
    CONTRADICTION = "contradiction"


@dataclass(frozen=True, slots=True)
class Stall:
    """`time` is an element of the reported frontier; nothing at it or beyond it is released before it."""

    time: Time
    waits: Waits
    # How long the frontier has stood at this time, in seconds.
    seconds: float
    # MISSING: the number of updates that have arrived, the total, and the statement that gives it.
    have: int = 0
    want: int = 0
    by: str = ""
    # GAP: the lower bounds of the nearest statements that do not connect; empty if there are only updates.
    nearest: Frontier = ()
    # CONTRADICTION: the error.
    reason: str = ""

    def describe(self) -> str:
        waited = f"for {self.seconds:.1f} s"
        if self.waits is Waits.MISSING:
            return f"time {self.time} waits {waited}, MISSING {self.want - self.have} of {self.want} updates"
        if self.waits is Waits.GAP:
            until = f" and {shown(self.nearest)}" if self.nearest else " and what has come beyond it"
            return f"time {self.time} waits {waited} for a statement, GAP between it{until}"
        return f"time {self.time} is withheld {waited}, {self.reason}"
