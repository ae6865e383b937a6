"""Collection of a snapshot's rows that must be shaped together, from batches.

Called while a large snapshot is read, range by range (`query.ranged`). Promises: neither copies of a row, in
any number, nor further rows of a key that is already violated take memory for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.query.multiset import add_up
from tidemill.subscribe.shape import shaped
from tidemill.subscribe.spec import OutputShape, Spec
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import leaders

# Rows collected before a check whether they can be reduced: twice the average size of a range.
REDUCE_BYTES = 32 << 20


class Gathering:
    """For one snapshot: `add` and `take` in turns."""

    def __init__(self, spec: Spec, as_of: int, reduce_bytes: int = REDUCE_BYTES) -> None:
        self._spec = spec
        self._as_of = as_of
        self._reduce_bytes = reduce_bytes
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._reduce_at = reduce_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        """The relation's columns and `mz_diff`, which is positive."""
        if not rows.num_rows:
            return
        self._batches.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._reduce_at:
            reduced = self._reduced()
            self._batches = reduced.to_batches()
            self._bytes = reduced.nbytes
            # What cannot be reduced is not checked again before it has doubled.
            self._reduce_at = max(self._reduce_bytes, 2 * self._bytes)

    def take(self) -> pa.RecordBatch | None:
        """The rows that were added, each once, in the spec's shape; None for none."""
        if not self._batches:
            return None
        table = add_up([pa.Table.from_batches(self._batches)])
        self._batches, self._bytes, self._reduce_at = [], 0, self._reduce_bytes
        return stamp(table, self._spec, self._as_of)

    def _reduced(self) -> pa.Table:
        table = pa.Table.from_batches(self._batches)
        if self._spec.output not in (OutputShape.UPSERT, OutputShape.DEBEZIUM):
            return add_up([table])
        # Two rows of a key are a violation, and so are more.
        key = [contiguous(table.column(i)) for i in self._spec.keys]
        leader = leaders(key, table.num_rows)
        order = np.argsort(leader, kind="stable")
        starts = np.flatnonzero(np.diff(leader[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        return table.take(pa.array(np.sort(order[rank < 2])))


def by_range(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], spec: Spec, as_of: int
) -> Iterator[pa.RecordBatch]:
    """The rows of `query.ranged`, range after range. `names`: the relation's column names here."""
    gathered = Gathering(spec, as_of)
    current: int | None = None
    for batch in batches:
        # A batch is of one range: Spark makes them by partition.
        number = batch.column(batch.num_columns - 1)[0].as_py() if batch.num_rows else current
        if number != current:
            found = gathered.take()
            if found is not None:
                yield found
            current = number
        gathered.add(pa.RecordBatch.from_arrays(batch.columns[:-1], [*names, DIFF_COLUMN]))
    found = gathered.take()
    if found is not None:
        yield found


def stamp(rows: pa.Table, spec: Spec, as_of: int) -> pa.RecordBatch:
    """Rows that are all of one time (`mz_diff` last) in the spec's shape."""
    times = pa.array(np.full(rows.num_rows, as_of, np.int64))
    return shaped(rows.add_column(rows.num_columns - 1, TIME_COLUMN, times), spec)


def once(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that occur once each, with the diff 1."""
    return rows.append_column(DIFF_COLUMN, pa.array(np.ones(rows.num_rows, np.int64)))
