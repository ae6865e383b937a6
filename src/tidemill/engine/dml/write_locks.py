"""Locks for statements that read and write: UPDATE, DELETE, INSERT ... SELECT and CREATE TABLE AS.

These statements read at a time and commit only if the rows are unchanged since. A lock per shard
serializes them, because conflicts between them would only cause retries. They also retry when a plain
INSERT commits in between. On a table with constant writes they would never succeed, so after a few
attempts such a statement claims its shards. Other commits then wait until it is done. Everything here runs
on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from tidemill.persist.shard import ShardId

# Tries before a statement claims its shards: a chance meeting costs one or two, and a claim makes others wait
# as long as the statement runs.
CLAIM_AFTER = 3
# Commits that were queued before a claim can still intervene, as can an alteration of the table; neither
# repeats without end.
MAX_TRIES = 20


class WriteLocks:
    """One per engine."""

    def __init__(self) -> None:
        self._locks: dict[ShardId, asyncio.Lock] = {}
        # Claimed shards; the event is set when the claim ends. Only who has a shard's lock claims it.
        self._claims: dict[ShardId, asyncio.Event] = {}

    def lock(self, shard_id: ShardId) -> asyncio.Lock:
        return self._locks.setdefault(shard_id, asyncio.Lock())

    def claimed(self, shard_id: ShardId) -> bool:
        return shard_id in self._claims

    async def wait(self, shards: Iterable[ShardId]) -> None:
        """Waits until no statement claims any of the shards. A statement that claims shards must not wait:
        two of them could deadlock."""
        if not self._claims:
            return
        for shard_id in shards:
            while (claim := self._claims.get(shard_id)) is not None:
                await claim.wait()

    @contextmanager
    def claim(self, shards: Iterable[ShardId]) -> Generator[None]:
        ended = asyncio.Event()
        claimed = list(shards)
        self._claims.update(dict.fromkeys(claimed, ended))
        try:
            yield
        finally:
            for shard_id in claimed:
                del self._claims[shard_id]
            ended.set()
