"""Announced transactions by columns, and what is durable of them.

Called by `log`, which makes them of the records of the transaction topic, and by whoever stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Announcements:
    """Consecutive records of the transaction topic, by columns. `counts`: for each record a list of
    (data_collection, event_count), null in BEGIN. `times`: milliseconds of the records."""

    offsets: np.ndarray
    ends: np.ndarray  # bool: END, otherwise BEGIN
    ids: pa.Array
    times: np.ndarray
    counts: pa.Array

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class Announced:
    """Transactions with an END, by columns, in the order of the topic. `numbers` grow in the order of
    commits, by origin; `begun` and `ended` are the timestamps of BEGIN and END, `behind` the offset behind
    END. `resumed`: a run of the connector was interrupted in it, and the counts are those of a later one.
    `partial`: the run that wrote END began within the transaction, so there is no BEGIN of it, and the counts
    include changes that it did not write. `unsure`: a transaction without END was before it. `whole`: the end
    of it is no place within a repetition."""

    keys: np.ndarray
    numbers: np.ndarray
    origins: np.ndarray
    begun: np.ndarray
    ended: np.ndarray
    behind: np.ndarray
    resumed: np.ndarray
    partial: np.ndarray
    unsure: np.ndarray
    whole: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def _columns(self) -> tuple[np.ndarray, ...]:
        numbers = (self.keys, self.numbers, self.origins, self.begun, self.ended, self.behind)
        return (*numbers, self.resumed, self.partial, self.unsure, self.whole)

    def between(self, first: int, last: int) -> Announced:
        return Announced(*(column[first:last] for column in self._columns()))

    def plus(self, others: Sequence[Announced]) -> Announced:
        columns = zip(self._columns(), *(other._columns() for other in others), strict=True)
        return Announced(*(np.concatenate(parts) for parts in columns))


@dataclass(frozen=True, slots=True)
class Counts:
    """How many changes of which collection: one entry for each collection of each transaction, in the order
    of `Announced`. `collections` has codes."""

    transactions: np.ndarray
    collections: np.ndarray
    counts: np.ndarray

    def between(self, first: int, last: int) -> Counts:
        a, b = np.searchsorted(self.transactions, (first, last))
        return Counts(self.transactions[a:b] - first, self.collections[a:b], self.counts[a:b])

    def plus(self, others: Sequence[tuple[Counts, int]]) -> Counts:
        """Each with the number of transactions before it."""
        return Counts(
            np.concatenate((self.transactions, *(other.transactions + after for other, after in others))),
            np.concatenate((self.collections, *(other.collections for other, _ in others))),
            np.concatenate((self.counts, *(other.counts for other, _ in others))),
        )


def no_announced() -> Announced:
    none, no = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    return Announced(*([none] * 6), *([no] * 4))


def no_counts() -> Counts:
    none = np.zeros(0, np.int64)
    return Counts(none, none, none)


@dataclass(frozen=True, slots=True)
class Begun:
    """A BEGIN without END."""

    key: int
    id: str
    time: int


@dataclass(frozen=True, slots=True)
class Finished:
    """What is behind the last cut: all that a restart needs to know of it. `resume`: the offset in the topic
    from which announcements are not finished. `last`: the last transaction (origin, number) that was not a
    repetition. `highest`: the last number of each origin.
    `interrupted`: transactions that a run of the connector was interrupted in, or that it repeats, with the
    number that the run before had come to: they are announced again before a greater one."""

    resume: int = 0
    last: tuple[str, int] | None = None
    highest: Mapping[str, int] = field(default_factory=dict[str, int])
    interrupted: Mapping[str, int] = field(default_factory=dict[str, int])
