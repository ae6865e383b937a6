"""The run of an upsert state: rows of distinct keys.

Its columns are `mz_key_hash`, those of the state's shape, and `mz_tombstone` (the key has no row, even if an
older run has one).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import KeyShape, rows_equal
from tidemill.runs.run import HashRun, cut

# A lookup of this many keys of a bucket, or a commit of this many rows, releases the pages afterwards. The
# system maps 64 kB around each accessed position, and a key needs about four: after a tick of ten thousand
# records the whole state was in the process's memory. Smaller ticks keep their pages: for a tick of a
# thousand records, mapping them again took 6 of 21 ms.
REST_ROWS = 256


class StateRun(HashRun):
    __slots__ = ()

    @staticmethod
    def of(rows: pa.RecordBatch, hashes: np.ndarray, deleted: np.ndarray, schema: pa.Schema) -> StateRun:
        """A run from rows of a state's shape, in the order of the hashes; `schema` is its `kept_schema`."""
        columns = [pa.array(hashes), *rows.columns, pa.array(deleted)]
        return StateRun(cut(pa.RecordBatch.from_arrays(columns, schema=schema)))

    @property
    def tombstones(self) -> int:
        return sum(batch.column(batch.num_columns - 1).true_count for batch in self.batches)

    def find(
        self, hashes: np.ndarray, keys: Sequence[pa.Array], among: np.ndarray, shape: KeyShape
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Find the keys at the ascending positions `among`: yields the positions of those in this run, and
        copies of the run's rows for them. For many keys, each batch is released after its keys are found, so
        that no more than one batch's pages are in memory."""
        if len(among) < REST_ROWS:
            yield from self._find(hashes, keys, among, shape)
            return
        begin = 0
        for end in hashes[among].searchsorted(self.lasts, side="right").tolist():
            if begin < end:
                yield from self._find(hashes, keys, among[begin:end], shape)
                self.rest()
            begin = end

    def _find(
        self, hashes: np.ndarray, keys: Sequence[pa.Array], among: np.ndarray, shape: KeyShape
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Yields more than once only if different keys have the same hash."""
        if not self.rows or not len(among):
            return
        wanted = hashes[among]
        at, there = self.search(wanted)
        hit = there.nonzero()[0]
        while hit.size:
            rows = self.take(at[hit])
            where = among[hit]
            chosen = [k if len(where) == len(k) else k.take(pa.array(where)) for k in keys]
            same = rows_equal([rows.column(1 + i) for i in shape.key], chosen, len(where))
            if same.all():
                yield where, rows
                return
            if same.any():
                yield where[same], rows.filter(pa.array(same))
            # A different key with the same hash: the next row may be the right one.
            hit = hit[~same]
            at[hit] += 1
            hit = hit[at[hit] < self.rows]
            hit = hit[self.hashes_at(at[hit]) == wanted[hit]]
