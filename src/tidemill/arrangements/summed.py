"""Rows of an arrangement in the order of their hashes, and their sums.

Only rows whose hash has a retraction are added up: the others cannot cancel. Equal rows without retractions
may therefore be stored several times; a lookup adds them up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.runs.merge import ranges
from tidemill.runs.run import HashRun
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

_DESC = RelationDesc()


def sorted_batch(rows: pa.Table, hashes: np.ndarray, stored: pa.Schema) -> pa.RecordBatch:
    """The rows (columns and diff) as those of a run with the schema `stored`."""
    order = pa.array(np.argsort(hashes, kind="stable"))
    columns = [pa.array(hashes), *(contiguous(rows.column(name)) for name in stored.names[1:])]
    return pa.RecordBatch.from_arrays([column.take(order) for column in columns], schema=stored)


def summed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sorted rows of a run, without those that cancel."""
    hashes = batch.column(0).to_numpy()
    retracted = batch.column(batch.num_columns - 1).to_numpy() < 0
    if not retracted.any():
        return batch
    touched = np.isin(hashes, np.unique(hashes[retracted]))
    # (Row identity has no unsigned numbers. Equal rows have equal hashes.)
    columns = [pa.array(hashes.view(np.int64)), *batch.columns[1:]]
    table = pa.Table.from_arrays(columns, batch.schema.names)
    rest = table.filter(pa.array(~touched))
    added = pa.concat_tables([consolidate(table.filter(pa.array(touched)), _DESC), rest])
    hashes = contiguous(added.column(0)).to_numpy().view(np.uint64)
    return sorted_batch(added, hashes, batch.schema)


def merged(runs: Sequence[HashRun]) -> Iterator[pa.RecordBatch]:
    """The rows of the runs as those of one."""
    if len(runs) == 1:
        yield from runs[0].batches
        return
    for pieces in ranges(runs):
        batch = pa.concat_batches(pieces)
        order = np.argsort(batch.column(0).to_numpy(), kind="stable")
        batch = summed(batch.take(pa.array(order)))
        if batch.num_rows:
            yield batch
