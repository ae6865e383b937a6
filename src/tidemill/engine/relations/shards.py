"""mz_storage_shards: the Delta table in the data directory that stores each relation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemill.catalog.items import MaterializedView, Source, SourceTable, Table
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.persist.log import shard_folder

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _rows(s: Situation) -> Iterable[Record]:
    for item in s.catalog.items.values():
        if isinstance(item, Table | Source | SourceTable | MaterializedView) and item.shard is not None:
            yield {"object_id": item.id, "shard_id": item.shard, "path": shard_folder(item.shard)}


SHARDS_SPEC = spec(
    "mz_internal",
    "mz_storage_shards",
    "object_id text, shard_id text, path text",
    _rows,
)
