"""The transactions that Debezium announced and that are not behind a cut, in the order of its topic.

Debezium writes one transaction after another: BEGIN, then END with the number of changes. After a restart of
its connector it repeats transactions from some earlier one on. What the earlier run announced of these and is
not finished here is void: the repetition counts. A BEGIN without END is of an interrupted run (the repetition
follows), or of a statement without changes; nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.reclock.transactions.ids import Origins, TransactionIds
from tidemill.sources.contract import UpstreamError
from tidemill.types.kernels import pc

# Announced transactions that are not finished. More are read when these are.
MAX_OPEN = 1_000_000
# Records that are looked at together.
STRIDE = 8192


class TransactionConflict(UpstreamError):
    """The announcements contradict each other, or the changes."""

    sqlstate = "22000"
    permanent = True


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
    commits, by origin; `begun` is the timestamp of BEGIN, `behind` the offset behind END.
    `resumed`: a run of the connector was interrupted in it, and the counts are those of a later one. `whole`:
    the end of it is no place within a repetition."""

    keys: np.ndarray
    numbers: np.ndarray
    origins: np.ndarray
    begun: np.ndarray
    behind: np.ndarray
    resumed: np.ndarray
    whole: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def _columns(self) -> tuple[np.ndarray, ...]:
        return (self.keys, self.numbers, self.origins, self.begun, self.behind, self.resumed, self.whole)

    def between(self, first: int, last: int) -> Announced:
        return Announced(*(column[first:last] for column in self._columns()))

    def plus(self, other: Announced) -> Announced:
        pairs = zip(self._columns(), other._columns(), strict=True)
        return Announced(*(np.concatenate(pair) for pair in pairs))


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

    def plus(self, other: Counts, after: int) -> Counts:
        return Counts(
            np.concatenate((self.transactions, other.transactions + after)),
            np.concatenate((self.collections, other.collections)),
            np.concatenate((self.counts, other.counts)),
        )


