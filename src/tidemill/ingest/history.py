"""A collection as a task reads it, when its upsert state is missing or behind.

Only then is the shard's log read: a task with current states never opens it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

import pyarrow as pa

from tidemill.persist.blob import Blobs
from tidemill.persist.shard import Shard


class CollectionHistory:
    """`state.History` for a shard. Returns rows of all buckets, because parts are not separated by bucket."""

    def __init__(self, blobs: Blobs, shard_id: str) -> None:
        self._blobs = blobs
        self._shard_id = shard_id

    @cached_property
    def _shard(self) -> Shard:
        return Shard.open(self._blobs, self._shard_id, epoch=None)

    @property
    def since(self) -> int:
        return self._shard.since

    @property
    def length(self) -> int:
        return sum(part.rows for part in self._shard.parts)

    def snapshot(self, as_of: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        yield from self._read(None, as_of + 1)

    def updates(self, lower: int, upper: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        yield from self._read(lower, upper)

    def _read(self, lower: int | None, upper: int) -> Iterator[pa.Table]:
        shard = self._shard
        for part in shard.parts:
            if part.min_time < upper and (lower is None or part.max_time >= lower):
                yield shard.reader.read(part, shard.desc, None, (lower, upper))
