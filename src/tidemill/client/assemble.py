"""The assembly of rows and progress into complete times.

The input is rows, cut anywhere, and progress rows: progress `p` means that every time before p is
complete. The output is complete times, each once, in order. After a lost connection (`cut`) the rows of
incomplete times are dropped; `resume` returns the time to continue from, without gaps or repeats.

Pure and columnar. The first column of a table is the time, the second says whether the row is progress;
the other columns are not read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.client.errors import ProtocolViolation, TooLarge
from tidemill.client.request import Resume
from tidemill.types.columns import contiguous, numbers

# The limit of rows held for one incomplete time, in particular a snapshot. A machine with 8 GB can hold this
# once as rows and once as the application's own data.
MAX_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class CompleteTime:
    """All rows at `time`, without the two leading columns. With `snapshot` they are not changes but the whole
    relation at this time, which may be empty."""

    time: int
    rows: pa.Table
    snapshot: bool = False


class Assembler:
    def __init__(self, *, snapshot: bool, max_bytes: int = MAX_BYTES) -> None:
        # Whether the next stream starts with a snapshot; false once one is complete.
        self._wants_snapshot = snapshot
        self._max_bytes = max_bytes
        # The last time that was returned or is not wanted; streams continue after it. None before the first.
        self._after: int | None = None
        # For the present stream: the last progress, and the time of its snapshot until that is complete.
        self._progress: int | None = None
        self._snapshot_at: int | None = None
        # Rows of incomplete times, in pieces as received.
        self._pieces: list[pa.Table] = []
        self._bytes = 0
        self._last_row = -1
        # The empty snapshot, with its columns.
        self._empty = pa.table({})

    @property
    def after(self) -> int | None:
        """Complete up to and including this time."""
        return self._after

    @property
    def resume(self) -> Resume | None:
        """Where the next stream continues; None: it starts like the first one."""
        return None if self._after is None else Resume(self._after)

    def cut(self) -> None:
        """The stream was interrupted: another one follows, from `resume` on."""
        self._progress = None
        self._snapshot_at = None
        self._pieces.clear()
        self._bytes = 0
        self._last_row = -1

    def begin_anew(self) -> None:
        """Like `cut`, but the next stream starts with a new snapshot, because the history to continue from is
        gone."""
        self.cut()
        self._after = None
        self._wants_snapshot = True

    def feed(self, rows: pa.Table) -> list[CompleteTime]:
        """Yield the times that these rows complete."""
        if not rows.num_rows:
            return []
        self._empty = rows.schema.empty_table().drop_columns(rows.column_names[:2])
        times = numbers(contiguous(rows.column(0)), np.int64)
        progressed = contiguous(rows.column(1)).to_numpy(zero_copy_only=False).astype(np.bool_)
        told = times[progressed]
        self._check(times, progressed)
        if len(told) and self._progress is None:
            self._begin(int(told[0]))
        data = rows if not len(told) else rows.filter(pa.array(~progressed))
        if data.num_rows:
            self._pieces.append(data)
            self._bytes += data.nbytes
        if len(told):
            self._progress = int(told[-1])
            return self._complete(self._progress)
        self._limit(self._bytes)
        return []

    def _limit(self, size: int) -> None:
        if size > self._max_bytes:
            raise TooLarge(
                f"the rows of one time are larger than max_bytes ({self._max_bytes})",
                hint="Ask for fewer columns or rows, or allow more with max_bytes.",
            )

    def finish(self) -> list[CompleteTime]:
        """The stream ended normally: all received rows are complete."""
        return self._complete(self._last_row + 1) if self._pieces else []

    def _begin(self, as_of: int) -> None:
        """The first row of a stream is progress at its AS OF."""
        if self._wants_snapshot:
            self._snapshot_at = as_of
        elif self._after is None:
            self._after = as_of
        elif self._after != as_of:
            raise ProtocolViolation(f"a stream from {self._after} on began at {as_of}")

    def _check(self, times: np.ndarray, progressed: np.ndarray) -> None:
        """Check that times do not go back, and that no row arrives at a complete time."""
        if self._progress is None and not progressed[0]:
            raise ProtocolViolation("a subscription did not begin with progress")
        floor = -1 if self._progress is None else self._progress
        before = np.maximum.accumulate(np.concatenate([[floor], np.where(progressed, times, -1)]))[:-1]
        rows = times[~progressed]
        if bool((times < before).any()) or bool((np.diff(rows, prepend=self._last_row) < 0).any()):
            raise ProtocolViolation("a row came at a time that was complete, or times went back")
        if len(rows):
            self._last_row = int(rows[-1])

    def _complete(self, progress: int) -> list[CompleteTime]:
        """Yield all times before `progress`, one by one."""
        snapshot_at = self._snapshot_at
        if snapshot_at is not None and progress <= snapshot_at:
            return []
        done, self._pieces, self._bytes = self._pieces, [], 0
        found: list[CompleteTime] = []
        if done:
            rows = pa.concat_tables(done)
            times = numbers(contiguous(rows.column(0)), np.int64)
            ready = int(np.searchsorted(times, progress, side="left"))
            if ready < rows.num_rows:
                rest = rows.slice(ready)
                self._pieces, self._bytes = [rest], rest.nbytes
            found = by_time(rows.slice(0, ready), times[:ready], snapshot_at)
            for complete in found:  # the same whether the rows arrived in one piece or in many
                self._limit(complete.rows.nbytes)
        if snapshot_at is not None:
            if not found or found[0].time != snapshot_at:
                found.insert(0, CompleteTime(snapshot_at, self._empty, snapshot=True))
            self._snapshot_at = None
            self._wants_snapshot = False
        if self._after is None or progress - 1 > self._after:
            self._after = progress - 1
        return found


def by_time(rows: pa.Table, times: np.ndarray, snapshot_at: int | None) -> list[CompleteTime]:
    """The rows by their `times`, which are in order."""
    starts = np.flatnonzero(np.diff(times, prepend=-1))
    ends = np.append(starts, len(times))[1:]
    payload = rows.drop_columns(rows.column_names[:2])
    return [
        CompleteTime(int(times[a]), payload.slice(a, b - a), snapshot=int(times[a]) == snapshot_at)
        for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