def no_announced() -> Announced:
    none, no = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    return Announced(none, none, none, none, none, no, no)


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
    repetition. `highest`: the last number of each origin. `interrupted`: transactions that a run of the
    connector was interrupted in, by the offset at which that was known."""

    resume: int = 0
    last: tuple[str, int] | None = None
    highest: Mapping[str, int] = field(default_factory=dict[str, int])
    interrupted: Mapping[str, int] = field(default_factory=dict[str, int])


class TransactionLog:
    """`topic` names the topic in errors."""

    def __init__(self, topic: str, finished: Finished | None = None) -> None:
        self.topic = topic
        self.origins = Origins()
        self.finished = finished or Finished()
        # The announced transactions that are not behind a cut.
        self.announced = no_announced()
        self.counts = no_counts()
        # The BEGIN whose END was not read yet.
        self.open: Begun | None = None
        # The offset behind the last record that was read, and the greatest timestamp of all of them.
        self.read = self.finished.resume
        self.latest = 0
        self._collections: dict[str, int] = {}
        # By origin: the last number since the connector's last restart; and the greatest of those that are
        # finished or announced.
        self._course: dict[int, int] = {}
        self._reached = self._highest()
        self._interrupted = {self.origins.key_of(k): v for k, v in self.finished.interrupted.items()}

    # -- for the cuts

    def collection(self, name: str) -> int:
        """The code of a collection."""
        return self._collections.setdefault(name, len(self._collections))

    def is_past(self, numbers: np.ndarray, origins: np.ndarray) -> np.ndarray:
        """Which changes belong to transactions that are finished, or that are older than the topic."""
        past = np.zeros(len(numbers), np.bool_)
        for code in np.unique(origins).tolist():
            past |= (origins == code) & (numbers < self._past_number(code))
        return past

    def _past_number(self, code: int) -> int:
        known = self.finished.highest.get(self.origins.name(code))
        if known is not None:
            return known
        mine = self.announced.numbers[self.announced.origins == code]
        # All that this server committed before the first transaction in the topic.
        return int(mine[0]) - 1 if len(mine) and not self.finished.highest else -1

    def describe(self, at: int) -> str:
        """The id of an announced transaction."""
        return self.origins.describe(int(self.announced.keys[at]))

    def finish(self, count: int) -> None:
        """The first `count` announced transactions are behind a cut."""
        if not count:
            return
        self.finished = self.finished_with(count)
        self._interrupted = {self.origins.key_of(k): v for k, v in self.finished.interrupted.items()}
        self._drop(count, len(self.announced))

    def finished_with(self, count: int) -> Finished:
        """What is known when the first `count` announced transactions are behind a cut, too."""
        if not count:
            return self.finished
        done, before = self.announced.between(0, count), self.finished
        highest = dict(before.highest)
        fresh = np.zeros(count, np.bool_)
        for code in np.unique(done.origins).tolist():
            origin, mine = self.origins.name(code), done.origins == code
            fresh |= mine & (done.numbers > highest.get(origin, -1))
            highest[origin] = max(highest.get(origin, -1), int(done.numbers[mine].max()))
        last, interrupted = before.last, self._interrupted
        if fresh.any():
            newest = int(np.flatnonzero(fresh)[-1])
            last = self.origins.name(int(done.origins[newest])), int(done.numbers[newest])
            # What was interrupted before has come, or never will.
            over = int(done.behind[newest])
            interrupted = {k: at for k, at in interrupted.items() if at >= over}
        noted = {self.origins.describe(key): at for key, at in interrupted.items()}
        return Finished(int(done.behind[-1]), last, highest, noted)

    def _drop(self, first: int, last: int) -> None:
        """Keep only these of the announced transactions."""
        self.counts = self.counts.between(first, last)
        self.announced = self.announced.between(first, last)

    # -- reading

    def feed(self, found: Announcements, read: int) -> None:
        """The next records of the topic; everything before `read` was read. Raises TransactionConflict and
        UnknownId; then nothing of it is taken in."""
        if len(found):
            ids = self.origins.read(found.ids)
            kept = (self.announced, self.counts, self.open, self._course, self._reached, self._interrupted)
            self._course, self._reached = dict(self._course), dict(self._reached)
            self._interrupted = dict(self._interrupted)
            try:
                self._feed(found, ids)
            except TidemillError:
                self.announced, self.counts, self.open, self._course, self._reached, self._interrupted = kept
                raise
            self.latest = max(self.latest, int(found.times.max()))
        self.skip(read)

    def skip(self, read: int) -> None:
        """There are no more records before `read`."""
        self.read = max(self.read, read)

    def _feed(self, found: Announcements, ids: TransactionIds) -> None:
        row = 0
        while row < len(found):
            pairs = self._regular(found, ids, row)
            if pairs:
                self._feed_pairs(found, ids, row, pairs)
                row += 2 * pairs
                continue
            begun = Begun(int(ids.keys[row]), found.ids[row].as_py(), int(found.times[row]))
            if found.ends[row]:
                self._end(begun, int(ids.numbers[row]), int(ids.origins[row]), found, row)
            else:
                if self.open is not None:
                    self._note(self.open.key, int(found.offsets[row]))
                self.open = begun
            row += 1

    def _regular(self, found: Announcements, ids: TransactionIds, row: int) -> int:
        """How many transactions follow from this row on as they usually do: BEGIN and END in turns, with
        growing numbers of one origin."""
        last = row + (min(len(found) - row, STRIDE) // 2) * 2
        if self.open is not None or last == row:
            return 0
        begins, ends = slice(row, last, 2), slice(row + 1, last, 2)
        numbers, origins = ids.numbers[ends], ids.origins[ends]
        code = int(origins[0])
        course = max(self._course.get(code, -1), self._reached.get(code, -1))
        good = ~found.ends[begins] & found.ends[ends] & (ids.keys[begins] == ids.keys[ends])
        good &= (origins == code) & (np.diff(numbers, prepend=course) > 0)
        return len(good) if good.all() else int(np.argmin(good))

    def _feed_pairs(self, found: Announcements, ids: TransactionIds, row: int, pairs: int) -> None:
        begins, ends = slice(row, row + 2 * pairs, 2), slice(row + 1, row + 2 * pairs, 2)
        keys, numbers = ids.keys[ends], ids.numbers[ends]
        resumed = np.isin(keys, list(self._interrupted)) if self._interrupted else np.zeros(pairs, np.bool_)
        columns = (keys, numbers, ids.origins[ends], found.times[begins], found.offsets[ends] + 1, resumed)
        lists = found.counts.take(pa.array(np.arange(row + 1, row + 2 * pairs, 2)))
        self._append(Announced(*columns, np.ones(pairs, np.bool_)), self._counts(lists))
        code = int(ids.origins[row + 1])
        self._course[code] = self._reached[code] = int(numbers[-1])

    def _end(self, end: Begun, number: int, code: int, found: Announcements, row: int) -> None:
        begun, offset = self.open, int(found.offsets[row])
        if begun is None or begun.key != end.key:
            # Retention may have removed the records before the first one.
            if begun is not None or offset == 0 or self._course or self.finished.last is not None:
                raise self._no_begin(end, offset)
            begun = end
        self.open = None
        counted = self._counts(found.counts.slice(row, 1))
        if code in self._course and number <= self._course[code]:
            self._restarted(end, number, code, counted, offset)
        new = number > self._reached.get(code, -1)
        last = self.finished.last
        whole = new or last is None or last == (self.origins.name(code), number)
        resumed = end.key in self._interrupted
        self._course[code] = number
        self._reached[code] = max(number, self._reached.get(code, -1))
        row_of = (end.key, number, code, begun.time, offset + 1, resumed, whole)
        self._append(Announced(*(np.array([value]) for value in row_of)), counted)

    def _restarted(self, end: Begun, number: int, code: int, counted: Counts, offset: int) -> None:
        """The connector repeats transactions from this one on. What was announced of them before is void."""
        queued = self.announced
        same = np.flatnonzero((queued.origins == code) & (queued.numbers == number))
        first = int(same[0]) if len(same) else 0
        if len(same):
            if int(queued.keys[first]) != end.key:
                raise self._conflict(
                    f'transactions "{self.describe(first)}" and "{end.id}" both end at {number}'
                )
            self._compare(first, counted, end)
        elif number > max(self._highest().get(code, -1), self._past_number(code)):
            raise self._conflict(f'transaction "{end.id}" ends at {number}, behind {self._course[code]}')
        for key in queued.keys[first:].tolist():
            self._note(key, offset)
        self._drop(0, first)
        self._course, self._reached = {}, self._highest()
        for at in np.unique(self.announced.origins).tolist():
            reached = int(self.announced.numbers[self.announced.origins == at].max())
            self._reached[at] = max(reached, self._reached.get(at, -1))

    def _highest(self) -> dict[int, int]:
        return {self.origins.code(origin): number for origin, number in self.finished.highest.items()}

    def _note(self, key: int, offset: int) -> None:
        """A run was interrupted in this transaction."""
        if len(self._interrupted) >= MAX_OPEN:
            raise self._too_many()
        self._interrupted[key] = offset

    def _append(self, announced: Announced, counts: Counts) -> None:
        if len(self.announced) + len(announced) > MAX_OPEN:
            raise self._too_many()
        self.counts = self.counts.plus(counts, len(self.announced))
        self.announced = self.announced.plus(announced)

    def _counts(self, lists: pa.Array) -> Counts:
        sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
        flat = cast("pa.StructArray", lists.flatten())
        if not len(flat):
            return no_counts()
        names = flat.field(0).dictionary_encode()
        codes = np.array([self.collection(name) for name in names.dictionary.to_pylist()], np.int64)
        at = np.repeat(np.arange(len(lists)), sizes)
        return Counts(at, codes[np.asarray(names.indices)], np.asarray(flat.field(1)))

    # -- conflicts

    def _compare(self, at: int, counted: Counts, end: Begun) -> None:
        """A repetition has at most as many changes as the whole transaction."""
        if self.announced.resumed[at]:
            return
        before = self.counts.between(at, at + 1)
        said = dict(zip(before.collections.tolist(), before.counts.tolist(), strict=True))
        for code, count in zip(counted.collections.tolist(), counted.counts.tolist(), strict=True):
            if count > said.get(code, 0):
                name = next(name for name, of in self._collections.items() if of == code)
                raise self._conflict(
                    f'transaction "{end.id}" has {said.get(code, 0)} changes of "{name}", and {count} where '
                    "it is repeated"
                )

    def _conflict(self, what: str) -> TransactionConflict:
        return TransactionConflict(
            "the transaction topic contradicts itself",
            detail=f'In topic "{self.topic}", {what}.',
            hint=CONFLICT_HINT,
        )

    def _no_begin(self, end: Begun, offset: int) -> TransactionConflict:
        open_ = "no transaction is open" if self.open is None else f'transaction "{self.open.id}" is open'
        return TransactionConflict(
            "the transaction topic has an END without BEGIN",
            detail=f'In topic "{self.topic}", offset {offset} ends transaction "{end.id}", and {open_}.',
            hint=CONFLICT_HINT,
        )

    def _too_many(self) -> TidemillError:
        return TidemillError(
            f'topic "{self.topic}" has too many transactions that are not finished',
            detail=f"The limit is {MAX_OPEN}.",
            hint="The status of the source tells which transaction the others wait for.",
            sqlstate="54000",
        )


CONFLICT_HINT = (
    "Exactly one connector may write the topic, and all of its records must be there, in order. If the "
    "upstream was replaced, drop the sources and create them again over new topics."
)
