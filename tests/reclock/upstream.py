"""A database, a connector of Debezium that is killed at random, and the topics that they leave behind.

What the connector does was seen in captures and in runs with kill -9 (the design note
20261119-transaction-topic.md).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tidemill.reclock.transactions.announced import Announcements
from tidemill.sources.kafka.transactions import UNKNOWN_COMMIT, SeenChanges

POSTGRES, MARIADB = "postgres", "mariadb"
COUNTS = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))
# How long a connector needs to be back.
RESTART_MS = 5000
FIRST_TXID = 700
FIRST_LSN = 1000

# A table and one of its partitions.
Place = tuple[str, int]


@dataclass(frozen=True)
class Change:
    """The row of a key in a table is from then on that of the transaction, or is gone."""

    table: str
    partition: int
    key: int


@dataclass(frozen=True)
class Transaction:
    changes: tuple[Change, ...]
    # Statements like MariaDB's TRUNCATE have no END.
    ended: bool = True


@dataclass(frozen=True)
class Written:
    """A record of a table's topic: the change, and the place of its transaction among all; none for what
    belongs to no transaction."""

    change: Change | None
    at: int
    id: str | None
    order: int
    last_commit: int | None
    run: int
    time: int


@dataclass(frozen=True)
class Told:
    """A record of the transaction topic."""

    end: bool
    id: str
    counts: dict[str, int] | None
    time: int


@dataclass
class Upstream:
    """`transactions` in the order of their commits. `topics` and `announced` is what can be read."""

    kind: str
    transactions: Sequence[Transaction]
    topics: dict[Place, list[Written]]
    announced: list[Told] = field(default_factory=list[Told])
    now: int = 1_000_000
    run: int = 1_000_000
    # Where the next record is from: a transaction, and how many of its changes were written before.
    _steps: Iterator[tuple[Place | None, Written | Told, tuple[int, int]]] | None = None
    # What was written since the last flush, with the position behind each.
    _unflushed: list[tuple[Place | None, tuple[int, int]]] = field(
        default_factory=list[tuple[Place | None, tuple[int, int]]]
    )
    _flushed: tuple[int, int] = (0, 0)
    _made: int = 0

    def write(self, count: int) -> bool:
        """So many records more; False when there are none."""
        if self._steps is None:
            self._steps = self._records()
        for _ in range(count):
            step = next(self._steps, None)
            if step is None:
                return False
            place, record, behind = step
            if isinstance(record, Told):
                self.announced.append(record)
            else:
                assert place is not None
                self.topics[place].append(record)
            self._unflushed.append((place, behind))
        return True

    def flush(self, chance: random.Random) -> None:
        """The connector notes how far it is: all records up to one have arrived."""
        if self._unflushed:
            count = chance.randint(1, len(self._unflushed))
            self._flushed = self._unflushed[count - 1][1]
            del self._unflushed[:count]

    def kill(self, chance: random.Random, read: Callable[[Place | None], int]) -> None:
        """Of what was not noted, any partition may lack the last records, but for those that were read. It
        comes again."""
        left = Counter(place for place, _ in self._unflushed)
        for place, count in left.items():
            records: list[Written] | list[Told] = self.announced if place is None else self.topics[place]
            most = min(count, len(records) - read(place))
            lost = chance.choice([0, 0, chance.randint(0, most)])
            if not any(self._uncounted(record) for record in records[len(records) - lost :]):
                del records[len(records) - lost :]
        self.restart()

    def _uncounted(self, record: Written | Told) -> bool:
        """Whether no END tells that a record is missing."""
        return isinstance(record, Written) and not self.transactions[record.at].ended

    def restart(self) -> None:
        """An orderly stop ends behind what was noted as well."""
        self._unflushed = []
        self.now += RESTART_MS
        self.run = self.now
        self._steps = self._records()

    def go_on_from(self, noted: tuple[int, int]) -> None:
        """Another run begins at this position: a transaction, and its changes before it."""
        self._flushed = noted
        self.restart()

    def stop(self) -> None:
        """All that was written is noted."""
        if self._unflushed:
            self._flushed = self._unflushed[-1][1]
        self.restart()

    # -- what a run writes

    def _records(self) -> Iterator[tuple[Place | None, Written | Told, tuple[int, int]]]:
        first, skipped = self._flushed
        if self.kind == MARIADB and first and not skipped and self.transactions[first - 1].ended:
            # Seen in captures: of the last one that was finished.
            yield None, self._told(False, first - 1, 0, None), (first, 0)
            yield None, self._told(True, first - 1, 0, {}), (first, 0)
        for at in range(first, len(self.transactions)):
            yield from self._transaction(at, skipped)
            skipped = 0

    def _transaction(
        self, at: int, skipped: int
    ) -> Iterator[tuple[Place | None, Written | Told, tuple[int, int]]]:
        whole = self.transactions[at]
        resumed = self.kind == POSTGRES and skipped > 0
        if not resumed:
            yield None, self._told(False, at, skipped, None), (at, skipped)
        orders: Counter[str] = Counter()
        for n, change in enumerate(whole.changes):
            if n >= skipped or self.kind == POSTGRES:
                orders[change.table] += 1
            if n < skipped:
                continue
            self._pass()
            written = Written(
                change, at, self._id(at, n), orders[change.table], self._last_commit(at), self.run, self.now
            )
            yield (change.table, change.partition), written, (at, n + 1)
        if whole.ended:
            yield None, self._told(True, at, len(whole.changes), dict(orders)), (at + 1, 0)

    def _pass(self) -> None:
        """Several records are of one millisecond."""
        self._made += 1
        self.now += self._made % 3 == 0

    def _told(self, end: bool, at: int, n: int, counts: dict[str, int] | None) -> Told:
        self._pass()
        return Told(end, self._id(at, n), counts, self.now)

    def _id(self, at: int, n: int) -> str:
        return f"{FIRST_TXID + at}:{_begin(self, at) + n}" if self.kind == POSTGRES else f"0-7-{at + 1}"

    def _last_commit(self, at: int) -> int | None:
        if self.kind != POSTGRES or not at:
            return None
        return _begin(self, at - 1) + len(self.transactions[at - 1].changes)


def _begin(upstream: Upstream, at: int) -> int:
    return FIRST_LSN + sum(len(each.changes) + 2 for each in upstream.transactions[:at])


# -- as they are read


def announcements(records: Sequence[Told], first: int) -> Announcements:
    counts = [
        None
        if r.counts is None
        else [{"data_collection": table, "event_count": n} for table, n in r.counts.items()]
        for r in records
    ]
    return Announcements(
        np.arange(first, first + len(records)),
        np.array([r.end for r in records], np.bool_),
        pa.array([r.id for r in records], pa.string()),
        np.array([r.time for r in records], np.int64),
        pa.array(counts, COUNTS),
    )


def seen_changes(records: Sequence[Written], first: int) -> SeenChanges:
    return SeenChanges(
        np.arange(first, first + len(records)),
        np.array([r.time for r in records], np.int64),
        pa.array([r.id for r in records], pa.string()),
        np.array([r.order for r in records], np.int64),
        np.array([UNKNOWN_COMMIT if r.last_commit is None else r.last_commit for r in records], np.int64),
        np.array([r.run for r in records], np.int64),
    )
