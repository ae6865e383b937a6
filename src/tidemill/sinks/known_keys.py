"""The set of keys that a collection has: a hash table of 128-bit hashes, in numpy, whole batches at a time.

Called by `keyed_changes`, which must know whether a key that gets a row has one already. A key takes 40 to 80
bytes. That two of 50 million keys have one hash has a probability of 1e-23.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.errors import LimitExceeded
from tidemill.types.columns import spans
from tidemill.types.hash import PIECE_ROWS, hash_bytes

# The table then has 2 GB.
MAX_KEYS = 50_000_000
_FIRST_SLOTS = 1 << 10
# First words with a meaning of their own; hashes that are one of them are changed.
_EMPTY, _REMOVED = 0, 1
_SEEDS = (np.uint64(42), np.uint64(0x9E3779B97F4A7C15))


def key_hashes(keys: pa.Array) -> np.ndarray:
    """Two words for each key."""
    offsets, data = spans(keys)
    hashes = np.empty((len(keys), 2), np.uint64)
    with np.errstate(over="ignore"):
        for at in range(0, len(keys), PIECE_ROWS):
            part = offsets[at : at + PIECE_ROWS + 1]
            for word, seed in enumerate(_SEEDS):
                hashes[at : at + PIECE_ROWS, word] = hash_bytes(part[:-1], np.diff(part), data, seed)
    hashes[hashes[:, 0] <= _REMOVED, 0] += np.uint64(2)
    return hashes


class KnownKeys:
    def __init__(self) -> None:
        self._slots = np.zeros((_FIRST_SLOTS, 2), np.uint64)
        # Slots that are not empty, and those of them that hold a key.
        self._taken = 0
        self._keys = 0

    def __len__(self) -> int:
        return self._keys

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The slot of each key, -1 where it is not here."""
        found = np.full(len(keys), -1, np.int64)
        left, at = np.arange(len(keys)), self._first(keys)
        while left.size:
            held = self._slots[at]
            mine = keys[left]
            same = (held[:, 0] == mine[:, 0]) & (held[:, 1] == mine[:, 1])
            found[left[same]] = at[same]
            on = np.flatnonzero(~same & (held[:, 0] != _EMPTY))
            left, at = left[on], self._next(at[on])
        return found

    def add(self, keys: np.ndarray) -> None:
        """Keys that are not here, each once. Raises LimitExceeded."""
        self._make_room(len(keys))
        self._place(keys)
        self._keys += len(keys)

    def remove(self, slots: np.ndarray) -> None:
        """Of keys that were found."""
        self._slots[slots, 0] = _REMOVED
        self._keys -= len(slots)

    def _place(self, keys: np.ndarray) -> None:
        left, at = np.arange(len(keys)), self._first(keys)
        while left.size:
            before = self._slots[at, 0]
            free = np.flatnonzero(before <= _REMOVED)
            self._slots[at[free]] = keys[left[free]]
            # If several keys wrote to one slot, the last one stays; the others detect it here.
            held = self._slots[at[free]]
            mine = keys[left[free]]
            placed = free[(held[:, 0] == mine[:, 0]) & (held[:, 1] == mine[:, 1])]
            self._taken += int((before[placed] == _EMPTY).sum())
            on = np.ones(len(left), np.bool_)
            on[placed] = False
            left, at = left[on], self._next(at[on])

    def _make_room(self, more: int) -> None:
        wanted = self._keys + more
        if wanted > MAX_KEYS:
            raise LimitExceeded(
                f"the sink's relation has more than {MAX_KEYS} keys",
                detail="The sink remembers the keys, to see that none has two rows.",
                hint="Write parts of it, from several materialized views, into several topics.",
            )
        if 2 * (self._taken + more) <= len(self._slots):
            return
        slots = _FIRST_SLOTS
        # Some room for keys that come and go, whose slots are free again only in a new table.
        while slots < wanted * 5 // 2:
            slots *= 2
        kept = self._slots[self._slots[:, 0] > _REMOVED]
        self._slots, self._taken = np.zeros((slots, 2), np.uint64), 0
        self._place(kept)

    def _first(self, keys: np.ndarray) -> np.ndarray:
        return (keys[:, 0] & np.uint64(len(self._slots) - 1)).view(np.int64)

    def _next(self, at: np.ndarray) -> np.ndarray:
        return (at + 1) & (len(self._slots) - 1)
