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
from tidemill.tracing import TickTrace

# The delay after a failure, which doubles with each further one. An upstream that is down is queried six
# times a minute; after a short failure the source continues within a second.
FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 10.0


@dataclass(slots=True)
class SourceSlot:
    id: str
    name: str
    machine: SourceMachine
    report: Report = field(default_factory=Report)
    # Whether a thread steps the machine.
    busy: bool = False
    # Calls on the machine that must run before its next step (`Ticker.when_free`).
    waiting: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    # It was dropped: its holder commits nothing more.
    removed: bool = False
    # The boundary of its next check; milliseconds.
    due: int = 0
    # It runs in its own jobs: it has much to read, was too slow, or was in a failed job.
    alone: bool = False
    # Whether the last unit found its upsert state in the cache. Unknown after a start; false after a cache
    # was deleted. If false, the next unit divides the work of reading the collection.
    at_hand: bool = False
    # The number of consecutive failures, and the time (monotonic) of the next attempt.
    failures: int = 0
    retry_at: float = 0.0
    # The failure that was logged last: a transient one by its kind, because an unreachable upstream fails in
    # several ways; any other by its text.
    told: str | None = None
    trace: TickTrace = field(init=False)

    def __post_init__(self) -> None:
        self.trace = TickTrace({"tidemill.source.id": self.id, "tidemill.source.name": self.name})

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
        self.trace.end({}, error)

    def next_due(self, now: int) -> None:
        """The boundary after the last one, or the latest boundary if that is already past."""
        interval = self.machine.timing.interval
        latest = boundary(now, interval)
        following = self.due + interval if self.due else latest + interval
        if following < latest:
            self.report.statistics.ticks_skipped += (latest - following) // interval
            following = latest
        self.due = boundary(following, interval)
