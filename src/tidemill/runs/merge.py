"""Merging of runs: which, and when, and piece by piece.

A run merges into the next older one when it has a sixth of its size. A cache of n rows therefore has about
log n runs, and each row is rewritten a few times per level. Merges that are small compared with the work at
hand are done with it; larger ones run in the background.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.runs.run import BATCH_BYTES, HashRun

# A run merges into the next one when it has this fraction of its size. With a smaller fraction lookups would
# visit more runs; with a larger one rows would be rewritten more often.
MERGE_SHARE = 6

# A commit merges at most this many rows: with six columns they take about 3 ms of a core ...
INLINE_ROWS = 16 * 1024
# ... or this multiple of its new rows, so that merging stays proportional to the records.
INLINE_FACTOR = 8

# From this number of runs on, a commit merges all but the oldest, however long it takes: the background is
# too slow (workers die before they finish), and every lookup visits every run.
MAX_RUNS = 16


@dataclass(frozen=True, slots=True)
class MergePlan:
    """`inline`: how many of the newest existing runs merge with the new one now. `later`: the range of
    existing runs whose merge takes too long for a tick."""

    inline: int
    later: tuple[int, int] | None


def plan(fresh: int, sizes: Sequence[int]) -> MergePlan:
    """What to merge when a run of `fresh` rows is added before runs of `sizes`, newest first. Of several
    large pairs the oldest comes first, and newer runs do not grow into it. Every commit thus names the same
    range until it is merged, and no work is lost."""
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


def merged_name(runs: Sequence[HashRun]) -> str:
    """The name of a merge of runs that have files. It is equal for the same runs, in every process."""
    names = " ".join(run.facts.name for run in runs if run.facts is not None)
    return hashlib.blake2b(names.encode(), digest_size=12).hexdigest()


def ranges(runs: Sequence[HashRun]) -> Iterator[list[pa.RecordBatch]]:
    """All rows of the runs, in ranges of hashes of about BATCH_BYTES each. Rows with the same hash stay
    together."""
    size = sum(run.bytes for run in runs)
    if size <= BATCH_BYTES:
        yield [batch for run in runs for batch in run.batches]
        return
    longest = max(runs, key=lambda run: run.rows)
    steps = min(longest.rows, -(-size // BATCH_BYTES))
    # Cut between hashes, so that rows with the same hash stay together.
    inner = longest.hashes_at((np.arange(1, steps) * longest.rows) // steps)
    cuts = [[0, *run.search(inner)[0].tolist(), run.rows] for run in runs]
    for step in range(steps):
        pieces = [p for run, at in zip(runs, cuts, strict=True) for p in run.slice(at[step], at[step + 1])]
        if pieces:
            yield pieces
            for run in runs:
                run.rest()
