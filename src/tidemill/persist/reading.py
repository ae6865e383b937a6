"""Reader of the parts of one shard: uses the cache, and overlaps reads where the store has latency.

Used by snapshots, listens and compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tidemill.persist.blob import Blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.part import Part, part_path
from tidemill.types.model import RelationDesc

# Fewer parts than this are read one after the other: starting threads costs more than it saves.
_OVERLAP_FROM = 4


class PartReader:
    """Stateless but for the cache; thread-safe."""

    def __init__(self, blobs: Blobs, shard_id: str, cache: PartCache) -> None:
        self.blobs = blobs
        self.shard_id = shard_id
        self.cache = cache

    def read(
        self,
        part: Part,
        desc: RelationDesc,
        columns: Sequence[str] | None = None,
        times: tuple[int | None, int | None] = (None, None),
    ) -> pa.Table:
        """See `part.read_part`."""
        return self.cache.read(self.blobs, self.shard_id, part, desc, columns, times)

    def read_all(
        self,
        parts: Sequence[Part],
        desc: RelationDesc,
        columns: Sequence[str] | None = None,
        times: tuple[int | None, int | None] = (None, None),
    ) -> list[pa.Table]:
        """Each part's updates, in order."""
        absent = [p for p in parts if self.cache.get(PartCache.key(self.blobs, self.shard_id, p)) is None]
        if self.blobs.overlap == 1 or len(absent) < _OVERLAP_FROM:
            return [self.read(part, desc, columns, times) for part in parts]
        with ThreadPoolExecutor(self.blobs.overlap, thread_name_prefix="tidemill-read") as pool:
            return list(pool.map(lambda part: self.read(part, desc, columns, times), parts))

    def locate(self, part: Part) -> str:
        """The part's path or URL."""
        return f"{self.blobs.url}/{part_path(self.shard_id, part)}"
