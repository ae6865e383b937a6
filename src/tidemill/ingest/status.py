"""The status of a source, a view or a sink; for a source also its counters and the durations of its ticks.

Written by `ticker` and by the services of views and sinks. Read by the system relations and metrics, from any
thread: each value is replaced whole or is an independent number. Not durable: it is rebuilt after a start.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field
from enum import Enum

from tidemill.errors import TidemillError
from tidemill.sources.contract import UpstreamError


class RunState(Enum):
    """The states as in `mz_source_statuses` and `mz_sink_statuses`."""

    CREATED = "created"  # opening has not begun
    STARTING = "starting"  # its shards are being opened, or Spark is not ready yet
    HYDRATING = "hydrating"  # it has not yet caught up for the first time, and cannot be read
    RUNNING = "running"
    STALLED = "stalled"  # the last attempt failed; it is retried
    FAILED = "failed"  # a view whose query has an error in the data; it continues
    CEASED = "ceased"  # the upstream has ended


@dataclass(frozen=True, slots=True)
class RunStatus:
    state: RunState
    # When the status was set; milliseconds of the wall clock.
    since: int
    error: str | None = None
    detail: str | None = None
    hint: str | None = None
    sqlstate: str | None = None
    # The error persists until a user acts: readers do not wait for it.
    permanent: bool = False

    def become(self, state: RunState, error: TidemillError | None = None) -> RunStatus:
        """Set the status. The same error keeps its first time; its detail may differ each time."""
        primary = None if error is None else error.primary
        since = self.since if (state, primary) == (self.state, self.error) else wall_ms()
        if error is None:
            return RunStatus(state, since)
        permanent = isinstance(error, UpstreamError) and error.permanent
        return RunStatus(
            state, since, error.primary, error.detail, error.hint, error.sqlstate, permanent=permanent
        )


@dataclass(slots=True)
class Statistics:
    """Counters from the start of this process."""

    messages_received: int = 0
    bytes_received: int = 0
    updates_staged: int = 0
    updates_committed: int = 0
    ticks: int = 0
    # Boundaries at which the source was still busy with an earlier one.
    ticks_skipped: int = 0
    jobs_failed: int = 0
    state_hits: int = 0
    state_misses: int = 0
    # The size of the upsert state after the last tick; None before the first tick that used it.
    state_bytes: int | None = None
    # Milliseconds from the start of this process to the first tick with everything caught up.
    rehydration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TickTimes:
    """Seconds of one tick, by phase. `visible` is the delay for readers: from the durable binding to the
    committed data."""

    bind: float
    job: float
    commit: float

    @property
    def visible(self) -> float:
        return self.job + self.commit

    @property
    def all(self) -> float:
        return self.bind + self.visible

    @property
    def slowest(self) -> str:
        return max((self.bind, "bind"), (self.job, "job"), (self.commit, "commit"))[1]


# Upper edges of the histograms of ticks; seconds. A tick should be well below its interval, a second.
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
PHASES = ("bind", "job", "commit", "visible")


class Histogram:
    """Durations by phase. Only the holder of the slot adds; readers may see an entry that is half counted."""

    def __init__(self) -> None:
        self.counts = {phase: [0] * (len(BUCKETS) + 1) for phase in PHASES}
        self.sums = dict.fromkeys(PHASES, 0.0)

    def add(self, times: TickTimes) -> None:
        for phase in PHASES:
            seconds: float = getattr(times, phase)
            self.counts[phase][bisect.bisect_left(BUCKETS, seconds)] += 1
            self.sums[phase] += seconds


@dataclass(slots=True)
class Report:
    """The reported values of one source."""

    status: RunStatus = field(default_factory=lambda: RunStatus(RunState.STARTING, wall_ms()))
    statistics: Statistics = field(default_factory=Statistics)
    last: TickTimes | None = None
    # Seconds of the last tick, if it took longer than the source's interval.
    slow: float | None = None
    histogram: Histogram = field(default_factory=Histogram)
    began: float = field(default_factory=time.monotonic)

    def become(self, state: RunState, error: TidemillError | None = None) -> None:
        self.status = self.status.become(state, error)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
