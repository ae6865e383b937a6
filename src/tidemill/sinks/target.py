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

# Called between two waits; raises if the sink is to end.
Check = Callable[[], None]


class SinkError(TidemillError):
    """The sink cannot continue; the hint names the remedy. It is retried automatically."""

    sqlstate = "58000"
    transient = True


@dataclass(slots=True)
class Written:
    """A sink's output since this process started, repeats included. May be read from any thread."""

    messages: int = 0
    bytes: int = 0
    updates: int = 0
    statements: int = 0
    # Sent and not yet acknowledged, in bytes.
    in_flight: int = field(default=0)


@dataclass(frozen=True, slots=True)
class SinkPace:
    """The frequency of statements: at most every `round_seconds` while there are changes, and every
    `idle_seconds` if only time has passed."""

    round_seconds: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class Opening:
    """The parameters with which a target is opened."""

    definition: Definition
    codec: Codec
    # The current contents of the definition's connection, with the texts of secrets.
    connection: Mapping[str, Any]
    # The folder below which files may be written.
    files_root: str
    # Distinguishes this sink's output from that of others, in lower case letters and digits.
    writer: str
    # Greater than in any earlier process that wrote for this sink.
    life: int
    written: Written
    check: Check


class TargetWriter(Protocol):
    @property
    def pace(self) -> SinkPace: ...

    def resume(self) -> int | None:
        """The upper of the last durable statement that covers this writer's updates; None if there is none.
        Called before anything is sent."""
        ...

    def send(self, message: bytes) -> None:
        """Updates. Waits while too much is in flight."""
        ...

    def settle(self) -> None:
        """On return all sent messages are durable, or will become visible together with the next statement,
        not without it."""
        ...

    def state(self, message: bytes, upper: int) -> None:
        """Sends a statement that counts the sent updates, up to `upper`; it is durable when this returns."""
        ...

    def close(self) -> None:
        """Idempotent; messages that were sent but not acknowledged may or may not arrive."""
        ...
