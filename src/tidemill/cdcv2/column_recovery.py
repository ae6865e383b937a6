"""Columnar recovery: the rules of `recovery`, for batches of Arrow data.

Called with `UpdateColumns` and `Progress` messages, as the codecs return them. All work per row runs on whole
columns. Python code handles only statements and times, of which a batch has few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.cdcv2 import problems
from tidemill.cdcv2.batches import MEMORY_BYTES, SPILL_BYTES
from tidemill.cdcv2.column_stash import MAX_STASHED, ColumnStash, hash_updates
from tidemill.cdcv2.columns import UpdateColumns, check_columns, distinct_times
from tidemill.cdcv2.coverage import MAX_FRONTIER
from tidemill.cdcv2.digest import UpdateHash
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.pending import Pending, releases
from tidemill.cdcv2.tally import MAX_STATEMENTS, MAX_TIMES, Tally
from tidemill.cdcv2.times import Time
from tidemill.time.clock import Clock
from tidemill.types.hash import SEED, fold, hash_column, hash_longs

ColumnMessage = UpdateColumns | Progress
# Updates in the order of their times, and the frontier before which the history is now complete; [] = all
# of it.
ColumnRelease = tuple[UpdateColumns, list[Time]]


def recover_columns(
    messages: Iterable[ColumnMessage], schema: pa.Schema, *, resume_from: Iterable[Time] | None = None
) -> Iterator[ColumnRelease]:
    """As `recover`, for columns."""
    return releases(ColumnRecovery(schema, resume_from), messages)


class ColumnRecovery(Pending[ColumnStash, ColumnRelease]):
    """As `Recovery`; every update has the columns of `schema`, in the storage forms of `types.arrow`."""

    def __init__(
        self,
        schema: pa.Schema,
        resume_from: Iterable[Time] | None = None,
        max_stashed: int | None = None,
        *,
        memory_bytes: int = MEMORY_BYTES,
        spill_bytes: int = SPILL_BYTES,
        max_statements: int = MAX_STATEMENTS,
        max_times: int = MAX_TIMES,
        max_frontier: int = MAX_FRONTIER,
        require_digests: bool = False,
        spill_folder: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._schema = schema
        stash = ColumnStash(
            schema,
            MAX_STASHED if max_stashed is None else max_stashed,
            memory_bytes,
            spill_bytes,
            spill_folder,
        )
        tally = Tally(
            resume_from,
            content=stash.content,
            clock=clock,
            require_digests=require_digests,
            max_statements=max_statements,
            max_times=max_times,
            max_frontier=max_frontier,
        )
        super().__init__(stash, tally)

    @property
    def frontier(self) -> list[Time]:
        """The history before it is complete and was released; [] when all of the history is complete."""
        return list(self._tally.reported)

    @property
    def stashed_memory(self) -> int:
        """Bytes of the updates' data that are in memory; about 50 more for each update."""
        return self._stash.memory

    @property
    def spilled_bytes(self) -> int:
        """Bytes of the updates' data on disk."""
        return self._stash.disk

    def push(self, message: ColumnMessage) -> list[ColumnRelease]:
        """Accepts one message; returns the updates that can be released now. Raises as `Recovery.push`
        does."""
        origin = self._origin(message, UpdateColumns)
        if isinstance(message, UpdateColumns):
            self._take(message, origin)
        else:
            self._tally.declare(message, origin)
        before = self._tally.reported
        passed = self._tally.advance()
        if self._tally.reported != before:
            self._ready.append((self._stash.take(passed, self._tally.kind), self.frontier))
        return self._handed_out(None)

    def _take(self, batch: UpdateColumns, origin: str) -> None:
        check_columns(batch, self._schema, origin)
        if not len(batch):
            return
        times, codes = distinct_times(batch.times)
        self._tally.agree(times[:1], origin)
        wanted = np.array(self._tally.news(times), np.bool_)
        self._refuse_zeros(batch, times, codes, wanted, origin)
        if not wanted.any():
            return
        if not wanted.all():
            rows = np.flatnonzero(wanted[codes])
            batch = batch.take(rows)
            number = np.cumsum(wanted) - 1
            codes = number[codes[rows]]
            times = [t for t, keep in zip(times, wanted.tolist(), strict=True) if keep]
        fresh, again, equal_to = self._stash.add(batch, times, codes, keys_of(batch), origin)
        poisoned = self._compare_diffs(batch, times, codes, again, equal_to, origin)
        counts = np.bincount(codes[fresh], minlength=len(times)).tolist()
        counted = [(t, n) for t, n in zip(times, counts, strict=True) if n]
        if poisoned:
            counted = [(t, n) for t, n in counted if t not in poisoned]
        self._tally.observe(counted, origin)

    def _refuse_zeros(
        self, batch: UpdateColumns, times: list[Time], codes: np.ndarray, wanted: np.ndarray, origin: str
    ) -> None:
        if bool(batch.diffs.all()):
            return
        for row in np.flatnonzero((batch.diffs == 0) & wanted[codes]).tolist():
            if wanted[codes[row]]:
                time = times[codes[row]]
                self._tally.poison(time, problems.ZERO_DIFF, _said(batch, row, time, origin))
                wanted[codes[row]] = False

    def _compare_diffs(
        self,
        batch: UpdateColumns,
        times: list[Time],
        codes: np.ndarray,
        again: np.ndarray,
        equal_to: np.ndarray,
        origin: str,
    ) -> set[Time]:
        """Poisons the times at which one row has two diffs."""
        poisoned: set[Time] = set()
        known = self._stash.diff_of(equal_to)
        for i in np.flatnonzero(known != batch.diffs[again]).tolist():
            row = int(again[i])
            time = times[codes[row]]
            if time not in poisoned:
                poisoned.add(time)
                data, source = self._stash.describe(int(equal_to[i]))
                first = f"({data}, {time}, {int(known[i]):+}) in {source}"
                self._tally.poison(time, problems.TWO_DIFFS, first, _said(batch, row, time, origin))
        return poisoned


def keys_of(batch: UpdateColumns) -> np.ndarray:
    """One 64-bit hash of each row's data and time: the same in every process."""
    hashes = [hash_column(column) for column in batch.data.columns]
    with np.errstate(over="ignore"):
        key = fold(hashes) if hashes else np.full(len(batch), SEED, np.uint64)
        for component in batch.times.reshape(len(batch), -1).T:
            key = hash_longs(np.ascontiguousarray(component), key)
    return key


def column_hash(schema: pa.Schema) -> UpdateHash:
    """The hash of an update whose data is a tuple of these columns' values. For digests that were made from
    columns and are checked by `Recovery(update_hash=...)`. It works row by row, so it is slow for many rows.
    """

    def update_hash(data: Any, time: Time, diff: int) -> int:
        columns = [pa.array([value], f.type) for value, f in zip(data, schema, strict=True)]
        batch = UpdateColumns.of(pa.RecordBatch.from_arrays(columns, schema=schema), [time], [diff])
        return int(hash_updates(keys_of(batch), batch.diffs)[0])

    return update_hash


def _said(batch: UpdateColumns, row: int, time: Time, origin: str) -> str:
    return f"({batch.data.slice(row, 1).to_pylist()[0]}, {time}, {int(batch.diffs[row]):+}) in {origin}"
