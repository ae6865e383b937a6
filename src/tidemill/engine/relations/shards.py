"""mz_storage_shards and mz_storage_usage: the Delta table in the data directory that stores each relation,
and what is in it now.

Called by `system`. Usage is of the shards that are open in this server: those of all relations that were
read or written since it started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidemill.catalog.items import MaterializedView, Source, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.persist.log import shard_folder
from tidemill.persist.shard import Shard

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _stored(catalog: CatalogState) -> Iterator[tuple[str, str]]:
    """The relations that are stored, with their shards."""
    for item in catalog.items.values():
        if isinstance(item, Table | Source | SourceTable | MaterializedView) and item.shard is not None:
            yield item.id, item.shard


def _shards(s: Situation) -> Iterable[Record]:
    for item_id, shard in _stored(s.catalog):
        yield {"object_id": item_id, "shard_id": shard, "path": shard_folder(shard)}


def _usage(s: Situation) -> Iterable[Record]:
    shards = {shard.id: shard for shard in s.shards()}
    for item_id, shard_id in _stored(s.catalog):
        if shard_id in shards:
            yield {"object_id": item_id, **_figures(shards[shard_id])}


def _figures(shard: Shard) -> Record:
    parts = shard.parts
    return {
        "shard_id": shard.id,
        "parts": len(parts),
        "updates": sum(part.rows for part in parts),
        "retractions": sum(part.retractions for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "updates_written": shard.appended,
        "read_frontier": shard.since,
        "write_frontier": shard.upper,
        "log_entries": shard.version + 1,
    }


SHARDS_SPEC = spec(
    "mz_internal",
    "mz_storage_shards",
    "object_id text, shard_id text, path text",
    _shards,
)

USAGE_SPEC = spec(
    "mz_internal",
    "mz_storage_usage",
    """object_id text, shard_id text, parts int8, updates int8, retractions int8, bytes int8,
    updates_written int8, log_entries int8, read_frontier mz_timestamp, write_frontier mz_timestamp""",
    _usage,
    nulls=True,
)
