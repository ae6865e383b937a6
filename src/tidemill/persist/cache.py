"""Part cache: small parts as Arrow tables, limited in bytes and shared by all shards of the process.

A tick writes a small part, and readers, listens and the next compaction read it soon after. The cache saves
them the file access and the decoding. Parts never change, so entries need no invalidation. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa

from tidemill import caches
from tidemill.persist.blob import Blobs
from tidemill.persist.part import Part, clip, fit, part_path, part_schema, project, read_part
from tidemill.types.model import RelationDesc

# All cached tables together. A day's worth of the smallest parts would fit some 30,000 times 2 kB.
CACHE_BYTES = 64 << 20
# What an Arrow table of one row and four columns costs beside its buffers: 4.1 kB, measured.
TABLE_BYTES = 512
COLUMN_BYTES = 900
# Larger parts are read with projection and pushed-down columns instead; one of them would throw out hundreds
# of small ones.
CACHE_PART_BYTES = 1 << 20


class PartCache:
    """The least recently used entry is removed first."""

    def __init__(self, max_bytes: int = CACHE_BYTES, max_part_bytes: int = CACHE_PART_BYTES) -> None:
        self.max_bytes = max_bytes
        self.max_part_bytes = max_part_bytes
        self._tables: OrderedDict[str, tuple[pa.Table, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: str) -> pa.Table | None:
        with self._lock:
            found = self._tables.get(key)
            if found is None or not caches.ENABLED:
                return None
            self._tables.move_to_end(key)
            return found[0]

    def put(self, key: str, table: pa.Table) -> None:
        # The size of the memory that the table keeps alive: a slice references all of its parent.
        cost = table.get_total_buffer_size() + TABLE_BYTES + COLUMN_BYTES * table.num_columns
        if cost > self.max_part_bytes:
            return
        with self._lock:
            if key in self._tables:
                return
            self._tables[key] = (table, cost)
            self._bytes += cost
            while self._bytes > self.max_bytes:
                _, (_, freed) = self._tables.popitem(last=False)
                self._bytes -= freed

    def drop(self, key: str) -> None:
        with self._lock:
            found = self._tables.pop(key, None)
            if found is not None:
                self._bytes -= found[1]

    def read(
        self,
        blobs: Blobs,
        shard_id: str,
        part: Part,
        desc: RelationDesc,
        columns: Sequence[str] | None = None,
        times: tuple[int | None, int | None] = (None, None),
    ) -> pa.Table:
        """As `part.read_part`, through the cache."""
        if part.bytes > self.max_part_bytes:
            return read_part(blobs, shard_id, part, desc, columns, times)
        key = self.key(blobs, shard_id, part)
        table = self.get(key)
        if table is None:
            table = read_part(blobs, shard_id, part, desc)
            self.put(key, table)
        return clip(fit(table, project(part_schema(desc), columns)), part, times)

    @staticmethod
    def key(blobs: Blobs, shard_id: str, part: Part) -> str:
        return f"{blobs.url}/{part_path(shard_id, part)}"


SHARED_CACHE = PartCache()
