"""A session's transaction: its permitted next steps, its reads, and its pending writes.

A transaction is read-only or write-only (the design's rule). All its reads use one time. Its writes are
buffered as updates and committed in one `txns` entry. UPDATE, DELETE and INSERT ... SELECT are writes that
read: they record which shards they read and when, and the commit is refused if one of them has changed since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.items import Table
from tidemill.errors import InvalidTransactionState, LimitExceeded

if TYPE_CHECKING:
    from tidemill.engine.session.savepoints import SavedState


class Mode(Enum):
    """The mode that the transaction's statements have determined; it never changes back."""

    OPEN = "open"
    READ = "read-only"
    WRITE = "write-only"


@dataclass(slots=True)
class Transaction:
    """The state between BEGIN (or the first statement) and COMMIT (or `sync`)."""

    # True between BEGIN and COMMIT; False for the implicit transaction of a single statement or a pipeline.
    explicit: bool
    # now() and current_timestamp, fixed for the whole transaction.
    started: datetime
    # Set by SET TRANSACTION READ ONLY or the session's default: writes are refused with 25006.
    read_only: bool
    isolation: str
    failed: bool = False
    mode: Mode = Mode.OPEN
    # A query has run: READ WRITE and ISOLATION LEVEL are too late.
    queried: bool = False
    # The one time of all reads; chosen by the first of them.
    read_ts: int | None = None
    # The same for reads on other timelines, by name.
    on_timelines: dict[str, int] = field(default_factory=dict)
    # Updates per shard (physical columns and mz_diff), in the order they were made; later statements read
    # them on top of the shard.
    writes: dict[str, list[pa.Table]] = field(default_factory=dict)
    write_bytes: int = 0
    # The written tables as they were defined when their updates were made; the commit is refused if one was
    # altered since.
    tables: dict[str, Table] = field(default_factory=dict)
    # Shards that a write depended on: they must not have changed after `read_ts` when it commits.
    reads: set[str] = field(default_factory=set)
    # What an implicit transaction has already committed independently. If the rest is rolled back, the client
    # is informed.
    lasting: list[str] = field(default_factory=list)
    # What follows a successful commit: acknowledgements of durable subscriptions. A rollback to a savepoint
    # drops them all: what is not acknowledged comes again.
    after: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    # The marks that ROLLBACK TO can go back to, the oldest first.
    savepoints: list[SavedState] = field(default_factory=list)

    def will_read(self) -> None:
        """Called before a SELECT (or another statement that returns rows at the transaction's time) runs."""
        if self.mode is Mode.WRITE:
            raise InvalidTransactionState(
                "transaction in write-only mode",
                detail="This transaction has written; SELECT is not allowed in it.",
                hint="COMMIT first, or use RETURNING.",
            )
        self.mode = Mode.READ

    def will_write(self, verb: str) -> None:
        """Called before INSERT, UPDATE, DELETE, TRUNCATE or COPY FROM runs."""
        if self.read_only:
            raise InvalidTransactionState(
                f"cannot execute {verb} in a read-only transaction", sqlstate="25006"
            )
        if self.mode is Mode.READ:
            raise InvalidTransactionState(
                "transaction in read-only mode",
                detail=f"This transaction has read; {verb} is not allowed in it.",
                hint="COMMIT first: a transaction either reads or writes.",
            )
        self.mode = Mode.WRITE

    def add_write(self, table: Table, updates: pa.Table, limit: int) -> None:
        self.write_bytes += updates.get_total_buffer_size()
        if self.write_bytes > limit:
            raise LimitExceeded(
                f"transaction exceeds max_transaction_size ({limit} bytes)",
                hint="Write in smaller transactions, or raise it with ALTER SYSTEM SET max_transaction_size.",
                sqlstate="54000",
            )
        if updates.num_rows:
            self.tables[table.shard] = table
            self.writes.setdefault(table.shard, []).append(updates)

    def forget_writes(self) -> None:
        """The writes were committed independently, or must be made again at a later time."""
        self.writes.clear()
        self.tables.clear()
        self.reads.clear()
        self.write_bytes = 0
        self.read_ts = None
        self.on_timelines.clear()

    def pending(self, shard_id: str) -> pa.Table | None:
        """The writes of this transaction to the shard so far."""
        tables = self.writes.get(shard_id)
        return pa.concat_tables(tables) if tables else None

    def commit_writes(self) -> Mapping[str, pa.Table]:
        return {shard: pa.concat_tables(tables) for shard, tables in self.writes.items()}

    def commit_reads(self) -> Mapping[str, int]:
        if self.read_ts is None:
            return {}
        return dict.fromkeys(self.reads, self.read_ts)
