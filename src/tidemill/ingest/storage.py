"""The storage interface: sources and tables as typed Python calls, without SQL.

A source is two collections: the records (`RECLOCKED`) and the bindings with their times (`REMAPPING`). A
table is one; a request for its bindings is an error. These are plain calls over the catalog, `persist` and
`ingest`, for programs that use Tidemill as a library. The SQL layer does not use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from tidemill.catalog import ops
from tidemill.catalog.items import ItemId, Source, SourceTable, Table
from tidemill.catalog.source_ops import CreateSourceOp, NewSubsource
from tidemill.catalog.store import Catalog
from tidemill.errors import UndefinedObject, WrongObjectType
from tidemill.ingest.service import Ingestion
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import Snapshot
from tidemill.reclock.boundaries import DEFAULT_INTERVAL_MS
from tidemill.sources.definition import Definition, open_source
from tidemill.types.model import RelationDesc


class CollectionType(Enum):
    """The collection of a source."""

    RECLOCKED = "reclocked"  # the upstream's data at times of the server's timeline
    REMAPPING = "remapping"  # the upstream's frontier at each time of the server's timeline


@dataclass(frozen=True, slots=True)
class StorageCollectionId:
    """A stored collection: of a source, of one of its tables, or of a table."""

    source_id: ItemId
    collection: CollectionType = CollectionType.RECLOCKED


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """An argument of `create_sources`: a name in a schema, and a definition (`sources.definition`). A source
    with several outputs gets a table for each, under their own names. `sql` is the text that SHOW CREATE
    SOURCE shows."""

    schema: ItemId
    name: str
    definition: Definition
    sql: str
    interval_ms: int = DEFAULT_INTERVAL_MS
    retain_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A collection that can be read at any time in [since, upper)."""

    desc: RelationDesc
    shard: Shard
    upper: int

    @property
    def since(self) -> int:
        return self.shard.since

    def snapshot(self, as_of: int) -> Snapshot:
        """Raises InvalidAsOf before since, NotYetReadable at upper or later."""
        return self.shard.snapshot(as_of, readable=self.upper)


class Storage:
    """Thread-safe. All calls block."""

    def __init__(self, environment: Environment, catalog: Catalog, ingestion: Ingestion) -> None:
        self._environment = environment
        self._catalog = catalog
        self._ingestion = ingestion

    def create_sources(self, sources: Sequence[SourceDescription]) -> list[ItemId]:
        """Create the sources, all or none. When this returns, they are durable and begin to tick."""
        before = {s.id for s in self._catalog.state.sources()}
        root = self._ingestion.files_root
        state = self._catalog.transact([_creation(source, root) for source in sources])
        by_name = {(s.schema, s.name): s.id for s in state.sources() if s.id not in before}
        return [by_name[source.schema, source.name] for source in sources]

    def render(self, collection: StorageCollectionId) -> Rendered:
        """The collection in its current state."""
        item = self._item(collection.source_id)
        if collection.collection is CollectionType.REMAPPING:
            if not isinstance(item, Source):
                raise WrongObjectType(
                    f'"{item.name}" has no bindings',
                    detail="Only sources are reclocked; a table has times of its own.",
                )
            shard = self._ingestion.remap_shard(item)
            return Rendered(item.remap_desc, shard, self._ingestion.readable(item))
        if isinstance(item, Table):
            shard = self._environment.open_shard(item.shard)
            upper = self._environment.txns.readable_upper(item.shard)
            self._environment.txns.apply_until(item.shard, upper - 1)
            return Rendered(item.desc, shard, upper)
        if item.desc is None:
            raise WrongObjectType(
                f'source "{item.name}" has no rows of its own', hint="Render one of its tables."
            )
        return Rendered(item.desc, self._ingestion.shard(item), self._ingestion.readable(item))

    def allow_compaction(self, frontiers: Mapping[ItemId, int]) -> None:
        """Allow that history before these times is dropped, of the data and of the bindings. Holds of
        readers, and the needs of recovery, prevent it."""
        for item_id, since in frontiers.items():
            item = self._item(item_id)
            if isinstance(item, Table):
                self._environment.open_shard(item.shard).downgrade_since(since)
            else:
                machine = self._ingestion.machine(item)
                if machine is not None:
                    machine.allow_compaction(since)

    def insert(self, writes: Mapping[ItemId, pa.Table]) -> int:
        """Write updates (physical columns and `mz_diff`) to tables, all at one time. Returns the time."""
        by_shard: dict[str, pa.Table] = {}
        for item_id, updates in writes.items():
            item = self._item(item_id)
            if not isinstance(item, Table):
                raise WrongObjectType(f'cannot insert into source "{item.name}"')
            self._environment.open_shard(item.shard)
            by_shard[item.shard] = updates
        return self._environment.txns.commit(by_shard).result()

    def durability_frontier_updates(self) -> dict[ItemId, int]:
        """For each source, table of a source, and table: everything before this time is durable and final."""
        state = self._catalog.state
        frontiers = {t.id: self._environment.oracle.read_ts() + 1 for t in state.tables()}
        for source in state.sources():
            readable = self._ingestion.readable(source)
            frontiers[source.id] = readable
            frontiers.update({table.id: readable for table in state.source_tables(source.id)})
        return frontiers

    def _item(self, item_id: ItemId) -> Table | Source | SourceTable:
        item = self._catalog.state.items.get(item_id)
        if not isinstance(item, Table | Source | SourceTable):
            raise UndefinedObject(f"collection {item_id} does not exist", sqlstate="42P01")
        return item


def _creation(source: SourceDescription, files_root: str) -> ops.Op:
    upstream = open_source(source.definition, files_root)
    upstream.close()
    only = upstream.outputs[0] if len(upstream.outputs) == 1 else None
    return CreateSourceOp(
        schema=source.schema,
        name=source.name,
        type=str(source.definition["kind"]).replace(" ", "-"),
        definition=json.dumps(source.definition, sort_keys=True, separators=(",", ":")),
        sql=source.sql,
        desc=None if only is None else only.desc,
        envelope=None if only is None else only.envelope,
        remap_desc=upstream.gauge.remap_desc,
        progress_desc=upstream.gauge.progress_desc,
        interval_ms=source.interval_ms,
        subsources=()
        if only is not None
        else tuple(NewSubsource(o.name, o.name, o.desc, o.envelope) for o in upstream.outputs),
        retain_history_ms=source.retain_history_ms,
    )
