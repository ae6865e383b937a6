"""What was seen of the changes in a partition of a table's topic, and is not behind a cut yet.

Only how many changes of which transaction stand where: neighbours of one transaction are one entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.reclock.transactions.ids import NO_KEY, Origins
from tidemill.sources.kafka.transactions import SeenChanges

# A record without a transaction of its own: of a snapshot, or a tombstone. It may be shown at any time.
FREE = NO_KEY
# Of changes whose connector says no run.
NO_RUN = 0


@dataclass(frozen=True, slots=True)
class ChangeRuns:
    """Neighbours in the order of a partition, by columns. `keys` of their transaction (`FREE`: none);
    `numbers`: the transaction is finished when its origin's last finished number is greater; `origins`;
    `runs`: the start of the connector's run that wrote them; `firsts`: the number of the first change among
    those of the table in the transaction, which the others follow; `counts` of changes; `ends`: the offset
    behind the last one; `times`: the timestamp of the first record."""

    keys: np.ndarray
    numbers: np.ndarray
    origins: np.ndarray
    runs: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    ends: np.ndarray
    times: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def _columns(self) -> tuple[np.ndarray, ...]:
        numbers = (self.keys, self.numbers, self.origins, self.runs, self.firsts)
        return (*numbers, self.counts, self.ends, self.times)

    def since(self, first: int) -> ChangeRuns:
        return ChangeRuns(*(column[first:] for column in self._columns()))

    def plus(self, other: ChangeRuns) -> ChangeRuns:
        pairs = zip(self._columns(), other._columns(), strict=True)
        return ChangeRuns(*(np.concatenate(pair) for pair in pairs))


def no_runs() -> ChangeRuns:
    return ChangeRuns(*(np.zeros(0, np.int64) for _ in range(8)))


@dataclass(frozen=True, slots=True)
class TransactionChanges:
    """Consecutive records of a partition, by columns, as `ChangeRuns`; one entry for each record. `orders` is
    the number of the change among those of the table in its transaction."""

    keys: np.ndarray
    numbers: np.ndarray
    origins: np.ndarray
    runs: np.ndarray
    orders: np.ndarray
    offsets: np.ndarray
    times: np.ndarray


def changes_of(seen: SeenChanges, origins: Origins) -> TransactionChanges:
    """Raises UnknownId."""
    ids = origins.read(seen.ids)
    # In PostgreSQL the transaction before ended at this number.
    numbers = np.where(ids.origins == 0, seen.last_commits, ids.numbers - 1)
    return TransactionChanges(
        ids.keys, numbers, ids.origins, seen.runs, seen.orders, seen.offsets, seen.times
    )


def runs_of(changes: TransactionChanges) -> ChangeRuns:
    """Neighbours of one transaction and one run, each the next of the one before, together. A free record
    behind another passes with it."""
    if not len(changes.keys):
        return no_runs()
    kept = changes.keys != FREE
    kept[0] = True
    at = np.flatnonzero(kept)
    keys, orders, runs = changes.keys[at], changes.orders[at], changes.runs[at]
    breaks = (keys[1:] != keys[:-1]) | (runs[1:] != runs[:-1]) | (orders[1:] != orders[:-1] + 1)
    first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    begins = at[first]
    lasts = np.concatenate((begins[1:], [len(changes.keys)])) - 1
    sizes = np.diff(np.concatenate((first, [len(at)])))
    return ChangeRuns(
        keys[first],
        changes.numbers[begins],
        changes.origins[begins],
        runs[first],
        orders[first],
        np.where(keys[first] == FREE, 0, sizes),
        changes.offsets[lasts] + 1,
        changes.times[begins],
    )


class PartitionChanges:
    """One partition. `lower`: everything before is behind the last cut. `scanned`: everything before was
    seen. `seen_to`: so were all records with an earlier timestamp. `told_to`: everything that the partition
    had was seen a while after the announcements before this timestamp were read. `joined_at`: what is before
    it was seen when the table joined, and is not repeated."""

    def __init__(self, lower: int) -> None:
        self.lower = lower
        self.scanned = lower
        self.seen_to = self.told_to = 0
        self.joined_at = 0
        self.runs = no_runs()

    def extend(self, runs: ChangeRuns, scanned: int) -> None:
        """Records from `scanned` on, up to the new one."""
        if len(runs):
            self.runs = self.runs.plus(runs)
            self.seen_to = max(self.seen_to, int(runs.times.max()))
        self.scanned = max(self.scanned, scanned)

    def seen_all(self, told_to: int) -> None:
        """Everything that there is was seen, a while after the announcements before a timestamp were."""
        self.told_to = max(self.told_to, told_to)
        self.seen_to = max(self.seen_to, told_to)

    def behind(self, count: int) -> int:
        """The offset behind the first `count` entries."""
        if count == len(self.runs):
            return self.scanned
        return max(self.lower, int(self.runs.ends[count - 1])) if count else self.lower

    def cut(self, offset: int) -> None:
        """Everything before is behind a cut."""
        if offset <= self.lower:
            return
        first = int(np.searchsorted(self.runs.ends, offset, side="right"))
        self.runs = self.runs.since(first)
        self.lower, self.scanned = offset, max(self.scanned, offset)
