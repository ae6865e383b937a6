"""Merging of runs: which, when, and how.

A run merges into the next older one when it has reached a sixth of its size. So a bucket of n keys has about
log n runs, and each row is rewritten a few times per level. Merges that are small compared with the tick's
own work are done with it. A larger merge runs in the background (`store`), and a later commit uses its
result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import KeyShape, first_of_each_key
from tidemill.ingest.state.run import BATCH_BYTES, StateRun

# A run merges into the next when it has one part in so many of its size: with fewer parts lookups would visit
# more runs, with more parts rows would be rewritten more often.
MERGE_SHARE = 6

# What a commit merges by itself: as many rows of six columns take about 3 ms of a core, ...
INLINE_ROWS = 16 * 1024
# ... or so many times the rows that it brings: then merging stays in proportion to the records.
INLINE_FACTOR = 8

# With so many runs a commit merges all but the oldest by itself, however long it takes: the background
# does not keep up (workers that die before they finish), and every lookup pays for every run.
MAX_RUNS = 16


@dataclass(frozen=True, slots=True)
class MergePlan:
    """`inline`: how many of the newest existing runs merge with the new one now. `later`: the range of
    existing runs whose merge is too long for a tick."""

    inline: int
    later: tuple[int, int] | None


def plan(fresh: int, sizes: Sequence[int]) -> MergePlan:
    """What to merge when a run of `fresh` rows comes before runs of `sizes`, newest first. Of large pairs the
    oldest comes first, and what stands before it does not grow into it: so the same range is named by every
    commit until it is merged, and no work is lost."""
    if len(sizes) >= MAX_RUNS:
        return MergePlan(len(sizes) - 1, None)
    affordable = max(INLINE_ROWS, INLINE_FACTOR * fresh)
    later: tuple[int, int] | None = None
    for i in range(len(sizes) - 2, -1, -1):
        if sizes[i] * MERGE_SHARE >= sizes[i + 1] and sizes[i] + sizes[i + 1] > affordable:
            later = (i, i + 2)
            break
    free = len(sizes) if later is None else later[0]
    inline, total = 0, fresh
    while inline < free and total * MERGE_SHARE >= sizes[inline] and total + sizes[inline] <= affordable:
        total += sizes[inline]
        inline += 1
    return MergePlan(inline, later)


def merged_name(runs: Sequence[StateRun]) -> str:
    """Names the merge of runs that have files: equal for the same runs, in every process."""
    names = " ".join(run.facts.name for run in runs if run.facts is not None)
    return hashlib.blake2b(names.encode(), digest_size=12).hexdigest()


def merged(runs: Sequence[StateRun], shape: KeyShape, *, oldest: bool) -> Iterator[pa.RecordBatch]:
    """The rows of the runs (newest first) as those of one: of each key the newest. `oldest`: no older run is
    left, so keys without a row need not be told of. Goes by ranges of hashes, each about BATCH_BYTES."""
    for pieces in _ranges(runs):
        batch = _newest(pa.concat_batches(pieces), shape, oldest=oldest)
        if batch.num_rows:
            yield batch


def _ranges(runs: Sequence[StateRun]) -> Iterator[list[pa.RecordBatch]]:
    size = sum(run.bytes for run in runs)
    if size <= BATCH_BYTES:
        yield [batch for run in runs for batch in run.batches]
        return
    longest = max(runs, key=lambda run: run.rows)
    steps = min(longest.rows, -(-size // BATCH_BYTES))
    # Cut at hashes, so that rows of one hash stay together.
    inner = longest.hashes_at((np.arange(1, steps) * longest.rows) // steps)
    cuts = [[0, *run.search(inner)[0].tolist(), run.rows] for run in runs]
    for step in range(steps):
        pieces = [p for run, at in zip(runs, cuts, strict=True) for p in run.slice(at[step], at[step + 1])]
        if pieces:
            yield pieces
            for run in runs:
                run.rest()


def _newest(batch: pa.RecordBatch, shape: KeyShape, *, oldest: bool) -> pa.RecordBatch:
    chosen = first_of_each_key(batch.column(0).to_numpy(), [batch.column(1 + i) for i in shape.key])
    if oldest:
        deleted = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
        chosen = chosen[~deleted[chosen]]
    return batch.take(pa.array(chosen))
