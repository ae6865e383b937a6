"""Collections: where a stored relation is kept, and up to when it is complete.

The engine creates one `Collections` per server. A table is complete at every time that the oracle returns for
reads. A source is complete up to its last tick. A materialized view is complete up to its last maintained
time (`views` registers itself). All calls block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from tidemill.catalog.items import Item, MaterializedView, Source, SourceProgress, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.errors import Unavailable, UndefinedObject
from tidemill.ingest.service import Ingestion
from tidemill.inputs.timelines import not_readable
from tidemill.inputs.view_failures import error_since, explain_failure
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import InvalidAsOf, Snapshot
from tidemill.reclock.progress import progress_at
from tidemill.subscribe.follower import CollectionFollower
from tidemill.time.shown import show_time
from tidemill.types.names import physical_names

Collection: TypeAlias = Table | Source | SourceTable | SourceProgress | MaterializedView
# Relations that are complete as far as a writer has advanced them, not at every time of the oracle.
Maintained: TypeAlias = Source | SourceTable | SourceProgress | MaterializedView


class RelationDropped(UndefinedObject):
    """A followed relation was dropped."""

    sqlstate = "42704"


def relation_dropped(catalog: CatalogState, item: Item) -> RelationDropped:
    """The error for followers of the item after it was dropped; `catalog` still has it."""
    return RelationDropped(f"relation '{'.'.join(catalog.full_name(item))}' was dropped")


class Collections:
    """Thread-safe."""

    def __init__(self, environment: Environment, ingestion: Ingestion) -> None:
        self._environment = environment
        self._ingestion = ingestion
        # Set by `keep_views`; before that no view can be read.
        self._view_shard: Callable[[MaterializedView], Shard] | None = None
        self._view_readable: Callable[[MaterializedView], int] | None = None

    def keep_views(
        self, shard: Callable[[MaterializedView], Shard], readable: Callable[[MaterializedView], int]
    ) -> None:
        """Called by the service that keeps materialized views, before anything reads."""
        self._view_shard, self._view_readable = shard, readable

    def shard(self, item: Collection) -> Shard:
        """Where the relation is kept. Raises Unavailable while it is not open."""
        if isinstance(item, Table):
            return self._environment.open_shard(item.shard)
        if isinstance(item, MaterializedView):
            if self._view_shard is None:
                raise _not_open(item)
            return self._view_shard(item)
        if isinstance(item, SourceProgress):
            machine = self._ingestion.machine(item)
            if machine is None:
                raise _not_open(item)
            return machine.remap.shard
        return self._ingestion.shard(item)

    def readable(self, item: Maintained) -> int:
        """The relation is complete before it; 0 when it cannot be read at all yet."""
        if isinstance(item, MaterializedView):
            return 0 if self._view_readable is None else self._view_readable(item)
        return self._ingestion.readable(item)

    def complete(self, item: Collection) -> int:
        """The relation is complete before it, and all of that is in its log."""
        if not isinstance(item, Table):
            return self.readable(item)
        ts = self._environment.oracle.read_ts()
        self._environment.txns.apply_until(item.shard, ts)
        return ts + 1

    def first(self, item: Collection) -> int:
        """The earliest time at which the relation can be read. Readers that waited for a source to catch up
        hold its history from before."""
        since = self.shard(item).since
        if isinstance(item, Source | SourceTable):
            return max(since, self._ingestion.hydrated_at(item))
        return since

    def table_upper(self, table: Table) -> int:
        """Every read time of the oracle is before it or at it."""
        return self._environment.txns.readable_upper(table.shard)

    def snapshot(self, item: Table | Source | SourceTable | MaterializedView, ts: int) -> Snapshot:
        """The relation at `ts`. For a table, a read time of the oracle or an earlier one; for a source or
        materialized view, a time at which it is complete."""
        try:
            if isinstance(item, Table):
                shard = self._environment.open_shard(item.shard)
                self._environment.txns.apply_until(item.shard, ts)
                return shard.snapshot(ts, readable=ts + 1)
            shard = self.shard(item)
            snapshot = shard.snapshot(ts, readable=self.readable(item))
        except InvalidAsOf as e:
            self.explain(e, item, ts)
            raise
        if isinstance(item, MaterializedView):
            snapshot.on_error = lambda error, text: explain_failure(
                item, error, error_since(snapshot, text), shard.since
            )
        return snapshot

    def progress(self, item: SourceProgress, ts: int) -> pa.Table:
        """The progress relation at `ts`."""
        machine = self._ingestion.machine(item)
        if machine is None:
            raise _not_open(item)
        try:
            return progress_at(machine.remap.shard, machine.source, ts, self.readable(item))
        except InvalidAsOf as e:
            self.explain(e, item, ts)
            raise

    def explain(self, error: InvalidAsOf, item: Item, asked: int) -> None:
        """Adds to the error which relation's history begins after the time that was asked for, and why."""
        error.detail = not_readable(item, error.since, asked)
        topic = self._ingestion.transaction_topic(item) if isinstance(item, Source) else None
        named, since = topic or (item, None)
        if since is None or not asked < since <= error.since:
            return
        error.primary = f'source "{item.name}" cannot be read at times before its transaction topic'
        error.detail += f' Source "{named.name}", which has its transactions, is from {show_time(since)} on.'
        error.hint = "Ask for a later time."

    def follow(self, item: Collection, from_: int) -> CollectionFollower:
        """The relation's changes at and after `from_`. Raises InvalidAsOf where they are forgotten."""
        shard = self.shard(item)
        desc = shard.desc if isinstance(item, SourceProgress) or item.desc is None else item.desc
        return CollectionFollower(shard, physical_names(desc), from_, lambda: self.complete(item))


def _not_open(item: Item) -> Unavailable:
    return Unavailable(f'"{item.name}" is not open yet', hint="Try again in a moment.")
