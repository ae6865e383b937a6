"""Write requests of transactions, and how a group of requests becomes one table per shard.

Checks that concern a single request run here, before the group is formed. A bad request therefore fails alone
(I5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.caches import cached
from tidemill.errors import DatatypeMismatch, Internal, SerializationFailure
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN, storage_schema
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

ShardId = str


@dataclass(slots=True)
class TxnRequest:
    """One transaction that is to be committed."""

    writes: Mapping[ShardId, pa.Table]
    # Shard -> the time at which the transaction read it. If it changed after that, the request is refused.
    reads: Mapping[ShardId, int]
    # Called when no other commit or catalog change can occur between it and the commit; raises to refuse.
    guard: Callable[[], None] | None
    future: Future[int] = field(default_factory=lambda: Future[int]())
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = sum(t.get_total_buffer_size() for t in self.writes.values())


@cached(1024)
def _expected(desc: RelationDesc) -> pa.Schema:
    """The schema of the relation's updates, without a time. Computed once per relation, because requests are
    many and small."""
    return storage_schema(desc).append(pa.field(DIFF_COLUMN, pa.int64()))


def check_updates(table: pa.Table, desc: RelationDesc, shard_id: str) -> None:
    """Check that `table` has exactly the relation's physical columns and `mz_diff`, and that no diff is null
    or zero."""
    expected = _expected(desc)
    if not table.schema.equals(expected):
        _check_columns(table, expected, shard_id)
    diffs = table.column(DIFF_COLUMN)
    if diffs.null_count or not diffs.to_numpy().all():
        raise Internal(f"the updates for shard {shard_id} have diffs that are null or zero")


def _check_columns(table: pa.Table, expected: pa.Schema, shard_id: str) -> None:
    """Nullability makes no difference here; any other difference is an error."""
    names = expected.names
    if table.schema.names != names:
        given = [n for n in table.schema.names if n != DIFF_COLUMN]
        if given == names[: len(given)]:
            raise changed_meanwhile(shard_id)
        raise Internal(
            f"the updates for shard {shard_id} do not have its columns",
            detail=f"Got {table.schema.names}; expected {names}.",
        )
    for name, wanted, found in zip(names, expected.types, table.schema.types, strict=True):
        if found != wanted:
            raise DatatypeMismatch(f'column "{name}" is of type {wanted} but the update is of type {found}')


class ShardConflict(SerializationFailure):
    """A shard changed under a transaction. `what` is the text with a placeholder for the shard; a caller that
    knows the relation fills in its name (`named`)."""

    def __init__(self, primary: str, what: str, shard_id: str, *, name: str | None = None) -> None:
        detail = what.format(name or f"Shard {shard_id}")
        super().__init__(primary, detail=detail, hint="Run the transaction again.")
        self.what = what
        self.shard_id = shard_id

    def named(self, relation: str) -> ShardConflict:
        """The same, about the relation."""
        return ShardConflict(self.primary, self.what, self.shard_id, name=f'Relation "{relation}"')

    def __reduce__(self) -> tuple[type[ShardConflict], tuple[str, str, str]]:
        return (ShardConflict, (self.primary, self.what, self.shard_id))


def changed_meanwhile(shard_id: str) -> ShardConflict:
    return ShardConflict(
        "could not serialize access due to a concurrent change of the table",
        "{} got other columns after the statement was planned.",
        shard_id,
    )


def conflict(shard_id: str, read_at: int, changed_at: int) -> ShardConflict:
    return ShardConflict(
        "could not serialize access due to concurrent update",
        f"{{}} was read at {read_at} and changed at {changed_at}.",
        shard_id,
    )


def merge(tables: Sequence[pa.Table], desc: RelationDesc, time: int) -> pa.Table | None:
    """The updates of one group for one shard, at `time`; None when they cancel out. Insertions alone need no
    consolidation."""
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    # One chunk per column: fifty one-row chunks would make the next steps slow.
    table = table.combine_chunks()
    if (table.column(DIFF_COLUMN).to_numpy() < 0).any():
        table = consolidate(table, desc)
    if table.num_rows == 0:
        return None
    at = table.schema.get_field_index(DIFF_COLUMN)
    return table.add_column(at, TIME_COLUMN, pa.array(np.full(table.num_rows, time, np.int64)))
