"""Feed: the collection of a sink, as `machine` reads it.

All calls block, and only one thread at a time calls the feed of a sink. The protocol is what `machine` needs;
its tests run it without Spark.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Sink, Source, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.errors import Internal
from tidemill.inputs.collections import Collections
from tidemill.persist.shard import Shard
from tidemill.query.job import Job
from tidemill.query.spark import SparkHost
from tidemill.subscribe.follower import CollectionFollower, Follower
from tidemill.subscribe.snapshot import LIMITS, SnapshotRows
from tidemill.subscribe.spec import Spec
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

# The possible inputs of a sink: stored relations.
Sinkable: TypeAlias = Table | Source | SourceTable | MaterializedView


def relation_of(catalog: CatalogState, sink: Sink) -> Sinkable:
    item = catalog.relation(sink.relation)
    if not isinstance(item, Sinkable) or item.desc is None:
        raise Internal(f'sink "{sink.name}" is of {item.name}, which is not stored')
    return item


def sink_shard(catalog: CatalogState, sink: Sink) -> str:
    """The shard that the sink follows."""
    shard = relation_of(catalog, sink).shard
    assert shard is not None
    return shard


class SinkFeed(Protocol):
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
        """The contents at a time at which the collection is complete, in pieces that fit into memory: the
        columns, time and diff. No row occurs twice. Raises the errors of the data at that time. The caller
        must close it."""
        ...

    def follow(self, from_: int) -> Follower:
        """The changes at and after `from_`. Raises InvalidAsOf if `from_` is before since."""
        ...

    def cancel(self) -> None:
        """Cancels a snapshot that is not needed any more. May be called from any thread; returns at once."""
        ...


class RelationFeed:
    """`SinkFeed` of a stored relation."""

    def __init__(
        self, collections: Collections, spark: SparkHost, item: Sinkable, desc: RelationDesc
    ) -> None:
        """`desc`: the sink's columns, which are the relation's first ones."""
        self._collections = collections
        self._spark = spark
        self._item = item
        self._columns = desc.columns
        self.names: Sequence[str] = physical_names(item.desc or desc)[: len(desc.columns)]
        # Of the snapshot that is being read.
        self._job: Job | None = None

    @property
    def shard(self) -> Shard:
        return self._collections.shard(self._item)

    def complete(self) -> int:
        return self._collections.complete(self._item)

    def snapshot(self, at: int) -> Generator[pa.Table]:
        spark, names = self._spark, list(self.names)
        snapshot = self._collections.snapshot(self._item, at)
        job = self._job = Job(spark, "sink")
        try:
            if not LIMITS.small(snapshot):
                spark.wait()
            rows = SnapshotRows(spark, snapshot, names, Spec(self._columns), job)
        except BaseException:
            snapshot.close()
            raise
        try:
            while (batch := rows.next()) is not None:
                times, diffs, *columns = batch.columns
                yield pa.table([*columns, times, diffs], names=[*names, TIME_COLUMN, DIFF_COLUMN])
        finally:
            self._job = None
            rows.close()

    def follow(self, from_: int) -> CollectionFollower:
        return CollectionFollower(self.shard, self.names, from_, self.complete)

    def cancel(self) -> None:
        job = self._job
        if job is not None:
            job.cancel()
