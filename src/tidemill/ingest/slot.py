"""A source's entry in the ticker: its machine, whether it is busy, when it is due, and its status.

A slot is busy from the moment the ticker takes it until it is released. Only its holder steps the machine or
changes the fields below `busy`. (The ticker's lock guards `waiting`.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.errors import TidemillError
from tidemill.ingest.machine import SourceMachine
from tidemill.ingest.status import Report, RunState
from tidemill.reclock.boundaries import boundary

# After a failure a source waits this long, twice as long after the next, and so on: an upstream that is down
# is queried twice a minute; after a short failure it is back within a second.
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class SourceSlot:
    id: str
    name: str
    machine: SourceMachine
    report: Report = field(default_factory=Report)
    # A thread steps the machine.
    busy: bool = False
    # Calls on the machine that must run before its next step (`Ticker.when_free`).
    waiting: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    # It was dropped: its holder commits no more.
    removed: bool = False
    # The boundary at which it is next looked at; milliseconds.
    due: int = 0
    # It runs in its own jobs: it has much to read, was too slow, or was in a job that failed.
    alone: bool = False
    # Its upsert state was where the last unit looked for it. Not known after a start; false when a cache was
    # deleted. Then the next unit shares out the work of reading the collection.
    at_hand: bool = False
    # How often it failed in a row, and when (monotonic) it is tried again.
    failures: int = 0
    retry_at: float = 0.0
    # The failure that was logged last: a transient one by its kind, because an unreachable upstream fails in
    # several ways; any other by its text.
    told: str | None = None

    def ready(self, now: int) -> bool:
        return not self.busy and now >= self.due and time.monotonic() >= self.retry_at

    def news(self, error: TidemillError) -> bool:
        """Whether to log it."""
        before, self.told = self.told, error.sqlstate if error.transient else error.primary
        return before != self.told

    def succeeded(self) -> None:
        self.told = None
        self.failures = 0
        self.retry_at = 0.0
        if not self.machine.hydrated:
            self.report.become(RunState.HYDRATING)
        else:
            self.report.become(RunState.CEASED if self.machine.ceased else RunState.RUNNING)
        statistics = self.report.statistics
        if statistics.rehydration_ms is None and self.machine.hydrated:
            statistics.rehydration_ms = int((time.monotonic() - self.report.began) * 1000)

    def failed(self, error: TidemillError) -> None:
        self.report.statistics.jobs_failed += 1
        wait = min(FIRST_RETRY_SECONDS * 2**self.failures, LAST_RETRY_SECONDS)
        self.failures += 1
        self.retry_at = time.monotonic() + wait
        self.report.become(RunState.STALLED, error)

    def next_due(self, now: int) -> None:
        """The boundary after the last due one; or, if that is already past, the latest."""
        interval = self.machine.timing.interval
        latest = boundary(now, interval)
        following = self.due + interval if self.due else latest + interval
        if following < latest:
            self.report.statistics.ticks_skipped += (latest - following) // interval
            following = latest
        self.due = boundary(following, interval)
