"""Numbered rows in a few large Arrow batches, in memory or in mapped files.

Called by `ColumnStash`. Rows are numbered in the order of appending, from zero. Batches are merged as they
grow, so their number stays small. Batches that exceed the memory limit are written to files that are unlinked
once mapped: nothing is left behind, however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.columns import concat
from tidemill.cdcv2.problems import SpillFailed
from tidemill.errors import LimitExceeded
from tidemill.types.columns import valid_mask
from tidemill.types.identity import comparable
from tidemill.types.kernels import pc
from tidemill.types.same import same_rows

# Data in memory before batches go to disk, and on disk before an error.
MEMORY_BYTES = 1 << 30
SPILL_BYTES = 64 << 30
# Text in one Arrow batch has 32-bit offsets, and a batch is written to disk as a whole.
_MAX_BATCH_BYTES = 256 << 20
# The number of batches that are merged into one. A row of ten million is copied three or four times, and
# lookups search at most some thirty batches.
_JOINED = 8
# Rows that are fetched together: they stay in the processor's caches while they are ordered.
_FETCHED = 1 << 18


class Batches:
    def __init__(
        self, schema: pa.Schema, memory_bytes: int, spill_bytes: int, folder: str | None = None
    ) -> None:
        self._schema = schema
        # Batch i has the rows from starts[i] on; starts has one more entry, the total number of rows.
        self._batches: list[pa.RecordBatch] = []
        self._starts = [0]
        # For each batch its bytes in memory (zero on disk), and on disk.
        self._memory: list[int] = []
        self._disk: list[int] = []
        self._memory_bytes = memory_bytes
        self._spill_bytes = spill_bytes
        self._folder = folder

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return sum(self._memory)

    @property
    def disk(self) -> int:
        """Bytes in mapped files."""
        return sum(self._disk)

    def append(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch)
            self._starts.append(self._starts[-1] + batch.num_rows)
            self._memory.append(batch.nbytes)
            self._disk.append(0)

    def drop_from(self, first: int) -> None:
        """Removes the rows from `first` on, which began a batch."""
        while self._starts[-1] > first:
            for items in (self._batches, self._starts, self._memory, self._disk):
                items.pop()

    def join(self) -> None:
        """Joins batches of similar size, several at a time: each row is copied a few times at most, and there
        are few batches."""
        while len(self._batches) >= _JOINED and self._may_join():
            joined = concat(self._batches[-_JOINED:])
            self.drop_from(self._starts[-1 - _JOINED])
            self.append(joined)

    def _may_join(self) -> bool:
        if any(self._disk[-_JOINED:]) or sum(self._memory[-_JOINED:]) > _MAX_BATCH_BYTES:
            return False
        return self._batches[-_JOINED].num_rows < _JOINED * self._batches[-1].num_rows

    def check_limits(self) -> None:
        """Moves the oldest batches to disk, if there are too many, until half of the memory is free. Raises
        SpillFailed, and LimitExceeded if that does not suffice."""
        if self.memory > self._memory_bytes:
            self._spill()
        if self.disk > self._spill_bytes:
            raise LimitExceeded(
                f"more than {self._spill_bytes} bytes of stashed updates on disk",
                detail=f"{self._starts[-1]} updates wait for their times to be complete.",
                hint="Raise spill_bytes, or find out why the earlier times do not complete.",
            )

    def _spill(self) -> None:
        for i, batch in enumerate(self._batches):
            if self.memory <= self._memory_bytes // 2:
                break
            if not self._memory[i]:
                continue
            self._batches[i], size = _mapped(batch, self._folder)
            self._memory[i], self._disk[i] = 0, size

    def gather(self, rows: np.ndarray) -> pa.RecordBatch:
        """The rows of these numbers, in this order."""
        if not rows.size:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        pieces = [self._fetch(rows[at : at + _FETCHED]) for at in range(0, len(rows), _FETCHED)]
        return concat(pieces)

    def _fetch(self, rows: np.ndarray) -> pa.RecordBatch:
        last = bisect_right(self._starts, int(rows.max())) - 1
        if self._starts[last] <= int(rows.min()):
            return self._batches[last].take(pa.array(rows - self._starts[last]))
        if bool((rows[1:] >= rows[:-1]).all()):
            return self._fetch_ascending(rows)
        order = np.argsort(rows, kind="stable")
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return self._fetch_ascending(rows[order]).take(pa.array(back))

    def _fetch_ascending(self, rows: np.ndarray) -> pa.RecordBatch:
        cuts = np.searchsorted(rows, self._starts)
        parts = [
            batch.take(pa.array(rows[cuts[i] : cuts[i + 1]] - self._starts[i]))
            for i, batch in enumerate(self._batches)
            if cuts[i + 1] > cuts[i]
        ]
        return concat(parts)

    def same(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """For each i, whether row left[i] has the data of row right[i]."""
        # In the order of the right rows: rows that are far apart in memory are read one after another.
        order = np.argsort(right, kind="stable")
        first, second = self.gather(left[order]), self.gather(right[order])
        result = np.ones(len(left), np.bool_)
        for a, b in zip(first.columns, second.columns, strict=True):
            result &= _equal(a, b)
        unordered = np.empty_like(result)
        unordered[order] = result
        return unordered

    def keep(self, wanted: np.ndarray) -> None:
        """Removes all rows but those that `wanted` marks; the rest are renumbered in the same order."""
        old, starts = self._batches, self._starts
        self._batches, self._starts, self._memory, self._disk = [], [0], [], []
        for i, batch in enumerate(old):
            kept = np.flatnonzero(wanted[starts[i] : starts[i + 1]])
            self.append(batch.take(pa.array(kept)) if kept.size else batch.slice(0, 0))
            self.join()
            if self.memory > self._memory_bytes:
                try:
                    self._spill()
                except SpillFailed:
                    pass  # it stays in memory, and `check_limits` says so


def _equal(a: pa.Array, b: pa.Array) -> np.ndarray:
    """Compares row by row; NULL equals NULL and NaN equals NaN."""
    t = a.type
    if pa.types.is_nested(t):
        both = comparable(pa.concat_arrays([a, b]))
        return same_rows(both, np.arange(len(a)), np.arange(len(a)) + len(a))
    equal = pc.equal(a, b)
    if pa.types.is_floating(t):
        equal = pc.or_(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    if not (a.null_count or b.null_count):
        return equal.to_numpy(zero_copy_only=False)
    here, there = valid_mask(a), valid_mask(b)
    return pc.fill_null(equal, False).to_numpy(zero_copy_only=False) | (~here & ~there)


def _mapped(batch: pa.RecordBatch, folder: str | None) -> tuple[pa.RecordBatch, int]:
    """Writes the batch to an unlinked file and maps it; returns it with the file's size. Raises
    SpillFailed."""
    try:
        handle, path = tempfile.mkstemp(prefix="tidemill-stash-", dir=folder)
        os.close(handle)
        try:
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            with pa.memory_map(path) as source:
                mapped = pa.ipc.open_file(source).get_batch(0)
            return mapped, os.path.getsize(path)
        finally:
            os.unlink(path)
    except OSError as e:
        raise SpillFailed.of(e) from e
