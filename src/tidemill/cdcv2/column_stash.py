"""Columnar stash: updates at unreported times, to release each once and to detect repetitions.

Called by `ColumnRecovery`. No code here loops over rows. Rows are stored in a few large batches in the order
of arrival. Beside them are four numbers per row (key, time, diff, origin) and an index from keys to rows. A
row is found by its key and then compared: equal keys alone are not trusted.

Memory: released rows stay in their batch until they are half of all rows; then the remaining rows are copied
together. Beyond `memory_bytes` the oldest batches move to unlinked files that are mapped; the operating
system keeps the pages in use in memory. The numbers beside the rows stay in memory, about 50 bytes per row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.batches import MEMORY_BYTES, SPILL_BYTES, Batches
from tidemill.cdcv2.columns import UpdateColumns
from tidemill.cdcv2.hash_index import HashIndex
from tidemill.cdcv2.times import Time
from tidemill.errors import LimitExceeded
from tidemill.types.hash import hash_longs

# Rows in memory and on disk. The numbers beside them are about 50 bytes each: 2.5 GB.
MAX_STASHED = 50_000_000
# The maximum number of rows that are not yet sorted by time: each release scans them all, which takes 50
# microseconds.
_UNSORTED = 1 << 16
# A smaller stash is not worth compacting.
_SMALL = 1 << 14


class ColumnStash:
    def __init__(
        self,
        schema: pa.Schema,
        max_stashed: int = MAX_STASHED,
        memory_bytes: int = MEMORY_BYTES,
        spill_bytes: int = SPILL_BYTES,
        folder: str | None = None,
    ) -> None:
        # The data of every row, released or not, by row number.
        self._batches = Batches(schema, memory_bytes, spill_bytes, folder)
        # By row number: the key of (data, time), the time's slot, the diff, the number of the origin.
        self._keys = np.zeros(0, np.uint64)
        self._slots = np.zeros(0, np.int32)
        self._diffs = np.zeros(0, np.int64)
        self._from = np.zeros(0, np.int32)
        self._rows = 0
        self._index = HashIndex()
        # The first key of rows that are stored under another key, because a different row had the first.
        self._chained: dict[int, int] = {}
        # A slot for each unreported time with rows, and whether its rows are still needed.
        self._slot_of: dict[Time, int] = {}
        self._times: list[Time] = []
        self._wanted = np.zeros(0, np.bool_)
        # The number of rows of each slot; and their numbers, for rows before `_sorted`.
        self._counts = np.zeros(0, np.int64)
        self._rows_at: list[list[np.ndarray]] = []
        self._sorted = 0
        # The origins of rows, by the numbers in `_from`.
        self._origins: list[str] = []
        # The number of rows whose times are needed.
        self._live = 0
        self._max_stashed = max_stashed

    def __len__(self) -> int:
        """The number of rows that are kept for release."""
        return self._live

    @property
    def memory(self) -> int:
        """Bytes of data in memory."""
        return self._batches.memory

    @property
    def disk(self) -> int:
        """Bytes of data in mapped files."""
        return self._batches.disk

    def add(
        self, batch: UpdateColumns, times: Sequence[Time], codes: np.ndarray, keys: np.ndarray, origin: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Adds the rows that are new. Row i has time `times[codes[i]]` and the key `keys[i]` of its data and
        time. Returns the rows that were new, and the others, each with the number of the row that equals it.
        """
        slots = self._slots_of(times)[codes]
        count, first = len(keys), self._rows
        if not self._index.has_room(count):
            self._reindex(count)
        # All of them are added as rows first, so that rows of one batch can be compared with each other too.
        self._write(first, keys, slots, batch.diffs)
        self._batches.append(batch.data)
        equals, places = self._find(np.arange(first, first + count), keys)
        fresh = equals < 0
        again = np.flatnonzero(~fresh)
        equal_to = equals[again]
        if again.size:
            kept = np.flatnonzero(fresh)
            number = np.full(count, -1, np.int64)
            number[kept] = first + np.arange(len(kept))
            equal_to = np.where(equal_to >= first, number[np.maximum(equal_to - first, 0)], equal_to)
            placed_keys = self._keys[first : first + count][kept]
            self._write(first, placed_keys, slots[kept], batch.diffs[kept])
            self._index.rename(places[kept], number[kept])
            self._chained = {
                int(number[row - first]) if row >= first else row: key
                for row, key in self._chained.items()
                if row < first or number[row - first] >= 0
            }
            self._batches.drop_from(first)
            self._batches.append(batch.data.take(pa.array(kept)))
            count = len(kept)
        if count:
            self._from[first : first + count] = len(self._origins)
            self._origins.append(origin)
            self._counts[: len(self._times)] += np.bincount(
                self._slots[first : first + count], minlength=len(self._times)
            )
            self._live += count
        self._batches.join()
        if self._rows - self._sorted > _UNSORTED:
            self._sort()
        return fresh, again, equal_to

    def diff_of(self, rows: np.ndarray) -> np.ndarray:
        return self._diffs[rows]

    def describe(self, row: int) -> tuple[str, str]:
        """A row's data and its origin, for an error."""
        return str(self._batches.gather(np.array([row])).to_pylist()[0]), self._origins[self._from[row]]

    def content(self, time: Time) -> int:
        """The sum of the hashes of a time's updates."""
        rows = self._rows_of([time])
        return sum_hashes(self._original_keys(rows), self._diffs[rows])

    def take(self, times: Sequence[Time], kind: int | None) -> UpdateColumns:
        """The updates at these times, in their order; they are removed. `kind` is that of the stream's
        times."""
        held = [t for t in times if t in self._slot_of]
        rows = self._rows_of(held)
        data = self._batches.gather(rows)
        when = np.array(held, np.int64)[self._rank(held)[self._slots[rows]]] if held else _no_times(kind)
        taken = UpdateColumns(data, when, self._diffs[rows])
        self._forget(held)
        return taken

    def drop(self, times: Sequence[Time]) -> None:
        """Removes the updates at these times."""
        self._forget([t for t in times if t in self._slot_of])

    def check_limits(self) -> None:
        """Moves rows to disk if there are too many. Raises SpillFailed and LimitExceeded."""
        self._batches.check_limits()
        if self._live > self._max_stashed:
            raise LimitExceeded(
                f"more than {self._max_stashed} stashed updates",
                detail="They wait for their times to be complete.",
                hint="Raise max_stashed, or find out why the earlier times do not complete.",
            )

    # -- within ----------------------------------------------------------------------------------------------

    def _slots_of(self, times: Sequence[Time]) -> np.ndarray:
        slots = list(map(self._slot_of.get, times))
        if None in slots:
            slots = [self._new_slot(t) if s is None else s for t, s in zip(times, slots, strict=True)]
        return np.array(slots, np.int32)

    def _new_slot(self, time: Time) -> int:
        slot = self._slot_of[time] = len(self._times)
        self._times.append(time)
        self._rows_at.append([])
        if slot >= len(self._wanted):
            more = max(64, len(self._wanted))
            self._wanted = np.concatenate([self._wanted, np.zeros(more, np.bool_)])
            self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
        self._wanted[slot] = True
        return slot

    def _write(self, first: int, keys: np.ndarray, slots: np.ndarray, diffs: np.ndarray) -> None:
        """Writes the numbers of the rows from `first` on, which are the last ones."""
        end = first + len(keys)
        if end > len(self._keys):
            size = max(end, 2 * len(self._keys), 1 << 12)
            self._keys = _grown(self._keys, size)
            self._slots = _grown(self._slots, size)
            self._diffs = _grown(self._diffs, size)
            self._from = _grown(self._from, size)
        self._keys[first:end] = keys
        self._slots[first:end] = slots
        self._diffs[first:end] = diffs
        self._rows = end

    def _find(self, rows: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Adds rows to the index. Returns for each row the row that equals it, or -1."""
        equals, places = self._index.add(rows, keys, self._keys)
        asked = np.flatnonzero(equals >= 0)
        while asked.size:
            same = self._same(rows[asked], equals[asked])
            others = asked[~same]
            if not others.size:
                break
            # Different rows with one key (probability 2^-64) get another key, derived from the first, in the
            # same way as any equal row later.
            for row in rows[others].tolist():
                self._chained.setdefault(row, int(self._keys[row]))
            self._keys[rows[others]] = _next_key(self._keys[rows[others]])
            equals[others], places[others] = self._index.add(
                rows[others], self._keys[rows[others]], self._keys
            )
            asked = others[equals[others] >= 0]
        return equals, places

    def _same(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        result = self._slots[left] == self._slots[right]
        if bool(result.all()):
            return self._batches.same(left, right)
        alike = np.flatnonzero(result)
        if alike.size:
            result[alike] = self._batches.same(left[alike], right[alike])
        return result

    def _original_keys(self, rows: np.ndarray) -> np.ndarray:
        keys = self._keys[rows]
        if self._chained:
            for i, row in enumerate(rows.tolist()):
                first = self._chained.get(row)
                if first is not None:
                    keys[i] = first
        return keys

    def _reindex(self, more: int) -> None:
        """Builds a new index of all rows, with space for `more` rows and for growth."""
        rows = np.arange(self._rows)
        keys = self._original_keys(rows)
        self._chained = {}
        self._keys[: self._rows] = keys
        self._index = HashIndex(2 * (self._rows + more))
        self._find(rows, keys)

    def _sort(self) -> None:
        """Sorts the row numbers added since the last call by their times."""
        for slot, rows in _by_slot(self._slots[self._sorted : self._rows], self._sorted):
            self._rows_at[slot].append(rows)
        self._sorted = self._rows

    def _rank(self, times: Sequence[Time]) -> np.ndarray:
        """By slot, the place of its time in `times`; -1 for others."""
        rank = np.full(len(self._times), -1, np.int64)
        rank[[self._slot_of[t] for t in times]] = np.arange(len(times))
        return rank

    def _rows_of(self, times: Sequence[Time]) -> np.ndarray:
        """The row numbers at `times`, in their order."""
        if not times:
            return np.zeros(0, np.int64)
        rank = self._rank(times)[self._slots[self._sorted : self._rows]]
        tail = np.flatnonzero(rank >= 0)
        late = dict(_by_slot(rank[tail], 0))
        parts: list[np.ndarray] = []
        for place, time in enumerate(times):
            parts += self._rows_at[self._slot_of[time]]
            if place in late:
                parts.append(tail[late[place]] + self._sorted)
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _forget(self, times: Sequence[Time]) -> None:
        for time in times:
            slot = self._slot_of.pop(time)
            self._wanted[slot] = False
            self._rows_at[slot] = []
            self._live -= int(self._counts[slot])
        if self._rows - self._live > max(self._live, _SMALL) or not self._live:
            self._close_up()

    def _close_up(self) -> None:
        """Removes released rows: numbers, slots and origins start again."""
        wanted = self._wanted[self._slots[: self._rows]]
        rows = np.flatnonzero(wanted)
        keys = self._original_keys(rows)
        self._chained = {}
        slots, diffs = self._slots[rows], self._diffs[rows]
        origins, origin_of = np.unique(self._from[rows], return_inverse=True)
        self._batches.keep(wanted)
        times = [self._times[s] for s in np.flatnonzero(self._wanted[: len(self._times)]).tolist()]
        old = [self._slot_of[t] for t in times]
        counts = self._counts[old]
        renamed = np.zeros(len(self._times), np.int32)
        renamed[old] = np.arange(len(old))
        self._origins = [self._origins[i] for i in origins.tolist()]
        self._slot_of = {t: i for i, t in enumerate(times)}
        self._times = times
        self._wanted = np.ones(len(times), np.bool_)
        self._counts = counts
        self._rows_at = [[] for _ in times]
        self._sorted = 0
        self._keys, self._slots = np.zeros(0, np.uint64), np.zeros(0, np.int32)
        self._diffs, self._from = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._write(0, keys, renamed[slots], diffs)
        self._from[: self._rows] = origin_of
        self._reindex(0)
        self._sort()


def hash_updates(keys: np.ndarray, diffs: np.ndarray) -> np.ndarray:
    """One hash of each update, from the key of its data and time; a time's digest is their sum."""
    with np.errstate(over="ignore"):
        return hash_longs(diffs, keys)


def sum_hashes(keys: np.ndarray, diffs: np.ndarray) -> int:
    """The digest of a time's updates."""
    return int(hash_updates(keys, diffs).sum(dtype=np.uint64).view(np.int64))


def _next_key(keys: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return hash_longs(keys, keys)


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger


def _by_slot(slots: np.ndarray, first: int) -> list[tuple[int, np.ndarray]]:
    """Row numbers from `first` on, by slot."""
    if not len(slots):
        return []
    # numpy sorts 16-bit numbers with a radix sort, ten times as fast as others.
    short = slots.astype(np.uint16) if int(slots.max()) < 1 << 16 and int(slots.min()) >= 0 else slots
    order = np.argsort(short, kind="stable")
    ordered = slots[order]
    order += first
    cuts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    return [
        (slot, order[start:end])
        for slot, start, end in zip(ordered[cuts[:-1]].tolist(), cuts[:-1], cuts[1:], strict=True)
    ]


def _no_times(kind: int | None) -> np.ndarray:
    """An empty array of times, in the shape of the stream's times."""
    return np.zeros((0, kind) if kind else 0, np.int64)
