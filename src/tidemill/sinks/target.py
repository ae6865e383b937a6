"""Sink target: the interface between the machine and the place that a sink writes to.

One thread drives a target. All calls block for a limited time. A failed write raises, and the machine closes
the target and opens it again. Obligations: `resume` reports correctly what is durable in the target,
whichever process wrote it. When `state` returns, the statement and everything sent before it are durable.
Sent data is never retracted or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemill.errors import TidemillError
from tidemill.sinks.definition import Codec, Definition

# Told between two waits; raises where the sink is to end.
Check = Callable[[], None]


class SinkError(TidemillError):
    """The sink cannot go on; the hint says what helps. It is tried again by itself."""

    sqlstate = "58000"
    transient = True


@dataclass(slots=True)
class Written:
    """What a sink has written since this process runs, repeats included. Read from any thread."""

    messages: int = 0
    bytes: int = 0
    updates: int = 0
    statements: int = 0
    # Sent and not yet acknowledged; bytes.
    in_flight: int = field(default=0)


@dataclass(frozen=True, slots=True)
class SinkPace:
    """How often statements are made: at most every `round_seconds` where there are changes, and every
    `idle_seconds` where only time has passed."""

    round_seconds: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class Opening:
    """What a target is opened with."""

    definition: Definition
    codec: Codec
    # What the definition's connection says today, with the texts of secrets.
    connection: Mapping[str, Any]
    # The folder below which files may be written.
    files_root: str
    # Tells this sink's writing from that of others, in lower case letters and digits.
    writer: str
    # Greater than in any earlier process that wrote for this sink.
    life: int
    written: Written
    check: Check


class TargetWriter(Protocol):
    @property
    def pace(self) -> SinkPace: ...

    def resume(self) -> int | None:
        """The upper of the last durable statement that speaks for this writer's updates; None where there is
        none. Before anything is sent."""
        ...

    def send(self, message: bytes) -> None:
        """Updates. Waits while too much is in flight."""
        ...

    def settle(self) -> None:
        """All that was sent is durable, or will be seen with the next statement and not without it."""
        ...

    def state(self, message: bytes, upper: int) -> None:
        """A statement that counts what was sent, up to `upper`; it is durable when this returns."""
        ...

    def close(self) -> None:
        """Idempotent; what was sent and not settled may get there or not."""
        ...
