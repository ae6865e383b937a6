"""Commits: make the updates of a transaction durable at one time.

Called by sessions at COMMIT, and by statements that commit on their own. Promises that a commit is atomic,
even if a caller is cancelled; that it fails if a table was altered or dropped since the updates were made;
and that it wakes everything that depends on the tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

import pyarrow as pa

from tidemill.catalog.items import Table
from tidemill.catalog.store import Catalog
from tidemill.engine.dml.write_locks import WriteLocks
from tidemill.engine.serve.loop_futures import LoopFutures
from tidemill.engine.session.transaction import Transaction
from tidemill.errors import SerializationFailure, UndefinedObject
from tidemill.persist.environment import Environment
from tidemill.persist.shard import ShardId
from tidemill.persist.txns.request import ShardConflict


class Commits:
    def __init__(
        self,
        environment: Environment,
        catalog: Catalog,
        locks: WriteLocks,
        on_moved: Callable[[Collection[ShardId]], None],
    ) -> None:
        """`on_moved` is called with the shards of each commit."""
        self._environment = environment
        self._catalog = catalog
        self._locks = locks
        self._on_moved = on_moved
        self._futures = LoopFutures()
        # Shards that this process has opened for writing.
        self._opened: set[ShardId] = set()

    async def commit(self, transaction: Transaction, *, claimed: bool = False) -> int:
        """Makes the writes of the transaction durable; returns their time. Raises `SerializationFailure` if
        what it read has changed. Waits for statements that claim a shard that it writes to, unless the
        caller has `claimed` it."""
        if not claimed:
            await self._locks.wait(transaction.writes)
        return await self._write(transaction.commit_writes(), transaction.tables, transaction.commit_reads())

    async def _write(
        self,
        updates: Mapping[ShardId, pa.Table],
        tables: Mapping[ShardId, Table],
        reads: Mapping[ShardId, int] | None,
    ) -> int:
        """Commits updates made for these definitions of the tables. Must not be interrupted: a commit is
        atomic."""

        def unchanged() -> None:
            items = self._catalog.state.items
            for table in tables.values():
                now = items.get(table.id)
                if now is table:
                    continue
                if now is None:
                    raise UndefinedObject(
                        f'relation "{table.name}" does not exist',
                        detail="It was dropped meanwhile.",
                        sqlstate="42P01",
                    )
                if not isinstance(now, Table) or now.desc != table.desc:
                    raise SerializationFailure(
                        f'relation "{table.name}" was altered meanwhile', hint="Run the transaction again."
                    )

        for shard_id in updates.keys() - self._opened:
            # A shard of an earlier server is fenced when it is first used, before anything is written to it.
            await asyncio.to_thread(self._environment.open_shard, shard_id)
            self._opened.add(shard_id)
        future = self._environment.txns.commit(updates, reads, unchanged)
        try:
            ts = await self._futures.result(future)
            self._on_moved(updates.keys())
            return ts
        except ShardConflict as e:
            name = next(
                (c.item.name for c in self._catalog.state.collections() if c.shard == e.shard_id), None
            )
            raise e if name is None else e.named(name) from None
