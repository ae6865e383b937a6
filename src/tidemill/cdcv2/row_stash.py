"""Row stash: updates at unreported times as Python values, to release each once and to detect repetitions.

Called by `Recovery`. The updates of a time are one dictionary. Beyond `max_stashed` updates in memory, the
times furthest ahead are written to a file, whole. Later updates for such a time are kept separately until the
time is needed, when both are merged. A repetition of an update on disk is detected at that point, and is not
counted until then. A disk failure (`SpillFailed`) changes nothing here.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Hashable, Sequence
from decimal import Decimal
from typing import Any, cast

from tidemill.cdcv2.problems import SpillFailed
from tidemill.cdcv2.spill_file import SpillFile
from tidemill.cdcv2.times import Time
from tidemill.errors import LimitExceeded

# Updates in memory, at 200 to 500 bytes each; and on disk, at their pickled size.
MAX_STASHED = 5_000_000
MAX_SPILLED = 100_000_000

# Data, and for each its diff and its origin.
Rows = dict[Hashable, tuple[int, str]]


class RowStash:
    def __init__(self, max_stashed: int, max_spilled: int, folder: str | None) -> None:
        # By time, the updates in memory.
        self._times: dict[Time, Rows] = {}
        # Times with updates on disk: the pieces of the file (each a pickled dictionary), and their number of
        # updates.
        self._file = SpillFile(folder)
        self._pieces: dict[Time, list[int]] = {}
        self._on_disk: dict[Time, int] = {}
        # Updates in memory and on disk.
        self._here = 0
        self._there = 0
        self._max_stashed = max_stashed
        self._max_spilled = max_spilled

    def __len__(self) -> int:
        return self._here + self._there

    def add(self, data: Hashable, time: Time, diff: int, origin: str) -> tuple[int, str] | None:
        """Adds an update, unless its data exists: then returns the diff and origin of the existing one."""
        rows = self._times.get(time)
        if rows is None:
            rows = self._times[time] = {}
        known = rows.get(data)
        if known is None:
            rows[data] = (diff, origin)
            self._here += 1
        return known

    def spilled(self, time: Time) -> bool:
        """Whether updates are on disk with which those in memory were not compared."""
        return time in self._pieces

    def take(self, times: Sequence[Time]) -> list[tuple[Hashable, Time, int]]:
        """The updates at these times, which are removed. Returns all of them, or raises."""
        found = [(data, time, diff) for time in times for data, diff in self.peek(time)]
        for time in times:
            self.drop([time])
        return found

    def peek(self, time: Time) -> list[tuple[Hashable, int]]:
        if time in self._pieces:
            self.gather(time)
        return [(data, diff) for data, (diff, _) in self._times.get(time, {}).items()]

    def drop(self, times: Sequence[Time]) -> None:
        """Removes the updates at these times."""
        for time in times:
            self._here -= len(self._times.pop(time, ()))
            self._there -= self._on_disk.pop(time, 0)
            for piece in self._pieces.pop(time, ()):
                self._file.free(piece)

    def gather(self, time: Time) -> list[tuple[Hashable, tuple[int, str], tuple[int, str]]]:
        """Reads a time's updates into memory. Returns those that occurred twice with different diffs."""
        late = self._times.get(time, {})
        rows: Rows = {}
        differ: list[tuple[Hashable, tuple[int, str], tuple[int, str]]] = []
        for part in (*(self._read(piece) for piece in self._pieces[time]), late):
            for data, said in part.items():
                known = rows.setdefault(data, said)
                if known[0] != said[0]:
                    differ.append((data, known, said))
        self.drop([time])
        self._times[time] = rows
        self._here += len(rows)
        return differ

    def count(self, time: Time) -> int:
        return len(self._times.get(time, ()))

    def check_limits(self) -> None:
        """Moves updates to disk if there are too many: the latest times first, because they are needed
        last."""
        if self._here <= self._max_stashed:
            return
        times = sorted(cast("list[Any]", list(self._times)), reverse=True)
        for time in times[:-1]:
            if self._here <= self._max_stashed // 2:
                break
            self._spill(time)
        if self._there > self._max_spilled or self._here > self._max_stashed:
            limit = (
                f"{self._max_stashed} stashed updates at one time"
                if self._here > self._max_stashed
                else f"{self._max_spilled} stashed updates on disk"
            )
            raise LimitExceeded(
                f"more than {limit}",
                detail=f"{len(self)} updates wait for their times to be complete.",
                hint="Raise the limit, or find out why the earlier times do not complete.",
            )

    def _spill(self, time: Time) -> None:
        rows = self._times[time]
        try:
            data = pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)
        except Exception as e:  # any error of the data's own methods
            raise SpillFailed.of(e) from e
        piece = self._file.put(data)
        self._pieces.setdefault(time, []).append(piece)
        del self._times[time]
        self._on_disk[time] = self._on_disk.get(time, 0) + len(rows)
        self._here -= len(rows)
        self._there += len(rows)

    def _read(self, piece: int) -> Rows:
        data = self._file.get(piece)
        try:
            rows: Rows = pickle.loads(data)
        except Exception as e:
            raise SpillFailed.of(e) from e
        return {one_nan(data): said for data, said in rows.items()}


def one_nan(data: Any) -> Hashable:
    """The data with one object for every NaN, so that equal rows are equal: Python's NaN equals only
    itself."""
    if isinstance(data, tuple):
        items = cast("tuple[Any, ...]", data)
        for item in items:
            if type(item) not in _NEVER_NAN:
                break
        else:
            return items
        fixed = tuple(one_nan(i) for i in items)
        changed = any(a is not b for a, b in zip(items, fixed, strict=True))
        return fixed if changed else items
    if isinstance(data, float):
        return math.nan if data != data else data
    if isinstance(data, Decimal):
        return _NAN if data.is_nan() else data
    if isinstance(data, frozenset):
        return frozenset(map(one_nan, cast("frozenset[Any]", data)))
    return cast("Hashable", data)


_NAN = Decimal("NaN")
# The most frequent types in rows.
_NEVER_NAN = frozenset((str, int, bool, bytes, type(None)))
