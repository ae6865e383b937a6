"""What is told of a sink: how it is, since when, and why.

Written by `service`, read by the system relations and metrics, from any thread: a status is replaced whole.
Not durable: after a start it is found out anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

from tidemill.errors import TidemillError


class State(Enum):
    """As `mz_sink_statuses` shows it."""

    CREATED = "created"  # nobody has looked at it yet
    STARTING = "starting"  # it looks for where to go on, or writes what there is to begin with
    RUNNING = "running"  # it writes changes
    STALLED = "stalled"  # the last attempt failed; it is tried again


@dataclass(frozen=True, slots=True)
class Status:
    state: State
    # When it became so; milliseconds of the wall clock.
    since: int
    error: str | None = None
    detail: str | None = None
    hint: str | None = None


def begin() -> Status:
    return Status(State.CREATED, _now())


def become(before: Status, state: State, error: TidemillError | None = None) -> Status:
    """The status from now on. The same trouble is since when it was; what is found of it may be another thing
    each time."""
    primary, detail, hint = (None, None, None) if error is None else (error.primary, error.detail, error.hint)
    same = (state, primary) == (before.state, before.error)
    return Status(state, before.since if same else _now(), primary, detail, hint)


def _now() -> int:
    return time.time_ns() // 1_000_000
