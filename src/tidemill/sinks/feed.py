"""What a sink needs of the engine: the collection that it writes out.

Everything here blocks, and is called by one thread at a time for each sink.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

import pyarrow as pa

from tidemill.persist.shard import Shard
from tidemill.subscribe.follower import Follower


class Feed(Protocol):
    @property
    def shard(self) -> Shard:
        """Raises Unavailable while it is not open."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The physical names of the sink's columns."""
        ...

    def complete(self) -> int:
        """The collection is complete before it, and all of that is in its log; 0 while it cannot be read."""
        ...

    def snapshot(self, at: int) -> Generator[pa.Table]:
        """What it holds at a time at which it is complete, in pieces that fit into memory: the columns, time
        and diff; no row twice in all of them. Raises what is wrong with the data there. Close it."""
        ...

    def follow(self, from_: int) -> Follower:
        """The changes at and after `from_`. Raises InvalidAsOf where they are forgotten."""
        ...

    def cancel(self) -> None:
        """Nobody waits for a snapshot any more. From any thread; returns at once."""
        ...
