"""Sink writer: what the machine gives the updates of a collection to, in the order of their times.

There is one per kind of stream: `cdcv2_writer` writes a history for readers that recover it, `keyed_writer`
the rows of keys. Obligations: `resume` reports what is durable, whichever process wrote it. When `state`
returns, everything that was sent is durable, and readers get it once, however often the process dies before
or behind it.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.sinks.target import SinkPace


class EndsAt(Exception):
    """The collection cannot be written from this time on. Everything before it was sent."""

    def __init__(self, at: int, error: TidemillError) -> None:
        super().__init__(str(error))
        self.at = at
        self.error = error


class SinkWriter(Protocol):
    @property
    def pace(self) -> SinkPace: ...

    @property
    def silent(self) -> bool:
        """Time that passes without a change needs no statement."""
        ...

    @property
    def recalls(self) -> bool:
        """Behind `begin`, it must be given what the collection has at the time before (`recall`)."""
        ...

    def resume(self) -> int | None:
        """The upper of the last durable statement; None if there is none. Called before all else, and after
        each error. Raises if the target cannot be written to."""
        ...

    def begin(self, lower: int) -> None:
        """The next updates are those from `lower` on: the last upper, or the beginning of the stream."""
        ...

    def recall(self, piece: pa.Table) -> None: ...

    def send(self, table: pa.Table, *, initial: bool) -> None:
        """Updates: the columns under their physical names, time and diff. `initial`: a piece of the snapshot;
        otherwise all updates of their times. Raises EndsAt, if not `initial`."""
        ...

    def state(self, upper: int) -> None:
        """All updates before `upper` were sent."""
        ...

    def close(self) -> None:
        """Idempotent. What was sent and not stated may or may not arrive, but does not count."""
        ...
