"""A collection in plain Python beside the state under test: every tick's updates are compared, and then kept
as the history from which the state may have to be filled again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import KeyShape
from tidemill.ingest.exchange import BUCKETS, encode, gather, partition_by_key
from tidemill.ingest.state import BucketState, PreparedFill, StateStore, prepare
from tidemill.types.arrow import arrow_type
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("k", INT8), Column("v", TEXT), Column("n", INT8)))
SHAPE = KeyShape.of(DESC, ["k"])

# A record: the key, and its value or None for a tombstone.
Record = tuple[Any, str | None]


def table_of(records: Sequence[Record]) -> pa.Table:
    """Records as a reader gives them; `n` repeats what `v` says, so that rows can be checked for being
    whole."""
    return pa.table(
        {
            "k": pa.array([k for k, _ in records], arrow_type(INT8)),
            "v": pa.array([v for _, v in records], pa.string()),
            "n": pa.array([None if v is None else len(v) for _, v in records], pa.int64()),
            "mz_offset": pa.array(range(len(records)), pa.int64()),
            "mz_tombstone": pa.array([v is None for _, v in records], pa.bool_()),
        }
    )


def exchanged(table: pa.Table, key: Sequence[int] = (0,), batch: int = 7) -> dict[int, pa.Table]:
    """The records by bucket, after a way through the exchange in several batches that arrive in any order."""
    slices: dict[int, list[bytes]] = {}
    for at in range(0, table.num_rows, batch):
        for bucket, piece in partition_by_key(table.slice(at, batch), key).items():
            slices.setdefault(bucket, []).insert(0, encode(piece, (0, at)))
    return {bucket: gather(pieces) for bucket, pieces in slices.items()}


def applied(state: BucketState, records: pa.Table, time: int) -> pa.Table:
    return pa.Table.from_batches(list(state.apply(records, time)), state.shape.update_schema)


@dataclass
class World:
    """What is true: the rows by key, and all updates ever made."""

    rows: dict[Any, str] = field(default_factory=dict[Any, str])
    upper: int = 1
    since: int = 0
    history: list[tuple[int, pa.Table]] = field(default_factory=list[tuple[int, pa.Table]])
    # How often the state was filled from here.
    snapshots: int = 0

    # The collection, as `History` wants it.

    @property
    def length(self) -> int:
        return sum(table.num_rows for _, table in self.history)

    def snapshot(self, as_of: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        self.snapshots += 1
        return (table for time, table in self.history if time <= as_of)

    def updates(self, lower: int, upper: int, buckets: Collection[int]) -> Iterator[pa.Table]:
        assert lower > self.since, "updates that compaction may have moved were asked for"
        return (table for time, table in self.history if lower <= time < upper)

    # The ticks.

    def compact(self, since: int) -> None:
        """Times before `since` move to it."""
        self.since = max(self.since, min(since, self.upper - 1))
        self.history = [(max(time, self.since), table) for time, table in self.history]

    def prepare(self, store: StateStore, shape: KeyShape = SHAPE) -> PreparedFill:
        return prepare(store, "s", shape, range(BUCKETS), self.upper, self)

    def expected(self, records: Iterable[Record]) -> tuple[dict[Any, str], Counter[tuple[Any, str, int]]]:
        after = dict(self.rows)
        for key, value in records:
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        updates: Counter[tuple[Any, str, int]] = Counter()
        for key in {*self.rows, *after}:
            if self.rows.get(key) != after.get(key):
                if key in self.rows:
                    updates[key, self.rows[key], -1] += 1
                if key in after:
                    updates[key, after[key], 1] += 1
        return after, updates

    def compute(
        self, states: dict[int, BucketState], records: Sequence[Record], time: int
    ) -> tuple[pa.Table, Counter[tuple[Any, str, int]]]:
        """The updates of a tick, from the states: what one attempt of the tasks does."""
        slices = exchanged(table_of(records)) if records else {}
        tables = [applied(states[bucket], piece, time) for bucket, piece in slices.items()]
        table = pa.concat_tables([SHAPE.update_schema.empty_table(), *tables])
        found: Counter[tuple[Any, str, int]] = Counter()
        for row in table.to_pylist():
            assert row["mz_timestamp"] == time
            assert row["n"] == len(row["v"])
            found[row["k"], row["v"], row["mz_diff"]] += 1
        return table, found

    def attempt(self, store: StateStore, records: Sequence[Record], time: int) -> pa.Table:
        """One attempt of a tick: right, and kept; the collection does not know of it yet."""
        states = self.prepare(store).states
        table, found = self.compute(states, records, time)
        assert found == self.expected(records)[1]
        for state in states.values():
            state.commit(time + 1)
        return table

    def commit(self, records: Sequence[Record], time: int, updates: pa.Table) -> None:
        self.rows = self.expected(records)[0]
        self.history.append((time, updates))
        self.upper = time + 1

    def tick(self, store: StateStore, records: Sequence[Record], time: int | None = None) -> None:
        at = self.upper + 9 if time is None else time
        self.commit(records, at, self.attempt(store, records, at))


def random_records(rng: np.random.Generator, count: int, keys: int) -> list[Record]:
    chosen = [None if k == 0 else int(k) for k in rng.integers(0, keys, count)]
    values = rng.integers(0, 4, count)
    return [(k, None if v == 0 else "x" * int(v)) for k, v in zip(chosen, values, strict=True)]
