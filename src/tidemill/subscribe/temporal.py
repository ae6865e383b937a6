"""A follower of rows that are valid for some time: what comes and leaves by itself.

Made by `inputs.temporal` over a follower of a query whose last columns are thresholds (`sql.bind.temporal`).
A change of such a row at time t is a change at the later of t and its first time, and the opposite change at
its last time; both are known at once. What is due later waits here: a cache, which the next process makes
again from the inputs. Promises: at each time the sum of all changes is the filter's answer with mz_now() at
that time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal, LimitExceeded
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc

# The rows of one query that wait for their time, in memory.
MAX_WAITING_BYTES = 512 << 20
# Tables of waiting rows; more are made one.
MAX_TABLES = 16

_NEVER = np.iinfo(np.int64).max
_ALWAYS = np.iinfo(np.int64).min
_MILLIS_PER_DAY = 86_400_000


def validity(
    thresholds: Sequence[pa.ChunkedArray], symbols: Sequence[str], rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each row the milliseconds [from, to) in which all comparisons with mz_now() hold. A comparison with
    NULL never does."""
    first = np.full(rows, _ALWAYS, np.int64)
    end = np.full(rows, _NEVER, np.int64)
    for column, symbol in zip(thresholds, symbols, strict=True):
        array = contiguous(column)
        floor, ceiling = _milliseconds(array)
        after = np.where(floor == _NEVER, _NEVER, floor + 1)
        if symbol in (">=", "="):
            first = np.maximum(first, ceiling)
        if symbol == ">":
            first = np.maximum(first, after)
        if symbol == "<":
            end = np.minimum(end, ceiling)
        if symbol in ("<=", "="):
            end = np.minimum(end, after)
        if array.null_count:
            end = np.where(np.asarray(array.is_valid()), end, _ALWAYS)
    return first, end


def _milliseconds(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Rounded down and up."""
    if pa.types.is_timestamp(array.type):
        micros = _numbers(array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64()))
        return micros // 1000, -(-micros // 1000)
    if pa.types.is_date(array.type):
        days = _numbers(array.view(pa.int32())).astype(np.int64) * _MILLIS_PER_DAY
        return days, days
    if not pa.types.is_int64(array.type):
        raise Internal(f"a threshold of type {array.type}")
    numbers = _numbers(array)
    return numbers, numbers


def _numbers(array: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(array, pa.scalar(0, array.type)))


def comings_and_goings(updates: pa.Table, symbols: Sequence[str]) -> pa.Table:
    """The changes of the rows without their thresholds, which are the last columns before time and diff: each
    at the times at which it is seen."""
    times = updates.column(TIME_COLUMN).to_numpy()
    diffs = updates.column(DIFF_COLUMN).to_numpy()
    width = updates.num_columns - 2 - len(symbols)
    first, end = validity(updates.columns[width:-2], symbols, updates.num_rows)
    first = np.maximum(first, times)
    seen = first < end
    leaving = np.flatnonzero(seen & (end < _NEVER))
    coming = np.flatnonzero(seen)
    chosen = pa.array(np.concatenate([coming, leaving]))
    # Not by `Table.select`: a table without columns has no rows.
    columns = [column.take(chosen) for column in updates.columns[:width]]
    stamps = pa.array(np.concatenate([first[coming], end[leaving]]))
    changes = pa.array(np.concatenate([diffs[coming], -diffs[leaving]]))
    names = [*updates.column_names[:width], TIME_COLUMN, DIFF_COLUMN]
    return pa.table([*columns, stamps, changes], names=names)


class Waiting:
    """Changes that are known and not yet due."""

    def __init__(self, schema: pa.Schema) -> None:
        self._empty = schema.empty_table()
        # With the first time of each.
        self._tables: list[tuple[int, pa.Table]] = []

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for _, table in self._tables)

    def add(self, changes: pa.Table) -> None:
        self._put(changes)
        if len(self._tables) > MAX_TABLES:
            tables = [table for _, table in self._tables]
            self._tables = []
            self._put(consolidate(pa.concat_tables(tables), RelationDesc()).combine_chunks())
        if self.bytes > MAX_WAITING_BYTES:
            raise LimitExceeded(
                f"the rows that wait for their time exceed {MAX_WAITING_BYTES >> 20} MB",
                detail="They are the rows of a filter with mz_now() that come or leave later.",
                hint="Filter, project or group them in a materialized view below.",
            )

    def _put(self, table: pa.Table) -> None:
        if table.num_rows:
            self._tables.append((int(table.column(TIME_COLUMN).to_numpy().min()), table))

    def take(self, until: int) -> pa.Table:
        """Those before that time, each row of a time once, in the order of time."""
        due, tables = [self._empty], self._tables
        self._tables = []
        for first, table in tables:
            if first >= until:
                self._tables.append((first, table))
                continue
            now = pc.less(table.column(TIME_COLUMN), until)
            due.append(table.filter(now))
            self._put(table.filter(pc.invert(now)))
        updates = pa.concat_tables(due)
        return consolidate(updates, RelationDesc()).sort_by(TIME_COLUMN) if updates.num_rows else updates


class TemporalFollower:
    def __init__(self, inner: Follower, symbols: Sequence[str], before: pa.Table) -> None:
        """`before` is the inner query's result just before the follower's frontier: its columns, and
        `mz_diff`. The follower is closed with this one."""
        self._inner = inner
        self._symbols = symbols
        stamps = pa.array(np.full(before.num_rows, inner.frontier - 1, np.int64))
        known = before.add_column(before.num_columns - 1, TIME_COLUMN, stamps)
        changes = comings_and_goings(known, symbols)
        self._waiting = Waiting(changes.schema)
        self._waiting.add(changes)
        self._waiting.take(inner.frontier)

    @property
    def frontier(self) -> int:
        return self._inner.frontier

    def advance(self) -> CollectionChanges | None:
        changes = self._inner.advance()
        if changes is None:
            return None
        if changes.updates.num_rows:
            self._waiting.add(comings_and_goings(changes.updates, self._symbols))
        until = changes.upper if changes.error is None else min(changes.upper, changes.error[0])
        return CollectionChanges(self._waiting.take(until), changes.lower, changes.upper, changes.error)

    def close(self) -> None:
        self._inner.close()
