"""All tables of one transaction topic: one decision at a time, and its time, for all of them.

Called by the machines of the tables (`ingest.machine`), by whichever is due first; the others of the same
boundary find the decision there. Promises: at every time the tables are behind a whole number of upstream
transactions, in the order of the topic; a later decision has a later time; no decision is below `promised`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tidemill.catalog.connections import hangs_on
from tidemill.catalog.items import Connection, ItemId, Secret, Source
from tidemill.catalog.source_ops import GIVEN_UP
from tidemill.catalog.state import CatalogState
from tidemill.errors import Internal
from tidemill.ingest.transactions.announcement_topic import AnnouncementTopic
from tidemill.ingest.transactions.cuts_shard import CutFacts, CutsShard, DecidedBinding, TableCut
from tidemill.ingest.transactions.table_topic import TableTopic
from tidemill.persist.environment import Environment
from tidemill.reclock.boundaries import boundary
from tidemill.reclock.transactions.cuts import (
    VISIBLE_MS,
    TransactionCut,
    TransactionCuts,
    WaitingTransaction,
)
from tidemill.reclock.transactions.log import TransactionLog
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.sql.names import quote_ident
from tidemill.time.shown import show_time

# Records of all tables that are seen before the next decision, at most; before the first one fewer, and then
# twice as many each time: meanwhile there is nothing that tasks could read.
SCAN_RECORDS = 500_000
FIRST_RECORDS = 100_000
# Decisions that a table may be behind, before there are new ones. One that binds nothing for so many seconds
# is not waited for, up to another number of decisions.
MAX_AHEAD = 2
STUCK_SECONDS = 30.0
MAX_BEHIND = 100_000
# A transaction that waits longer is shown.
SHOWN_SECONDS = 10.0
# Topics whose ends are asked for at once.
LOOK_THREADS = 8
# Topics that are read at once.
PASS_THREADS = 3
# How often history that no table needs is released.
COMPACT_MS = 60_000


@dataclass(slots=True)
class _Table:
    """`hung`: what its topic was opened with."""

    item: Source
    hung: tuple[Connection | Secret, ...]
    topic: TableTopic
    # Decisions that it has not bound.
    queue: deque[DecidedBinding] = field(default_factory=deque[DecidedBinding])
    # The upper of its bindings; None until it asks first.
    bound: int | None = None
    # When it was first looked at, in time of ticks; and when (monotonic) it last had nothing to bind, or less
    # than before.
    begun: int | None = None
    moved: float = field(default_factory=time.monotonic)

    def took(self, bound: int, frontier: Offsets) -> None:
        """It has bound everything before a time."""
        self.bound = bound
        before = len(self.queue)
        while self.queue and (self.queue[0].time < bound or self.queue[0].upper <= frontier):
            self.queue.popleft()
        if not self.queue or len(self.queue) < before:
            self.moved = time.monotonic()


@dataclass(slots=True)
class _Opened:
    """What is rebuilt after a start, from the cuts shard and the topics."""

    shard: CutsShard
    topic: KafkaSource
    hung: tuple[Connection | Secret, ...]
    announcements: AnnouncementTopic
    cuts: TransactionCuts
    tables: dict[ItemId, _Table] = field(default_factory=dict[ItemId, _Table])
    # Everything that there was at the last look is behind a cut, or waits for something.
    caught_up: bool = False
    # A decision waits for its time: a table that has just joined has not yet what is before it.
    undecided: bool = False
    # There is nothing new before this time.
    look_again: int = 0
    # Records of all tables that are seen before the next decision.
    share: int = FIRST_RECORDS
    waiting: tuple[WaitingTransaction, float] | None = None
    # When (monotonic) which timestamps of END had been read: the last before the topics were looked at for
    # long, and those after it.
    told: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def told_to(self) -> int:
        """The changes of everything that was announced before this timestamp are visible."""
        late = time.monotonic() - VISIBLE_MS / 1000
        while len(self.told) > 1 and self.told[1][0] <= late:
            self.told.popleft()
        return self.told[0][1] + 1 if self.told and self.told[0][0] <= late else 0

    def note_told(self) -> None:
        end = self.cuts.log.latest_end
        if not self.told or end > self.told[-1][1]:
            self.told.append((time.monotonic(), end))

    def close(self) -> None:
        self.announcements.close()
        self.topic.close()
        for table in self.tables.values():
            table.topic.close()


class TransactionGroup:
    """Thread-safe."""

    def __init__(
        self,
        source_id: ItemId,
        environment: Environment,
        state: Callable[[], CatalogState],
        open_topic: Callable[[CatalogState, Source], KafkaSource],
        learn: Callable[[ItemId, Mapping[str, Any]], None],
        since: Callable[[ItemId], int | None],
    ) -> None:
        """`source_id` is the source of the topic. `learn` durably stores what was learned of an upstream.
        `since`: from when on a source is readable; None if it is not."""
        self.id = source_id
        self._environment = environment
        self._catalog = state
        self._open_topic = open_topic
        self._learn = learn
        self._since = since
        self._lock = threading.Lock()
        self._looks = ThreadPoolExecutor(LOOK_THREADS, thread_name_prefix="transactions-look")
        self._passes = ThreadPoolExecutor(PASS_THREADS, thread_name_prefix="transactions-read")
        self._opened: _Opened | None = None
        # The catalog that `_opened` follows.
        self._state: CatalogState | None = None
        # No decision is below it.
        self._promised = 0

    def close(self) -> None:
        self._looks.shutdown(wait=False, cancel_futures=True)
        self._passes.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    # -- for the machines of tables

    def table(self, table_id: ItemId) -> TableBindings:
        return TableBindings(self, table_id)

    def next(
        self, table_id: ItemId, now: int, bound: int, frontier: Offsets, most: int
    ) -> DecidedBinding | None:
        """What the table, which has bound everything before a time, binds next; about `most` records of all
        tables. None if there is nothing yet. Raises what is wrong with the topic or the table."""
        with self._lock:
            opened = self._followed()
            table = self._table(opened, table_id)
            table.took(bound, frontier)
            if not table.queue:
                self._advance(opened, now, most)
            if table.queue:
                return table.queue[0]
            if table.topic.error is not None:
                raise table.topic.error
            return None

    def promised(self, table_id: ItemId) -> int:
        """No later binding of the table is below it."""
        with self._lock:
            table = None if self._opened is None else self._opened.tables.get(table_id)
            if table is None:
                return 0
            return table.queue[0].time if table.queue else self._promised

    def more(self, table_id: ItemId) -> bool:
        """Whether another binding follows at once. The one that was given last is still in the queue."""
        with self._lock:
            opened = self._opened
            table = None if opened is None else opened.tables.get(table_id)
            return opened is not None and table is not None and (not opened.caught_up or len(table.queue) > 1)

    def upstream(self, table_id: ItemId) -> Offsets | None:
        """Where its topic ended at the last look."""
        with self._lock:
            table = None if self._opened is None else self._opened.tables.get(table_id)
            return None if table is None else table.topic.frontier

    def hydrated_from(self, table_id: ItemId) -> int | None:
        """A table that has bound everything may be read from this time on; None if not yet."""
        with self._lock:
            opened = self._opened
            table = None if opened is None else opened.tables.get(table_id)
            if opened is None or table is None or table.queue or not opened.caught_up:
                return None
            if opened.undecided or not table.topic.changes.joined:
                return None
            since = self._since(self.id)
            return None if since is None or since >= self._promised else since

    @property
    def waiting(self) -> WaitingTransaction | None:
        """The first transaction that is not complete. Does not block, and may be of the last look."""
        opened = self._opened
        return None if opened is None or opened.waiting is None else opened.waiting[0]

    def waits(self) -> str | None:
        """What the tables wait for, if for long. Does not block."""
        opened = self._opened
        known = None if opened is None else opened.waiting
        if known is None or time.monotonic() - known[1] < SHOWN_SECONDS:
            return None
        item = self._catalog().items.get(self.id)
        name = quote_ident(item.name) if isinstance(item, Source) else self.id
        return (
            f"since {show_time(known[0].since)} for {known[0].describe()}; if nothing more of it comes, "
            f"ALTER SOURCE {name} SET (GIVE UP TRANSACTION '{known[0].id}') shows what came of it"
        )

    def _table(self, opened: _Opened, table_id: ItemId) -> _Table:
        table = opened.tables.get(table_id)
        if table is None:
            raise Internal(f"source {table_id} is not of the transaction topic {self.id}")
        return table

    # -- following the catalog

    def _followed(self) -> _Opened:
        state = self._catalog()
        source = state.get(self.id, Source)
        if self._opened is None:
            self._opened = self._open(state, source)
            self._state = None
        if self._state is not state:
            self._follow(self._opened, state, source)
            self._state = state
        return self._opened

    def _open(self, state: CatalogState, source: Source) -> _Opened:
        if source.cuts_shard is None:
            raise Internal(f"source {source.name} has no shard for cuts")
        topic = self._open_topic(state, source)
        shard = CutsShard(self._environment, source.cuts_shard, topic.start[0])
        log = TransactionLog(topic.topic, shard.latest.finished)
        self._promised = max(self._promised, shard.upper)
        announcements = AnnouncementTopic(topic.access())
        return _Opened(shard, topic, hangs_on(state, source), announcements, TransactionCuts(log))

    def _follow(self, opened: _Opened, state: CatalogState, source: Source) -> None:
        if hangs_on(state, source) != opened.hung:
            opened.topic.close()
            opened.topic, opened.hung = self._open_topic(state, source), hangs_on(state, source)
            opened.announcements.close()
            opened.announcements = AnnouncementTopic(opened.topic.access())
        items = {item.id: item for item in state.sources() if self.id in item.depends_on}
        for gone in opened.tables.keys() - items.keys():
            opened.tables.pop(gone).topic.close()
            opened.cuts.topics.pop(gone)
        for table_id, item in items.items():
            table, hung = opened.tables.get(table_id), hangs_on(state, item)
            if table is None:
                opened.tables[table_id] = self._new_table(opened, state, item)
            else:
                table.item = item
                if table.hung != hung:
                    table.topic.reopen(self._open_topic(state, item))
                    table.hung = hung
        given_up = json.loads(source.definition).get(GIVEN_UP, ())
        opened.cuts.given_up = {opened.cuts.log.origins.key_of(name): name for name in given_up}

    def _new_table(self, opened: _Opened, state: CatalogState, item: Source) -> _Table:
        said = json.loads(item.definition)["outputs"][0]["envelope"]["transactions"]
        cut = opened.shard.latest.tables.get(item.id)
        topic = TableTopic(
            self._open_topic(state, item),
            said["collection"],
            None if cut is None else cut.offsets,
            joined=cut is not None and cut.joined,
        )
        opened.cuts.topics[item.id] = topic.changes
        queue = opened.shard.decisions.pop(item.id, deque[DecidedBinding]())
        return _Table(item, hangs_on(state, item), topic, queue)

    # -- decisions

    def _advance(self, opened: _Opened, now: int, most: int) -> None:
        """Look at the topics, and decide. Raises what is wrong with the transaction topic, and a commit's
        outcomes."""
        if now < opened.look_again:
            return
        to_end = self._read(opened, now, most)
        if self._held(opened):
            return
        self._join(opened, now)
        cut = opened.cuts.decide(most)
        self._note_waiting(opened)
        caught_up = to_end and (cut is None or cut.last)
        interval = min(table.item.interval_ms for table in opened.tables.values())
        at = boundary(now, interval)
        floors = [table.item.created + 1 for table in opened.tables.values()]
        floor = max(self._promised, opened.shard.upper, *floors)
        due = at if caught_up and at >= floor else floor
        facts = self._facts(opened, cut, due)
        opened.undecided = facts != opened.shard.latest
        if opened.undecided:
            if due > now:
                return
            self._decide(opened, cut, facts, due)
            opened.undecided = False
        opened.caught_up = caught_up
        if not caught_up:
            # While tasks read what was decided.
            opened.share = min(2 * opened.share, SCAN_RECORDS)
            self._begin_reading(opened, most)
            opened.announcements.begin(opened.cuts.log, self._passes)
        else:
            self._promise(at + interval)
            opened.look_again = at + interval

    def _decide(self, opened: _Opened, cut: TransactionCut | None, facts: CutFacts, at: int) -> None:
        before = {table_id: table.topic.offsets for table_id, table in opened.tables.items()}
        try:
            opened.shard.decide(facts, at)
        except BaseException:
            # What is in memory may be ahead of the shard: begin as after a start.
            opened.close()
            self._opened = None
            raise
        self._promise(at + 1)
        if cut is not None:
            opened.cuts.commit(cut)
        for table_id, table in opened.tables.items():
            offsets = facts.tables[table_id].offsets
            if offsets != before[table_id]:
                table.topic.offsets = offsets
                table.queue.append(DecidedBinding(at, offsets))
        bound = [table.bound for table in opened.tables.values()]
        least = min((time for time in bound if time is not None), default=0)
        if None not in bound:
            opened.shard.allow_compaction(least - 1, COMPACT_MS)

    def _facts(self, opened: _Opened, cut: TransactionCut | None, at: int) -> CutFacts:
        """What is known behind the cut."""
        before = opened.shard.latest
        tables: dict[ItemId, TableCut] = {}
        for table_id, table in opened.tables.items():
            ends = {} if cut is None else cut.offsets[table_id]
            offsets: dict[PartitionKey, int] = {**table.topic.offsets.as_dict(), **ends}
            tables[table_id] = TableCut(Offsets(offsets), table.topic.changes.joined)
        fresh = {name: at for name in opened.cuts.given_up.values() if name not in before.given_up}
        finished = opened.cuts.log.finished_with(0 if cut is None else cut.count)
        return CutFacts(finished, tables, {**before.given_up, **fresh})

    def _promise(self, until: int) -> None:
        """Never beyond the lease, where the next server begins."""
        self._promised = max(self._promised, min(until, self._environment.oracle.leased))

    def _held(self, opened: _Opened) -> bool:
        """Whether tables have enough to bind."""
        late = time.monotonic() - STUCK_SECONDS
        waits = (len(t.queue) for t in opened.tables.values() if t.moved > late)
        most = max((len(t.queue) for t in opened.tables.values()), default=0)
        return max(waits, default=0) >= MAX_AHEAD or most >= MAX_BEHIND

    def _join(self, opened: _Opened, now: int) -> None:
        for table in opened.tables.values():
            if table.topic.error is None and table.topic.frontier is not None:
                table.begun = now if table.begun is None else table.begun
                if table.topic.to_end and now - table.begun >= VISIBLE_MS:
                    table.topic.changes.join()

    def _note_waiting(self, opened: _Opened) -> None:
        waiting, known = opened.cuts.waiting, opened.waiting
        if waiting is None:
            opened.waiting = None
        elif known is None or known[0].id != waiting.id:
            opened.waiting = waiting, time.monotonic()
        else:
            opened.waiting = waiting, known[1]

    # -- reading

    def _begin_reading(self, opened: _Opened, most: int) -> None:
        """Begin to read the tables further, up to where they ended at the last look."""
        share = max(min(2 * most, opened.share) // len(opened.tables), 1)
        for table in opened.tables.values():
            table.topic.begin(share, opened.cuts.log.origins, self._passes)

    def _read(self, opened: _Opened, now: int, most: int) -> bool:
        """Whether everything that there is was seen. First it is looked where the tables end: of what is seen
        of them, the announcements are known then, also those of a connector that has begun to repeat."""
        tables = [*opened.tables.values()]
        told_to = opened.told_to()
        for _ in self._looks.map(lambda table: table.topic.look(now), tables):
            pass
        for table in tables:
            self._store_learned(table.item.id, table.topic.source)
        self._begin_reading(opened, most)
        ended = self._read_announcements(opened, now)
        opened.note_told()
        for table in tables:
            table.topic.take(told_to)
        done = (t.topic.to_end or t.topic.full or t.topic.error is not None for t in tables)
        return all(done) and ended

    def _read_announcements(self, opened: _Opened, now: int) -> bool:
        end = opened.topic.frontier(now)[0]
        self._store_learned(self.id, opened.topic)
        return opened.announcements.read(opened.cuts.log, end)

    def _store_learned(self, source_id: ItemId, topic: KafkaSource) -> None:
        if topic.learned is not None:
            self._learn(source_id, topic.learned)
            topic.learned = None


@dataclass(frozen=True, slots=True)
class TableBindings:
    """The bindings of one table, for its machine."""

    group: TransactionGroup
    table_id: ItemId

    def next(self, now: int, bound: int, frontier: Offsets, most: int) -> tuple[int, Offsets] | None:
        found = self.group.next(self.table_id, now, bound, frontier, most)
        return None if found is None else (found.time, found.upper)

    @property
    def promised(self) -> int:
        return self.group.promised(self.table_id)

    @property
    def more(self) -> bool:
        return self.group.more(self.table_id)

    @property
    def upstream(self) -> Offsets | None:
        return self.group.upstream(self.table_id)

    @property
    def hydrated_from(self) -> int | None:
        return self.group.hydrated_from(self.table_id)

    @property
    def waits(self) -> str | None:
        return self.group.waits()
