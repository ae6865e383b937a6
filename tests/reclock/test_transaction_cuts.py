"""Cuts of several topics, over what a connector leaves behind that is killed again and again: each is
behind a whole number of upstream transactions, in order, and in the end all of them are there.

The model is the upstream itself: which changes a cut must have follows from its transactions alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reclock.upstream import (
    MARIADB,
    POSTGRES,
    Change,
    Place,
    Transaction,
    Upstream,
    Written,
    announcements,
    seen_changes,
)
from tidemill.reclock.transactions.announced import Finished
from tidemill.reclock.transactions.changes import PartitionChanges, changes_of, runs_of
from tidemill.reclock.transactions.cuts import TopicChanges, TransactionCuts
from tidemill.reclock.transactions.log import TransactionLog

KEYS = 4
MOST = 1 << 40


@dataclass
class Reader:
    """What `ingest.transactions` does with the topics, and a check of every cut."""

    upstream: Upstream
    tables: dict[str, int]
    cuts: TransactionCuts = field(init=False)
    finished: Finished = field(default_factory=Finished)
    offsets: dict[str, dict[int, int]] = field(init=False)
    ends: dict[Place, int] = field(default_factory=dict[Place, int])
    announced: int = 0
    told: int = 0
    scanned: dict[Place, int] = field(default_factory=dict[Place, int])
    # Transactions that are shown.
    shown: int = 0
    # The largest numbers of what was kept behind a cut.
    kept: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def __post_init__(self) -> None:
        self.offsets = {table: dict.fromkeys(range(count), 0) for table, count in self.tables.items()}
        self.start()

    def start(self) -> None:
        """Of the last run only what is durable is known."""
        self.cuts = TransactionCuts(TransactionLog("tx", self.finished))
        for table, partitions in self.offsets.items():
            seen = {n: PartitionChanges(offset) for n, offset in partitions.items()}
            self.cuts.topics[table] = TopicChanges(table, table, seen, joined=True)

    def announce(self, count: int) -> None:
        log = self.cuts.log
        first = log.read
        records = self.upstream.announced[first : first + count]
        log.feed(announcements(records, first), first + len(records))

    def look(self) -> None:
        """Where the topics end. What was announced before that has come."""
        self.ends = {place: len(records) for place, records in self.upstream.topics.items()}
        self.announced = self.cuts.log.latest_end

    def scan(self, place: Place, count: int) -> None:
        table, number = place
        partition = self.cuts.topics[table].partitions[number]
        first, end = partition.scanned, self.ends[place]
        records = self.upstream.topics[place][first : min(first + count, end)]
        if records:
            seen = seen_changes(records, first)
            runs = runs_of(changes_of(seen, self.cuts.log.origins))
            partition.extend(runs, first + len(records))
        if partition.scanned >= end:
            partition.seen_all(self.announced + 1)

    def read(self, place: Place | None) -> int:
        """How many records of a partition are known, also of those of a run before."""
        if place is None:
            self.told = max(self.told, self.cuts.log.read)
            return self.told
        table, number = place
        known = self.cuts.topics[table].partitions[number].scanned
        self.scanned[place] = max(self.scanned.get(place, 0), known)
        return self.scanned[place]

    def read_all(self) -> None:
        self.look()
        self.announce(len(self.upstream.announced))
        for place, records in self.upstream.topics.items():
            self.scan(place, len(records))

    def decide(self, most: int = MOST) -> bool:
        cut = self.cuts.decide(most)
        if cut is None:
            return False
        self.finished = self.cuts.log.finished_with(cut.count)
        self.cuts.commit(cut)
        self.offsets = {table: dict(of) for table, of in cut.offsets.items()}
        self.check()
        log = self.cuts.log
        waiting = sum(len(p.runs) for t in self.cuts.topics.values() for p in t.partitions.values())
        self.kept.append((len(log.announced), waiting, len(self.finished.interrupted)))
        return True

    def check(self) -> None:
        """The tables hold what they hold behind one and the same transaction."""
        there: set[tuple[int, Change]] = set()
        last: dict[tuple[str, int], int] = {}
        for (table, number), records in self.upstream.topics.items():
            for written in records[: self.offsets[table][number]]:
                if written.change is not None:
                    there.add((written.at, written.change))
                    last[table, written.change.key] = written.at
        reached = max((at for at, _ in there), default=-1) + 1
        wanted: set[tuple[int, Change]] = set()
        rows: dict[tuple[str, int], int] = {}
        for at, transaction in enumerate(self.upstream.transactions[:reached]):
            for change in transaction.changes:
                wanted.add((at, change))
                rows[change.table, change.key] = at
        assert there == wanted
        # As upserts by key: no row is that of a repetition.
        assert last == rows
        assert reached >= self.shown
        self.shown = reached


def random_upstream(chance: random.Random, kind: str) -> tuple[Upstream, dict[str, int]]:
    tables = {name: chance.choice([1, 1, 2]) for name in ("a", "b", "c")[: chance.randint(1, 3)]}
    transactions: list[Transaction] = []
    for n in range(chance.randint(1, 25)):
        ended = not n or kind == POSTGRES or chance.random() > 0.1
        size = chance.choice([0, 1, 1, 2, 3, 8]) if ended else 1
        changes: dict[tuple[str, int], Change] = {}
        for _ in range(size):
            table, key = chance.choice(list(tables)), chance.randrange(KEYS)
            changes[table, key] = Change(table, key % tables[table], key)
        transactions.append(Transaction(tuple(changes.values()), ended))
    # What has no END is shown with the next one.
    transactions.append(Transaction((Change("a", 0, 0),)))
    topics: dict[Place, list[Written]] = {
        (table, n): [] for table, count in tables.items() for n in range(count)
    }
    return Upstream(kind, transactions, topics), tables


def play(seed: int, kind: str) -> None:
    chance = random.Random(seed)
    upstream, tables = random_upstream(chance, kind)
    reader = Reader(upstream, tables)
    kills = chance.choice([0, 1, 3, 6])
    while True:
        more = upstream.write(chance.choice([1, 2, 5, 20]))
        if chance.random() < 0.3:
            upstream.flush(chance)
        if kills and (not more or chance.random() < 0.15):
            kills -= 1
            if chance.random() < 0.2:
                upstream.stop()
            else:
                upstream.kill(chance, reader.read)
            more = True
        # Before a kill what was written may have been read, or not.
        for _ in range(chance.randint(0, 3)):
            reader.look()
            told = len(upstream.announced)
            if chance.random() < 0.5:
                upstream.write(chance.choice([1, 2, 5]))
            reader.announce(max(told - reader.cuts.log.read, 0) + chance.choice([0, 0, 1, 3]))
            for place in upstream.topics:
                reader.scan(place, chance.choice([0, 1, 3, 100]))
            reader.decide(chance.choice([1, 5, MOST]))
            if chance.random() < 0.1:
                for place in (None, *upstream.topics):
                    reader.read(place)
                reader.start()
        if not more:
            break
    for _ in range(2):
        reader.read_all()
        while reader.decide():
            pass
    assert reader.shown == len(upstream.transactions), (seed, reader.cuts.waiting)


@pytest.mark.parametrize("kind", [POSTGRES, MARIADB])
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
# A cut between the repetitions of two transactions that were shown.
@example(seed=4075941)
def test_any_kills_and_any_reading(kind: str, seed: int) -> None:
    play(seed, kind)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [POSTGRES, MARIADB])
@settings(max_examples=20_000)
@given(seed=st.integers(0, 2**32))
def test_thousands_of_kills(kind: str, seed: int) -> None:
    play(seed, kind)


def test_a_table_without_records_moves_nothing() -> None:
    """Its topic has no partition with records yet."""
    cuts = TransactionCuts(TransactionLog("tx", Finished()))
    cuts.topics["t"] = TopicChanges("t", "t", {}, joined=True)
    assert cuts.decide(10) is None
