"""Sinks as the engine runs them: the collection that one writes out, and its target as the catalog has it
today."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tidemill.catalog.connections import options
from tidemill.catalog.items import MaterializedView, Sink, Source, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.cdcv2.avro import AvroCodec
from tidemill.engine.read.followed import complete, shard_of
from tidemill.engine.read.inputs import snapshot_of
from tidemill.errors import Internal
from tidemill.files_root import below_root
from tidemill.persist.shard import Shard
from tidemill.query.job import Job
from tidemill.sinks.definition import KAFKA, Definition, codec_of
from tidemill.sinks.files_target import FilesTarget
from tidemill.sinks.kafka_target import KafkaTarget
from tidemill.sinks.machine import Machine
from tidemill.sinks.target import Check, Target, Written
from tidemill.subscribe.follower import CollectionFollower
from tidemill.subscribe.snapshot import LIMITS, SnapshotRows
from tidemill.subscribe.spec import Spec
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine

# What a sink can be made from: stored relations.
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


class RelationFeed:
    """`sinks.feed.Feed`."""

    def __init__(self, engine: TidemillEngine, item: Sinkable, desc: RelationDesc) -> None:
        """`desc`: the sink's columns, which are the relation's first ones."""
        self._engine = engine
        self._item = item
        self._columns = desc.columns
        self.names: Sequence[str] = physical_names(item.desc or desc)[: len(desc.columns)]
        # Of the snapshot that is being read.
        self._job: Job | None = None

    @property
    def shard(self) -> Shard:
        return shard_of(self._engine, self._item)

    def complete(self) -> int:
        return complete(self._engine, self._item)

    def snapshot(self, at: int) -> Generator[pa.Table]:
        engine, names = self._engine, list(self.names)
        snapshot = snapshot_of(engine, self._item, at)
        job = self._job = Job(engine.spark, "sink")
        try:
            if not LIMITS.small(snapshot):
                engine.spark.wait()
            rows = SnapshotRows(engine.spark, snapshot, names, Spec(self._columns), job)
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


def open_sink(engine: TidemillEngine, catalog: CatalogState, sink: Sink, written: Written) -> Machine:
    """The sink's machine. Raises what is wrong with its connections."""
    definition = Definition.of(sink)
    holder: list[Machine] = []
    target = _target(engine, catalog, sink, definition, written, lambda: holder[0].check())
    feed = RelationFeed(engine, relation_of(catalog, sink), sink.desc)
    holder.append(Machine(sink, definition, feed, target, written))
    return holder[0]


def _target(
    engine: TidemillEngine,
    catalog: CatalogState,
    sink: Sink,
    definition: Definition,
    written: Written,
    check: Check,
) -> Target:
    if definition.kind == KAFKA:
        assert definition.connection is not None and definition.topic is not None
        reached = options(catalog, definition.connection, engine.secrets)
        return KafkaTarget(reached, definition.topic, definition.share, written, check)
    root, path = engine.config.files_root, definition.path or ""
    codec = codec_of(sink, definition)
    schema = codec.avro_schema if isinstance(codec, AvroCodec) else None
    # Names of files are lower case letters and digits: ids of environments and items are.
    writer = f"{engine.environment.id[:8]}{sink.id}"
    life = engine.environment.epoch
    return FilesTarget(
        lambda: below_root(root, path), definition.format, schema, definition.share, writer, life, written
    )
