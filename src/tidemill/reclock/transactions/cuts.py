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
# A change is visible so much later than the END of its transaction, at most.
VISIBLE_MS = 1000


@dataclass(slots=True)
class TopicChanges:
    """What was seen of one table. `collection`: its name in the transaction topic. `joined`: everything that
    the topic had was seen at some time; before, its changes do not count, and other tables do not wait."""

    name: str
    collection: str
    partitions: dict[int, PartitionChanges]
    joined: bool = False

    def join(self) -> None:
        if not self.joined:
            self.joined = True
            for partition in self.partitions.values():
                partition.joined_at = partition.scanned


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
        for source, topic in self.topics.items():
            found = {n: self._places(p, topic.joined) for n, p in topic.partitions.items()}
            places[source] = found
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
        for source, partitions in offsets.items():
            topic = self.topics.get(source)
            if topic is not None:
                for number, offset in partitions.items():
                    topic.partitions.setdefault(number, PartitionChanges(offset)).cut(offset)

    # -- where changes belong

    def _places(self, partition: PartitionChanges, joined: bool) -> np.ndarray:
        """For each entry the place of its transaction in the log; -1 if it may be shown at once; the number
        of announced transactions if its own is not announced."""
        announced, runs = self.log.announced, partition.runs
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
        if self.log.open is not None:
            settled &= runs.keys != self.log.open.key
        past = settled & self.log.is_past(runs.numbers, runs.origins)
        places = self._with_next(runs, places, settled & ~past)
        if joined:
            # What is repeated of transactions that are shown: the repetition may be interrupted, and is shown
            # with the one that follows.
            begun = np.append(np.where(self.log.shown(), announced.begun, 0), 0)
            again = runs.times < begun[places]
            again |= past & (runs.ends > partition.joined_at)
            places[again] = np.searchsorted(np.maximum.accumulate(announced.ended), runs.times[again])
            past &= ~again
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
        """The cuts that leave no change of an earlier transaction behind one of a later, and whose last
        change is no repetition of an earlier one."""
        announced, keys = self.log.announced, partition.runs.keys
        count = len(announced)
        allowed = np.ones(count + 1, np.bool_)
        if not len(places):
            return allowed
        # What is shown with a transaction that is not its own: all of it, and the counts do not tell.
        known = np.flatnonzero((places >= 0) & (places < count))
        others = places[known[keys[known] != announced.keys[places[known]]]]
        unseen = others[announced.ended[others] >= partition.seen_to]
        if len(unseen):
            allowed[int(unseen.min()) + 1 :] = False
        furthest = np.maximum.accumulate(places)
        late = np.flatnonzero((places >= 0) & (places < furthest))
        if not len(late):
            return allowed
        ends = np.searchsorted(furthest, np.arange(count + 1))
        placed = np.maximum.accumulate(np.where(places >= 0, np.arange(len(places)), -1))
        last = placed[np.maximum(ends - 1, 0)]
        allowed &= (ends == 0) | (last < 0) | (places[last] == furthest[last])
        steps = np.zeros(count + 2, np.int64)
        # Not behind the late transaction, unless behind all those before it in the partition.
        np.add.at(steps, places[late] + 1, 1)
        np.add.at(steps, furthest[late] + 1, -1)
        self._check_order(topic, partition.runs, places, furthest, late)
        return allowed & (np.cumsum(steps)[: count + 1] == 0)

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
        """Clear the mark of the first transaction that has changes in this topic that were not seen."""
        log, count = self.log, len(self.log.announced)
        mine = log.counts.collections == log.collection(topic.collection)
        wanted = np.zeros(count, np.int64)
        np.add.at(wanted, log.counts.transactions[mine], log.counts.counts[mine])
        seen = _seen_of(topic, places, log)
        counts = np.zeros(count, np.int64)
        first_run = np.full(count, np.iinfo(np.int64).max)
        last_run = np.full(count, NO_RUN, np.int64)
        np.add.at(counts, seen.places, seen.counts)
        np.minimum.at(first_run, seen.places, seen.runs)
        np.maximum.at(last_run, seen.places, seen.runs)
        # Of one run, as many as announced and none twice are all. Others are looked at one by one.
        doubtful = (counts != wanted) | ((first_run != last_run) & (counts > 0))
        doubtful[seen.twice()] = True
        partitions = topic.partitions.values()
        unseen = log.seen_to() > min((partition.seen_to for partition in partitions), default=0)
        # Of what is repeated, changes may be behind the cut already. If the run that ended it went on after
        # that, none is missing because it was killed.
        told_to = min((partition.told_to for partition in partitions), default=0)
        behind = log.announced.partial | (log.announced.ended + VISIBLE_MS < told_to)
        doubtful = (doubtful & ~(log.shown() & behind)) | unseen
        if self.given_up:
            doubtful &= ~np.isin(log.announced.keys, list(self.given_up))
        for at in np.flatnonzero(doubtful).tolist():
            mine, number = seen.of(at), int(wanted[at])
            partial = bool(log.announced.partial[at])
            covered = _distinct(mine, number) == number if partial else _covered(mine, number)
            if unseen[at] or not covered:
                complete[at] = False
                if not (partial or unseen[at]):
                    self._check_count(topic, at, mine, number)
                self._note_incomplete(topic, at, mine, number)
                return

    def _check_count(self, topic: TopicChanges, at: int, seen: _Seen, wanted: int) -> None:
        """Raises if one run has written more changes than announced, and nothing can explain it any more."""
        runs = np.unique(seen.runs)
        last = int((seen.firsts + seen.counts).max(initial=1)) - 1
        settled = int(self.log.announced.begun[at]) + SETTLED_MS < self.log.latest
        if len(runs) == 1 and runs[0] != NO_RUN and last > wanted and settled:
            raise TransactionConflict(
                "a transaction has more changes than it announced",
                detail=f'Topic "{self.log.topic}" says that transaction "{self.log.describe(at)}" has '
                f'{wanted} changes of "{topic.collection}"; topic "{topic.name}" has one with the number '
                f"{last}.",
                hint=CONFLICT_HINT,
            )

    def _note_incomplete(self, topic: TopicChanges, at: int, seen: _Seen, wanted: int) -> None:
        if self.waiting is None or at < self._waiting_at:
            self._waiting_at = at
            self.waiting = WaitingTransaction(
                self.log.describe(at),
                int(self.log.announced.begun[at]),
                f"has {wanted} changes of {topic.collection}; {_distinct(seen)} of them are in topic "
                f'"{topic.name}"',
            )

    def _note_blocked(self, places: Mapping[str, Mapping[int, np.ndarray]]) -> None:
        """Changes whose transaction is not announced, or not ended, if nothing else is waited for."""
        if self.waiting is not None:
            return
        log, unknown = self.log, len(self.log.announced)
        for source, partitions in places.items():
            topic = self.topics[source]
            for number, found in partitions.items():
                runs = topic.partitions[number].runs
                # What is repeated is shown with the next transaction.
                at = np.flatnonzero((found == unknown) & ~log.is_past(runs.numbers, runs.origins))
                if len(at):
                    key = int(runs.keys[at[0]])
                    begun = log.open is not None and log.open.key == key
                    said = "has begun and has no END" if begun else "is not announced"
                    self.waiting = WaitingTransaction(
                        log.origins.describe(key),
                        int(runs.times[at[0]]),
                        f'{said} in topic "{log.topic}"; topic "{topic.name}" has changes of it',
                    )
                    return

    # -- offsets

    def _ends(self, count: int, places: Mapping[str, Mapping[int, np.ndarray]]) -> dict[str, dict[int, int]]:
        """The offsets behind the first `count` transactions. Of a table that has not joined: behind those
        that are finished."""
        ends: dict[str, dict[int, int]] = {}
        for source, partitions in places.items():
            topic = self.topics[source]
            limit = count if topic.joined else 0
            ends[source] = {
                number: topic.partitions[number].behind(_passed(found, limit))
                for number, found in partitions.items()
            }
        return ends

    def _records(self, offsets: TopicOffsets) -> int:
        return sum(
            offset - self.topics[source].partitions[number].lower
            for source, partitions in offsets.items()
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


@dataclass(frozen=True, slots=True)
class _Seen:
    """Entries of changes of announced transactions, by columns; `places` in the log ascend."""

    places: np.ndarray
    runs: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray

    def twice(self) -> np.ndarray:
        """The places of which a number is there more than once."""
        if not (self.places[1:] == self.places[:-1]).any():
            return self.places[:0]
        order = np.lexsort((self.firsts, self.places))
        places, firsts = self.places[order], self.firsts[order]
        over = firsts[1:] < (firsts + self.counts[order])[:-1]
        return places[1:][over & (places[1:] == places[:-1])]

    def of(self, at: int) -> _Seen:
        a, b = np.searchsorted(self.places, (at, at + 1))
        return _Seen(self.places[a:b], self.runs[a:b], self.firsts[a:b], self.counts[a:b])


def _seen_of(topic: TopicChanges, places: Mapping[int, np.ndarray], log: TransactionLog) -> _Seen:
    found: list[_Seen] = []
    for number, of in places.items():
        runs = topic.partitions[number].runs
        within = np.flatnonzero((of >= 0) & (of < len(log.announced)))
        at = of[within]
        # Where a BEGIN was repeated, END counts the changes behind the last one.
        counted = ~log.announced.resumed[at] | (runs.times[within] >= log.announced.begun[at])
        # Those with the next transaction are none of its own.
        counted &= runs.keys[within] == log.announced.keys[at]
        within, at = within[counted], at[counted]
        found.append(_Seen(at, runs.runs[within], runs.firsts[within], runs.counts[within]))
    if not found:  # the topic has no records yet
        nothing = np.zeros(0, np.int64)
        return _Seen(nothing, nothing, nothing, nothing)
    columns = [np.concatenate([getattr(each, name) for each in found]) for name in _Seen.__slots__]
    order = np.argsort(columns[0], kind="stable")
    return _Seen(*(column[order] for column in columns))


def _covered(seen: _Seen, wanted: int) -> bool:
    """Whether these are all changes of a transaction in a table. A connector that was interrupted repeats
    changes from some on, under their numbers; END has the number of the last one that the last run wrote. So
    every number must be there, and the last run must have come to the end. (After an interrupted COPY the
    last run's numbers can be too low: then an earlier run has greater ones than END says.)"""
    if not wanted:
        return not len(seen.runs)
    if not len(seen.runs):
        return False
    last = seen.runs == seen.runs.max()
    ends = seen.firsts + seen.counts
    if int(ends[last].max()) != wanted + 1:
        return False
    own = _length(seen.firsts[last], ends[last])
    return own == wanted + 1 - int(seen.firsts[last].min()) and _distinct(seen, wanted) == wanted


def _distinct(seen: _Seen, most: int = np.iinfo(np.int64).max - 1) -> int:
    """How many different numbers there are, up to a greatest one."""
    return _length(np.minimum(seen.firsts, most + 1), np.minimum(seen.firsts + seen.counts, most + 1))


def _length(firsts: np.ndarray, ends: np.ndarray) -> int:
    """Of the union of intervals."""
    if not len(firsts):
        return 0
    order = np.argsort(firsts, kind="stable")
    firsts, reached = firsts[order], np.maximum.accumulate(ends[order])
    before = np.concatenate((firsts[:1], np.maximum(reached[:-1], firsts[1:])))
    return int(np.maximum(reached - before, 0).sum())


def _passed(places: np.ndarray, limit: int) -> int:
    """The number of leading entries that are before the first one of a later transaction."""
    later = places >= limit
    return int(np.argmax(later)) if later.any() else len(places)
