"""Followers of a collection: its changes in complete spans, as they become known.

One thread at a time drives a follower: a `tail`, or a reader that catches up on its own. It never waits:
`advance` returns what is complete now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from tidemill.persist.holds import Hold
from tidemill.persist.listen import Listen
from tidemill.persist.shard import Shard
from tidemill.subscribe.changes import CollectionChanges, changes_of
from tidemill.types.arrow import shard_schema


class Follower(Protocol):
    @property
    def frontier(self) -> int:
        """Everything before it was returned."""
        ...

    def advance(self) -> CollectionChanges | None:
        """The next changes, perhaps empty over some span; None if nothing more is complete. Blocks for the
        store. Raises the errors of the relation."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class RelationFollower(Follower, Protocol):
    @property
    def relation(self) -> str:
        """Followers with the same name here return the same changes."""
        ...


class CollectionFollower:
    """A shard. `complete` returns the time before which it is complete, and ensures that all of that is in
    the log: an idle collection advances without the log."""

    def __init__(self, shard: Shard, columns: Sequence[str], from_: int, complete: Callable[[], int]) -> None:
        self._shard = shard
        self._columns = list(columns)
        self._listen: Listen = shard.listen(from_)
        self._complete = complete
        self.frontier = from_
        # Rows may differ in invisible columns, and a column may have been added that is not requested.
        self._partial = bool(shard.desc.hidden)

    @property
    def relation(self) -> str:
        return self._shard.id

    def hold(self) -> Hold:
        """Keeps unreturned changes readable, also after they are returned: the follower's hold advances with
        it."""
        return self._shard.hold(max(self.frontier - 1, self._shard.since))

    def advance(self) -> CollectionChanges | None:
        complete = self._complete()
        got = self._listen.next(timeout=0)
        if got is not None:
            table, upper = got
            return self._told(table, complete if upper is None else max(upper, self.frontier))
        if complete > self.frontier:
            return self._told(shard_schema(self._shard.desc).empty_table(), complete)
        return None

    def _told(self, table: pa.Table, upper: int) -> CollectionChanges:
        partial = self._partial or table.num_columns > len(self._columns) + 3
        changes = changes_of(table, self._columns, self.frontier, upper, hidden=partial)
        self.frontier = upper
        return changes

    def close(self) -> None:
        self._listen.close()
