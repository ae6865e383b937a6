"""Updates of a collection as changes of its keys: for each key and time the row before, and the row after.

Called by the keyed writer. At each time a key must have at most one row, or readers of the topic would see
one of them. This is checked for every update, against the keys that the collection has (`known_keys`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.sinks.known_keys import KnownKeys, key_hashes
from tidemill.sinks.rows.messages import Changes
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN


class NotOne(Exception):
    """A key has two rows at a time; `row` is one of them. Nothing of the updates was taken."""

    def __init__(self, at: int, row: int) -> None:
        super().__init__(f"row {row} at {at}")
        self.at = at
        self.row = row


class KeyedChanges:
    """`keys_of` gives the key of each row as bytes."""

    def __init__(self, keys_of: Callable[[pa.Table], pa.Array]) -> None:
        self._keys_of = keys_of
        self._known = KnownKeys()

    def recall(self, table: pa.Table) -> None:
        """Rows that the collection has already. Raises NotOne."""
        self.of(table, initial=True)

    def of(self, table: pa.Table, *, initial: bool) -> tuple[Changes, pa.Array]:
        """The changes in the order of their times, and their keys. The table has all updates of its times,
        each row at each time once; a snapshot may have several tables. Raises NotOne, LimitExceeded."""
        keys = self._keys_of(table)
        times = np.asarray(table.column(TIME_COLUMN).to_numpy()).astype(np.int64, copy=False)
        diffs = np.asarray(table.column(DIFF_COLUMN).to_numpy()).astype(np.int64, copy=False)
        if not len(keys):
            nothing = np.empty(0, np.int64)
            return Changes(table, nothing, nothing, nothing, initial), keys
        hashes = key_hashes(keys)
        order = np.lexsort((diffs > 0, times, hashes[:, 1], hashes[:, 0]))
        sorted_times, sorted_hashes, up = times[order], hashes[order], (diffs > 0)[order]
        new_key = _begins(sorted_hashes[:, 0]) | _begins(sorted_hashes[:, 1])
        # One group for each key and time: first what goes, then what comes.
        starts = np.flatnonzero(new_key | _begins(sorted_times))
        ends = np.append(starts[1:], len(order))
        comes = np.add.reduceat(up, starts, dtype=np.int64)
        goes = ends - starts - comes
        first_of_key = np.flatnonzero(new_key[starts])
        last_of_key = np.append(first_of_key[1:], len(starts)) - 1
        slots = self._known.find(sorted_hashes[starts[first_of_key]])
        # Whether the key has a row before the group: what the group before it left, or what is known.
        had = np.empty(len(starts), np.bool_)
        had[1:] = comes[:-1] > 0
        had[first_of_key] = slots >= 0
        large = np.abs(diffs[order]) > 1
        wrong = (comes > 1) | (goes > 1) | (had & (goes == 0))
        if large.any():
            wrong |= np.maximum.reduceat(large, starts)
        if wrong.any():
            bad = np.flatnonzero(wrong)
            worst = bad[np.argmin(sorted_times[starts[bad]])]
            raise NotOne(int(sorted_times[starts[worst]]), int(order[ends[worst] - 1]))
        if (~had & (goes > 0)).any():
            raise Internal("a row is taken away whose key has none")
        has = comes[last_of_key] > 0
        self._known.remove(slots[(slots >= 0) & ~has])
        self._known.add(sorted_hashes[starts[first_of_key]][(slots < 0) & has])
        before = np.where(goes > 0, order[starts], -1)
        after = np.where(comes > 0, order[ends - 1], -1)
        by_time = np.argsort(sorted_times[starts], kind="stable")
        before, after = before[by_time], after[by_time]
        changes = Changes(table, before, after, sorted_times[starts][by_time], initial)
        return changes, keys.take(pa.array(np.where(after >= 0, after, before)))


def _begins(values: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before it."""
    result = np.ones(len(values), np.bool_)
    result[1:] = values[1:] != values[:-1]
    return result
