"""The transactions that Debezium announced and that are not behind a cut, in the order of its topic.

Debezium writes one transaction after another: BEGIN, then END with the number of changes. After a restart of
its connector it repeats transactions from some earlier one on. What the earlier run announced of these and is
not finished here is void: the repetition counts. A BEGIN without END is of an interrupted run (the repetition
follows), or of a statement without changes; nothing waits for it.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.reclock.transactions.announced import (
    Announced,
    Announcements,
    Begun,
    Counts,
    Finished,
    no_announced,
    no_counts,
)
from tidemill.reclock.transactions.ids import Origins, TransactionIds
from tidemill.sources.contract import UpstreamError
from tidemill.types.kernels import pc

# Announced transactions that are not finished. More are read when these are.
MAX_OPEN = 1_000_000
# Records that are looked at together: a few behind one that is not regular, and more while they are.
LEAST_STRIDE, MOST_STRIDE = 64, 1 << 17


class TransactionConflict(UpstreamError):
    """The announcements contradict each other, or the changes."""

    sqlstate = "22000"
    permanent = True


class TransactionLog:
    """`topic` names the topic in errors."""

    def __init__(self, topic: str, finished: Finished | None = None) -> None:
        self.topic = topic
        self.origins = Origins()
        self.finished = finished or Finished()
        # The announced transactions that are not behind a cut, and what was added to them, which is joined
        # with them when they are asked for.
        self._announced, self._counted = no_announced(), no_counts()
        self._added: tuple[tuple[Announced, Counts], ...] = ()
        # The BEGIN whose END was not read yet.
        self.open: Begun | None = None
        # The offset behind the last record that was read, and the greatest timestamp of all of them, and of
        # every END.
        self.read = self.finished.resume
        self.latest = self.latest_end = 0
        self._collections: dict[str, int] = {}
        # By origin: the last number since the connector's last restart; and the greatest of those that are
        # finished or announced.
        self._course: dict[int, int] = {}
        self._reached = self._highest()
        self._interrupted = {self.origins.key_of(k): v for k, v in self.finished.interrupted.items()}
        # Whether a BEGIN without END was read since the last END.
        self._unsure = False
        # The first transaction that the connector announces again, as it was announced before.
        self._void: tuple[Announced, Counts] | None = None

    # -- for the cuts

    @property
    def announced(self) -> Announced:
        """The transactions that are not behind a cut."""
        self._join()
        return self._announced

    @property
    def counts(self) -> Counts:
        """Of `announced`."""
        self._join()
        return self._counted

    def _join(self) -> None:
        if self._added:
            sizes = [len(self._announced), *(len(announced) for announced, _ in self._added)]
            befores = np.cumsum(sizes)[:-1].tolist()
            counts = [counted for _, counted in self._added]
            self._announced = self._announced.plus([announced for announced, _ in self._added])
            self._counted = self._counted.plus([*zip(counts, befores, strict=True)])
            self._added = ()

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
        reached: dict[int, int] = {}
        for code in np.unique(done.origins).tolist():
            origin, mine = self.origins.name(code), done.origins == code
            fresh |= mine & (done.numbers > highest.get(origin, -1))
            reached[code] = highest[origin] = max(highest.get(origin, -1), int(done.numbers[mine].max()))
        last, interrupted = before.last, self._interrupted
        if fresh.any():
            newest = int(np.flatnonzero(fresh)[-1])
            last = self.origins.name(int(done.origins[newest])), int(done.numbers[newest])
            come = set(done.keys.tolist())
            interrupted = {
                key: before
                for key, before in interrupted.items()
                if key not in come and reached.get(self.origins.origin_of(key), -1) <= before
            }
        noted = {self.origins.describe(key): number for key, number in interrupted.items()}
        return Finished(int(done.behind[-1]), last, highest, noted)

    def _drop(self, first: int, last: int) -> None:
        """Keep only these of the announced transactions."""
        self._counted, self._announced = self.counts.between(first, last), self.announced.between(first, last)

    # -- reading

    def feed(self, found: Announcements, read: int) -> None:
        """The next records of the topic; everything before `read` was read. Raises TransactionConflict and
        UnknownId; then nothing of it is taken in."""
        if len(found):
            ids = self.origins.read(found.ids)
            kept = {name: getattr(self, name) for name in _FED}
            self._course, self._reached = dict(self._course), dict(self._reached)
            self._interrupted = dict(self._interrupted)
            try:
                self._feed(found, ids)
            except TidemillError:
                for name, value in kept.items():
                    setattr(self, name, value)
                raise
            if found.ends.any():
                self.latest_end = max(self.latest_end, int(found.times[found.ends].max()))
            self.latest = max(self.latest, int(found.times.max()))
        self.skip(read)

    def skip(self, read: int) -> None:
        """There are no more records before `read`."""
        self.read = max(self.read, read)

    def _feed(self, found: Announcements, ids: TransactionIds) -> None:
        row, stride = 0, LEAST_STRIDE
        while row < len(found):
            pairs = self._regular(found, ids, row, stride)
            stride = min(8 * stride, MOST_STRIDE) if 2 * pairs == stride else LEAST_STRIDE
            if pairs:
                self._feed_pairs(found, ids, row, pairs)
                row += 2 * pairs
                continue
            begun = Begun(int(ids.keys[row]), found.ids[row].as_py(), int(found.times[row]))
            if found.ends[row]:
                self._end(begun, int(ids.numbers[row]), int(ids.origins[row]), found, row)
            else:
                self._begin(begun, int(ids.numbers[row]), int(ids.origins[row]))
            row += 1

    def _regular(self, found: Announcements, ids: TransactionIds, row: int, stride: int) -> int:
        """How many transactions follow from this row on as they usually do: BEGIN and END in turns, with
        growing numbers of one origin."""
        last = row + (min(len(found) - row, stride) // 2) * 2
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
        columns = (keys, numbers, ids.origins[ends], found.times[begins], found.times[ends])
        no = np.zeros(pairs, np.bool_)
        flags = (resumed, no, no, np.ones(pairs, np.bool_))
        lists = found.counts.take(pa.array(np.arange(row + 1, row + 2 * pairs, 2)))
        self._append(Announced(*columns, found.offsets[ends] + 1, *flags), self._counts(lists))
        code = int(ids.origins[row + 1])
        self._course[code] = self._reached[code] = int(numbers[-1])

    def _begin(self, begun: Begun, number: int, code: int) -> None:
        self._leave_open()
        queued = self.announced
        # In BEGIN, PostgreSQL has the number of the first change, which can be before the last transaction.
        again = (
            queued.keys == begun.key if code == 0 else (queued.origins == code) & (queued.numbers >= number)
        )
        same = np.flatnonzero(again)
        if len(same):
            self._repeated(int(same[0]))
        self.open = begun

    def _leave_open(self) -> None:
        """What is open will have no END."""
        if self.open is not None:
            self._note(self.open.key)
            self.open, self._unsure = None, True

    def _end(self, end: Begun, number: int, code: int, found: Announcements, row: int) -> None:
        begun, offset = self.open, int(found.offsets[row])
        partial = begun is None or begun.key != end.key
        if begun is None or partial:
            begun = self._begun_before(end, number, code, offset)
            self._leave_open()
        unsure, self.open, self._unsure = self._unsure, None, False
        counted = self._counts(found.counts.slice(row, 1))
        if code in self._course and number <= self._course[code]:
            self._restarted(end, number, code)
        if self._void is not None:
            self._compare(*self._void, counted, end)
            self._void = None
        new = number > self._reached.get(code, -1)
        last = self.finished.last
        whole = new or last is None or last == (self.origins.name(code), number)
        resumed = end.key in self._interrupted and not (partial and self.is_shown(number, code))
        self._course[code] = number
        self._reached[code] = max(number, self._reached.get(code, -1))
        row_of = (end.key, number, code, begun.time, end.time, offset + 1, resumed, partial, unsure, whole)
        self._append(Announced(*(np.array([value]) for value in row_of)), counted)

    def _begun_before(self, end: Begun, number: int, code: int, offset: int) -> Begun:
        """The BEGIN of an END that has none before it: of a connector that was restarted within a transaction
        whose END it had written."""
        queued = self.announced
        same = np.flatnonzero((queued.keys == end.key) & (queued.numbers == number))
        if len(same):
            return Begun(end.key, end.id, int(queued.begun[same[-1]]))
        # Retention may have removed the records before the first one.
        first = self.open is None and offset > 0 and not self._course and self.finished.last is None
        if not first and not self.is_shown(number, code):
            raise self._no_begin(end, offset)
        return end

    def seen_to(self) -> np.ndarray:
        """For each announced transaction: all records before this timestamp must have been seen, in addition
        to what the counts tell."""
        announced = self.announced
        resumed = np.where(announced.resumed, announced.begun, 0)
        return np.where(announced.partial | announced.unsure, announced.ended + 1, resumed)

    def is_shown(self, number: int, code: int) -> bool:
        """Whether the transaction of this number is behind a cut."""
        return number <= self.finished.highest.get(self.origins.name(code), -1)

    def shown(self) -> np.ndarray:
        """Which of the announced transactions are behind a cut, and repeated."""
        found = np.zeros(len(self.announced), np.bool_)
        for origin, number in self.finished.highest.items():
            mine = self.announced.origins == self.origins.code(origin)
            found |= mine & (self.announced.numbers <= number)
        return found

    def _restarted(self, end: Begun, number: int, code: int) -> None:
        """The connector repeats transactions from this one on, as its END tells."""
        queued = self.announced
        same = np.flatnonzero((queued.origins == code) & (queued.numbers == number))
        if len(same) and int(queued.keys[same[0]]) != end.key:
            before = self.describe(int(same[0]))
            raise self._conflict(f'transactions "{before}" and "{end.id}" both end at {number}')
        if not len(same) and number > max(self._highest().get(code, -1), self._past_number(code)):
            raise self._conflict(f'transaction "{end.id}" ends at {number}, behind {self._course[code]}')
        self._repeated(int(same[0]) if len(same) else 0)

    def _repeated(self, first: int) -> None:
        """What was announced from this one on is void: it is repeated."""
        queued = self.announced
        if first < len(queued):
            self._void = queued.between(first, first + 1), self.counts.between(first, first + 1)
        for key in queued.keys[first:].tolist():
            self._note(key)
        self._drop(0, first)
        self._course, self._reached = {}, self._highest()
        for at in np.unique(self.announced.origins).tolist():
            reached = int(self.announced.numbers[self.announced.origins == at].max())
            self._reached[at] = max(reached, self._reached.get(at, -1))

    def _highest(self) -> dict[int, int]:
        return {self.origins.code(origin): number for origin, number in self.finished.highest.items()}

    def _note(self, key: int) -> None:
        """A run was interrupted in this transaction, or repeats it."""
        if len(self._interrupted) >= MAX_OPEN:
            raise self._too_many()
        reached = self._reached.get(self.origins.origin_of(key), -1)
        self._interrupted[key] = max(reached, self._interrupted.get(key, -1))

    def _append(self, announced: Announced, counts: Counts) -> None:
        if len(self._announced) + sum(len(a) for a, _ in self._added) + len(announced) > MAX_OPEN:
            raise self._too_many()
        self._added = (*self._added, (announced, counts))

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

    def _compare(self, voided: Announced, before: Counts, counted: Counts, end: Begun) -> None:
        """A repetition has at most as many changes as the whole transaction."""
        if int(voided.keys[0]) != end.key or voided.resumed[0] or voided.partial[0]:
            return
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


# What `TransactionLog.feed` changes.
_FED = ("_announced", "_counted", "_added", "open", "_course", "_reached", "_interrupted", "_unsure", "_void")

CONFLICT_HINT = (
    "Exactly one connector may write the topic, and all of its records must be there, in order. If the "
    "upstream was replaced, drop the sources and create them again over new topics."
)
