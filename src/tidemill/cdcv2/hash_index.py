"""Hash index from 64-bit keys to rows, for whole columns of keys: open addressing in numpy, in rounds.

Called by `ColumnStash`. A round probes one slot for every undecided key; a key is decided when it finds an
equal key or an empty slot. At most half of the slots are used, so nearly all keys are decided in the first
two rounds. Entries are never removed: the owner builds a new index when many of its rows are gone.
"""

from __future__ import annotations

import numpy as np

_TAG = np.uint64(0xFFFFFFFF00000000)
_ROW = np.uint64(0x00000000FFFFFFFF)
_FIRST_SLOTS = 1 << 12


class HashIndex:
    """The `keys` of the rows belong to the owner, which passes them to each call."""

    def __init__(self, expected: int = 0) -> None:
        slots = _FIRST_SLOTS
        while slots < 2 * expected:
            slots *= 2
        # The upper half of the key and the row's number plus one; zero is empty.
        self._slots = np.zeros(slots, np.uint64)
        self._taken = 0

    def has_room(self, more: int) -> bool:
        return 2 * (self._taken + more) <= len(self._slots)

    def add(self, rows: np.ndarray, keys: np.ndarray, all_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Adds each row whose key is new. Returns for each row the row that already has its key, or -1 if it
        was added; and the places of added rows, for `rename`. If two rows of one call have the same key, one
        of them is added. `all_keys[row]` is the key of any row."""
        found = np.full(len(rows), -1, np.int64)
        places = np.zeros(len(rows), np.int64)
        mask = np.uint64(len(self._slots) - 1)
        entries = (keys & _TAG) | (rows.astype(np.uint64) + np.uint64(1))
        left = np.arange(len(rows))
        # The lower half selects the slot, the upper half distinguishes most other keys.
        at = (keys & mask).view(np.int64)
        mine = entries
        step = 0
        while left.size:
            held = self._slots[at]
            free = (held == 0).nonzero()[0]
            if free.size:
                self._slots[at[free]] = mine[free]
                # If several keys wrote to one slot, the last one stays; the others detect it here.
                held[free] = self._slots[at[free]]
            differ = held ^ mine
            done = differ == 0
            places[left[done]] = at[done]
            alike = ((differ & _TAG == 0) & ~done).nonzero()[0]
            if alike.size:
                row = (held[alike] & _ROW).view(np.int64) - 1
                equal = all_keys[row] == keys[left[alike]]
                found[left[alike[equal]]] = row[equal]
                done[alike[equal]] = True
            more = (~done).nonzero()[0]
            left, mine = left[more], mine[more]
            # One further, then two, then three: this reaches every slot, and leaves crowded areas quickly.
            step += 1
            at = (at[more] + step) & int(mask)
        self._taken += int((found < 0).sum())
        return found, places

    def rename(self, places: np.ndarray, rows: np.ndarray) -> None:
        """Replaces the numbers of the rows that were added at `places`."""
        self._slots[places] = (self._slots[places] & _TAG) | (rows.astype(np.uint64) + np.uint64(1))
