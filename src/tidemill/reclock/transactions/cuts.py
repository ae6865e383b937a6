"""Cuts of several topics behind a whole number of upstream transactions.

A cut is an offset for every partition of every topic. Within a partition, records are in the order of the
upstream's commits, apart from repetitions. So the records before a cut are those of all transactions up to
some number, and of no later one, if the cut stands before the first record of a later one, and all changes
of the earlier ones were seen before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidemill.reclock.transactions.changes import FREE, NO_RUN, ChangeRuns, PartitionChanges
from tidemill.reclock.transactions.log import CONFLICT_HINT, TransactionConflict, TransactionLog

# The topics: by the id of their source, then by partition.
TopicOffsets = Mapping[str, Mapping[int, int]]

# What two brokers or two workers may differ in their clocks. After that, what could explain a contradiction
# has been announced.
SETTLED_MS = 10_000


@dataclass(slots=True)
class TopicChanges:
    """What was seen of one table. `collection`: its name in the transaction topic. `joined`: everything that
    the topic had was seen at some time; before, its changes do not count, and other tables do not wait."""

    name: str
    collection: str
    partitions: dict[int, PartitionChanges]
    joined: bool = False


@dataclass(frozen=True, slots=True)
class TransactionCut:
    """Behind the next `count` transactions. `last`: there could not be more of them now."""

    count: int
    offsets: TopicOffsets
    records: int
    last: bool


@dataclass(frozen=True, slots=True)
class WaitingTransaction:
    """The first transaction that is not complete. `since`: when it began to be written; milliseconds."""

    id: str
    since: int
    reason: str

    def describe(self) -> str:
        return f'transaction "{self.id}" {self.reason}'


@dataclass(slots=True)
class TransactionCuts:
    log: TransactionLog
    # By the id of the source.
    topics: dict[str, TopicChanges] = field(default_factory=dict[str, TopicChanges])
    # Transactions that are shown as far as they are: their ids by their keys.
    given_up: Mapping[int, str] = field(default_factory=dict[int, str])
    waiting: WaitingTransaction | None = None
    # Its place in the log.
    _waiting_at: int = 0

    def decide(self, most: int) -> TransactionCut | None:
        """The next cut, of about `most` records, and at least of one transaction; None if nothing can move.
        Raises TransactionConflict."""
        self.waiting = None
        announced = self.log.announced
        count = len(announced)
        # A cut behind the first n transactions may be made.
        allowed = np.concatenate(([True], announced.whole))
        complete = np.ones(count, np.bool_)
        places: dict[str, dict[int, np.ndarray]] = {}
        for topic in self.topics.values():
            found = {number: self._places(p.runs) for number, p in topic.partitions.items()}
            places[topic.name] = found
            if topic.joined:
                for number, partition in topic.partitions.items():
                    allowed &= self._in_order(topic, partition, found[number])
                self._count(topic, found, complete)
        if not complete.all():
            allowed[int(np.argmin(complete)) + 1 :] = False
        self._note_blocked(places)
        choices = np.flatnonzero(allowed)
        offsets = {n: self._ends(n, places) for n in choices[-1:].tolist()}
        best = int(choices[-1])
        records = self._records(offsets[best])
        if records > most and len(choices) > 1:
            best = self._within(most, choices, places)
            offsets[best] = self._ends(best, places)
            records = self._records(offsets[best])
        if not best and not records:
            return None
        return TransactionCut(best, offsets[best], records, best == int(choices[-1]))

    def commit(self, cut: TransactionCut) -> None:
        """The cut was made."""
        self.log.finish(cut.count)
        self.move(cut.offsets)

    def move(self, offsets: TopicOffsets) -> None:
        for name, partitions in offsets.items():
            topic = self.topics.get(name)
            if topic is not None:
                for number, offset in partitions.items():
                    topic.partitions.setdefault(number, PartitionChanges(offset)).cut(offset)

    # -- where changes belong

    def _places(self, runs: ChangeRuns) -> np.ndarray:
        """For each entry the place of its transaction in the log; -1 if it may be shown at once; the number
        of announced transactions if its own is not announced."""
        announced = self.log.announced
        unknown = len(announced)
        if not len(runs):
            return np.zeros(0, np.int64)
        places = np.full(len(runs), unknown, np.int64)
        if unknown:
            order = np.argsort(announced.keys, kind="stable")
            keys = announced.keys[order]
            at = np.minimum(np.searchsorted(keys, runs.keys), unknown - 1)
            places = np.where(keys[at] == runs.keys, order[at], places)
        # What announces these would have been read.
        settled = (places == unknown) & (runs.times <= self.log.latest)
        past = settled & self.log.is_past(runs.numbers, runs.origins)
        if self.log.open is not None:
            settled &= runs.keys != self.log.open.key
        places = self._with_next(runs, places, settled & ~past)
        free = (runs.keys == FREE) | past
        if self.given_up:
            free |= (places == unknown) & np.isin(runs.keys, list(self.given_up))
        return np.where(free, -1, places)

    def _with_next(self, runs: ChangeRuns, places: np.ndarray, unended: np.ndarray) -> np.ndarray:
        """Statements like MariaDB's TRUNCATE have no END: their changes are shown with the next transaction.
        PostgreSQL has none of these, and its numbers do not tell."""
        announced, places = self.log.announced, places.copy()
        for code in np.unique(runs.origins[unended & (runs.origins != 0)]).tolist():
            mine = np.flatnonzero(unended & (runs.origins == code))
            at = np.flatnonzero(announced.origins == code)
            reached = np.maximum.accumulate(announced.numbers[at])
            after = np.searchsorted(reached, runs.numbers[mine] + 1, side="right")
            places[mine] = np.append(at, len(announced))[after]
        return places

    def _in_order(self, topic: TopicChanges, partition: PartitionChanges, places: np.ndarray) -> np.ndarray:
        """The cuts that leave no change of an earlier transaction behind one of a later."""
        count = len(self.log.announced)
        allowed = np.ones(count + 1, np.bool_)
        if not len(places):
            return allowed
        furthest = np.maximum.accumulate(places)
        late = np.flatnonzero((places >= 0) & (places < furthest))
        if not len(late):
            return allowed
        steps = np.zeros(count + 2, np.int64)
        # Not behind the late transaction, unless behind all those before it in the partition.
        np.add.at(steps, places[late] + 1, 1)
        np.add.at(steps, furthest[late] + 1, -1)
        self._check_order(topic, partition.runs, places, furthest, late)
        return np.cumsum(steps)[: count + 1] == 0

    def _check_order(
        self,
        topic: TopicChanges,
        runs: ChangeRuns,
        places: np.ndarray,
        furthest: np.ndarray,
        late: np.ndarray,
    ) -> None:
        known = late[(furthest[late] < len(self.log.announced)) & (runs.runs[late] != NO_RUN)]
        for at in known.tolist():
            other = int(np.flatnonzero(places[:at] == furthest[at])[0])
            settled = int(runs.times[at]) + SETTLED_MS < self.log.latest
            if runs.runs[other] == runs.runs[at] and settled:
                first, second = int(places[at]), int(places[other])
                raise TransactionConflict(
                    "changes contradict the order of the transaction topic",
                    detail=f'Topic "{self.log.topic}" has transaction "{self.log.describe(first)}" before '
                    f'"{self.log.describe(second)}"; topic "{topic.name}" has a change of it, before offset '
                    f"{int(runs.ends[at])}, behind those of the other.",
                    hint=CONFLICT_HINT,
                )

    # -- which transactions are complete

    def _count(self, topic: TopicChanges, places: Mapping[int, np.ndarray], complete: np.ndarray) -> None:
        """Clear the marks of transactions that have changes in this topic that were not seen."""
        log, count = self.log, len(self.log.announced)
        mine = log.counts.collections == log.collection(topic.collection)
        wanted = np.zeros(count, np.int64)
        np.add.at(wanted, log.counts.transactions[mine], log.counts.counts[mine])
        seen = np.zeros(count, np.int64)
        first_run = np.full(count, np.iinfo(np.int64).max)
        last_run = np.full(count, NO_RUN, np.int64)
        for number, found in places.items():
            runs = topic.partitions[number].runs
            within = np.flatnonzero((found >= 0) & (found < count))
            at = found[within]
            # Of an interrupted transaction, the changes of the run that ended it.
            counted = ~log.announced.resumed[at] | (runs.times[within] >= log.announced.begun[at])
            within, at = within[counted], at[counted]
            np.add.at(seen, at, runs.counts[within])
            np.minimum.at(first_run, at, runs.runs[within])
            np.maximum.at(last_run, at, runs.runs[within])
        different = seen != wanted
        if self.given_up:
            different &= ~np.isin(log.announced.keys, list(self.given_up))
        if not different.any():
            return
        for at in np.flatnonzero(different & (seen > wanted)).tolist():
            one_run = first_run[at] == last_run[at] != NO_RUN
            if one_run and int(log.announced.begun[at]) + SETTLED_MS < log.latest:
                raise TransactionConflict(
                    "a transaction has more changes than it announced",
                    detail=f'Topic "{log.topic}" says that transaction "{log.describe(at)}" has '
                    f'{int(wanted[at])} changes of "{topic.collection}"; topic "{topic.name}" has '
                    f"{int(seen[at])}.",
                    hint=CONFLICT_HINT,
                )
        first = int(np.argmax(different))
        complete &= ~different
        if self.waiting is None or first < self._waiting_at:
            self._waiting_at = first
            self.waiting = WaitingTransaction(
                log.describe(first),
                int(log.announced.begun[first]),
                f"has {int(wanted[first])} changes of {topic.collection}; {int(seen[first])} of them are in "
                f'topic "{topic.name}"',
            )

    def _note_blocked(self, places: Mapping[str, Mapping[int, np.ndarray]]) -> None:
        """Changes whose transaction is not announced, or not ended, if nothing else is waited for."""
        if self.waiting is not None:
            return
        log, unknown = self.log, len(self.log.announced)
        for name, partitions in places.items():
            for number, found in partitions.items():
                at = np.flatnonzero(found == unknown)
                if len(at):
                    runs = self.topics[name].partitions[number].runs
                    key = int(runs.keys[at[0]])
                    begun = log.open is not None and log.open.key == key
                    said = "has begun and has no END" if begun else "is not announced"
                    self.waiting = WaitingTransaction(
                        log.origins.describe(key),
                        int(runs.times[at[0]]),
                        f'{said} in topic "{log.topic}"; topic "{name}" has changes of it',
                    )
                    return

    # -- offsets

    def _ends(self, count: int, places: Mapping[str, Mapping[int, np.ndarray]]) -> dict[str, dict[int, int]]:
        """The offsets behind the first `count` transactions. Of a table that has not joined: behind those
        that are finished."""
        ends: dict[str, dict[int, int]] = {}
        for name, partitions in places.items():
            topic = self.topics[name]
            limit = count if topic.joined else 0
            ends[name] = {
                number: topic.partitions[number].behind(_passed(found, limit))
                for number, found in partitions.items()
            }
        return ends

    def _records(self, offsets: TopicOffsets) -> int:
        return sum(
            offset - self.topics[name].partitions[number].lower
            for name, partitions in offsets.items()
            for number, offset in partitions.items()
        )

    def _within(self, most: int, choices: np.ndarray, places: Mapping[str, Mapping[int, np.ndarray]]) -> int:
        """The last choice within the limit, or the first that is more than none."""
        low, high = 0, len(choices) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._records(self._ends(int(choices[middle]), places)) <= most:
                low = middle
            else:
                high = middle - 1
        if int(choices[low]) == 0 and self._records(self._ends(0, places)) == 0:
            low += 1
        return int(choices[low])


def _passed(places: np.ndarray, limit: int) -> int:
    """The number of leading entries that are before the first one of a later transaction."""
    later = places >= limit
    return int(np.argmax(later)) if later.any() else len(places)
