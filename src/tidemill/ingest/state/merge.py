"""Merging of the runs of an upsert state: for each key the newest row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidemill.envelope.keys import KeyShape, first_of_each_key
from tidemill.ingest.state.run import StateRun
from tidemill.runs.merge import ranges


def merged(runs: Sequence[StateRun], shape: KeyShape, *, oldest: bool) -> Iterator[pa.RecordBatch]:
    """The rows of the runs (newest first) as those of one run: for each key the newest. `oldest`: no older
    run exists, so keys without a row are left out. Works on ranges of hashes of about BATCH_BYTES each."""
    for pieces in ranges(runs):
        batch = _newest(pa.concat_batches(pieces), shape, oldest=oldest)
        if batch.num_rows:
            yield batch


def _newest(batch: pa.RecordBatch, shape: KeyShape, *, oldest: bool) -> pa.RecordBatch:
    chosen = first_of_each_key(batch.column(0).to_numpy(), [batch.column(1 + i) for i in shape.key])
    if oldest:
        deleted = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
        chosen = chosen[~deleted[chosen]]
    return batch.take(pa.array(chosen))
