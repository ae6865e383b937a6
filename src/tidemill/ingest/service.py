"""All sources of a server, from the catalog to their ticks.

The engine opens it beside the catalog, whose changes it follows. A source that is created is opened and
ticks; a source that is dropped stops. A source that cannot be opened (its definition is of a newer version, a
shard is damaged) is stalled and retried. It stops no other source.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemill.catalog.connections import Secrets, hangs_on, opened, resolved, transaction_source
from tidemill.catalog.items import Connection, ItemId, Secret, Source, SourceProgress, SourceTable
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.sidecars import INBOXES, OWING, clock_id, inbox_id, positions_id, stash_id, tally_id
from tidemill.catalog.source_ops import LearnSource
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog, OwedSource
from tidemill.errors import Internal, TidemillError, UndefinedObject
from tidemill.ingest.changes import ChangeState
from tidemill.ingest.machine import SourceMachine, TableFeed, TickTiming
from tidemill.ingest.recovery.stream import StreamState
from tidemill.ingest.runner import Runner
from tidemill.ingest.slot import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS, SourceSlot
from tidemill.ingest.status import Report, RunState, RunStatus, wall_ms
from tidemill.ingest.ticker import Ticker
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import UpstreamSource as Upstream
from tidemill.sources.definition import open_source
from tidemill.sources.offsets import Offsets

if TYPE_CHECKING:
    from tidemill.ingest.transactions.group import TableBindings, TransactionGroup
    from tidemill.sources.kafka.source import KafkaSource

log = logging.getLogger(__name__)

# Sources that are opened concurrently; each reads the logs of its shards.
OPEN_THREADS = 8
# What a dropped source has upstream is removed again and again, at last this often.
LAST_CLEAN_SECONDS = 300.0
# since advances in steps of the retention divided by this number, at least this many milliseconds.
SINCE_STEPS = 10
SINCE_STEP_MS = 1000


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The catalog's definition of a source: the source, its tables, and the connections and secrets that it
    depends on. `state` is the catalog with this definition."""

    item: Source
    tables: tuple[SourceTable, ...]
    hung: tuple[Connection | Secret, ...]
    state: CatalogState = field(compare=False, repr=False)

    @staticmethod
    def of(state: CatalogState, item: Source) -> _Wanted:
        return _Wanted(item, tuple(state.source_tables(item.id)), hangs_on(state, item), state)

    def opens_as(self, other: _Wanted) -> bool:
        """Whether an upstream that was opened for the other definition can be used for this one."""
        outputs = [[table.definition for table in wanted.tables] for wanted in (self, other)]
        return self.hung == other.hung and outputs[0] == outputs[1]


@dataclass(slots=True)
class _Source:
    """A source of the catalog and its state in this server; `slot` is set once it is open."""

    wanted: _Wanted
    report: Report
    slot: SourceSlot | None = None
    # The definition that the slot's machine last received, and whether a thread is about to pass it another.
    told: _Wanted | None = None
    following: bool = False
    # The delay before the next attempt after a failure; seconds.
    wait: float = FIRST_RETRY_SECONDS
    # Set if it was dropped while it was being opened.
    gone: bool = False

    @property
    def item(self) -> Source:
        return self.wanted.item


class Ingestion:
    """Thread-safe."""

    def __init__(
        self,
        environment: Environment,
        catalog: Catalog,
        runner: Runner,
        *,
        secrets: Secrets | None = None,
        files_root: str = "",
        on_lost: Callable[[TidemillError], None] | None = None,
        on_moved: Callable[[Collection[str]], None] | None = None,
    ) -> None:
        """`on_moved` receives the shards of a source that has new updates or whose time has advanced;
        `files_root` is the folder below which sources may read files."""
        self._environment = environment
        self._secrets = SecretStore(None) if secrets is None else secrets
        self._catalog = catalog
        self.files_root = files_root
        self._lock = threading.Lock()
        self._sources: dict[ItemId, _Source] = {}
        # By the source of the transaction topic.
        self._groups: dict[ItemId, TransactionGroup] = {}
        self._stopping = threading.Event()
        self._opening = ThreadPoolExecutor(OPEN_THREADS, thread_name_prefix="source-open")
        self._on_moved = on_moved
        self.ticker = Ticker(environment.oracle, runner, on_lost=on_lost, on_moved=self._moved)
        owed = catalog.owed
        catalog.on_change(self._changed)
        self._changed(None, catalog.state)
        self.ticker.start()
        for left in owed:
            self._clean(left, FIRST_RETRY_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        self._opening.shutdown(wait=False, cancel_futures=True)
        self.ticker.stop()
        for source in self._all():
            if source.slot is not None:
                source.slot.machine.source.close()
        with self._lock:
            groups = [*self._groups.values()]
        for group in groups:
            group.close()

    # -- following the catalog

    def _changed(self, old: CatalogState | None, new: CatalogState) -> None:
        """Called under the catalog's lock, so nothing here waits."""
        wanted = {item.id: item for item in new.sources()}
        with self._lock:
            gone = [self._sources.pop(i) for i in self._sources.keys() - wanted.keys()]
            groups = [self._groups.pop(i) for i in self._groups.keys() - wanted.keys()]
            for source_id, item in wanted.items():
                now = _Wanted.of(new, item)
                known = self._sources.get(source_id)
                if known is None:
                    known = self._sources[source_id] = _Source(
                        now, Report(RunStatus(RunState.CREATED, wall_ms()))
                    )
                known.wanted = now
                if known.told != now and not known.following:
                    known.following = True
                    self._submit(known)
        # The ticker's lock is never acquired under ours: the ticker calls us while it holds its lock.
        for source in gone:
            source.gone = True
            self._remove(source)
        for group in groups:
            self._opening.submit(group.close)

    def _submit(self, source: _Source) -> None:
        try:
            self._opening.submit(self._follow, source)
        except RuntimeError:
            pass  # stopped meanwhile

    def _follow(self, source: _Source) -> None:
        """Pass the catalog's definition to the source until it has the latest one. One thread at a time does
        this, and waits only for the store: a busy source, or one that cannot be opened, must not prevent
        others from being opened."""
        with self._lock:
            wanted = source.wanted
            if source.gone or self._stopping.is_set() or source.told == wanted:
                source.following = False
                return
        if source.slot is None:
            self._attempt(source, wanted, lambda: self._open(source, wanted))
        else:
            slot = source.slot
            self.ticker.when_free(slot, lambda: self._follow_free(source, slot))

    def _follow_free(self, source: _Source, slot: SourceSlot) -> None:
        """The caller holds the machine. What its last step has learned is in the catalog by now, and an
        upstream that is opened again must know it: so this takes the latest definition."""
        with self._lock:
            wanted = source.wanted
        self._attempt(source, wanted, lambda: self._alter(slot, source.told, wanted))

    def _attempt(self, source: _Source, wanted: _Wanted, step: Callable[[], None]) -> None:
        """Run the step, and determine the next one. A failed step is retried."""
        try:
            step()
        except TidemillError as e:
            log.warning("source %s cannot be opened, it is tried again: %s", wanted.item.name, e)
            source.report.become(RunState.STALLED, e)
        except Exception as e:
            log.exception("source %s cannot be opened for an unforeseen reason", wanted.item.name)
            source.report.become(RunState.STALLED, TidemillError(f"{type(e).__name__}: {e}"))
        else:
            source.told, source.wait = wanted, FIRST_RETRY_SECONDS
            self._submit(source)
            return
        timer = threading.Timer(source.wait, self._submit, [source])
        timer.daemon = True
        source.wait = min(2 * source.wait, LAST_RETRY_SECONDS)
        timer.start()

    def _open(self, source: _Source, wanted: _Wanted) -> None:
        item = wanted.item
        if source.report.status.state is RunState.CREATED:
            source.report.become(RunState.STARTING)
        source.slot = SourceSlot(item.id, item.name, self._machine(wanted), source.report)
        self.ticker.add(source.slot)
        if source.gone:
            self._remove(source)

    def _remove(self, source: _Source) -> None:
        item = source.item
        slot = self.ticker.remove(item.id)
        left = OwedSource(item.id, item.name, item.definition)
        if slot is not None:
            self.ticker.when_free(slot, lambda: self._dropped(slot.machine.source, left, FIRST_RETRY_SECONDS))
        elif item.type in OWING:
            # It was never opened. (Or it is being opened: then it comes here again.)
            self._clean(left, FIRST_RETRY_SECONDS)

    def _clean(self, left: OwedSource, wait: float) -> None:
        """Remove what a dropped source has upstream, in the background."""

        def clean() -> None:
            if self._stopping.is_set():
                return
            definition = json.loads(left.definition)
            try:
                upstream = open_source(
                    resolved(self._catalog.state, definition, self._secrets), self.files_root
                )
            except (TidemillError, KeyError, TypeError, ValueError) as e:
                log.warning(
                    "source %s was dropped with its connection (%s): drop its replication slot %s there",
                    left.name,
                    getattr(e, "primary", e),
                    definition.get("slot"),
                )
                self._catalog.settle(left.id)
            else:
                self._dropped(upstream, left, wait)

        with contextlib.suppress(RuntimeError):  # stopped meanwhile
            self._opening.submit(clean)

    def _dropped(self, upstream: Upstream, left: OwedSource, wait: float) -> None:
        try:
            upstream.dropped()
        except TidemillError as e:
            log.warning("source %s was dropped: %s. %s %s", left.name, e.primary, e.detail, e.hint)
            timer = threading.Timer(wait, self._clean, [left, min(2 * wait, LAST_CLEAN_SECONDS)])
            timer.daemon = True
            timer.start()
        else:
            # (The next server finds that nothing is left.)
            if not self._stopping.is_set():
                self._catalog.settle(left.id)

    def _upstream(self, wanted: _Wanted) -> Upstream:
        item = wanted.item
        upstream = open_source(opened(wanted.state, item, self._secrets), self.files_root)
        if item.type in INBOXES:
            inbox = self._environment.open_ingested(inbox_id(item.remap_shard))
            upstream.attach(inbox, self._environment)
        return upstream

    def _machine(self, wanted: _Wanted) -> SourceMachine:
        item, upstream = wanted.item, self._upstream(wanted)
        try:
            # The bindings first: fencing them shows which exist, and that no other server adds any.
            shared = self._shared_bindings(wanted)
            remap = Remap(self.remap_shard(item), upstream.gauge, upstream.start)
            return SourceMachine(
                item.id,
                upstream,
                remap,
                self._feeds(wanted, upstream),
                TickTiming(item.created, item.interval_ms),
                home=self._environment,
                clock=self._environment.oracle,
                keep=partial(self._learned, item.id),
                shared=shared,
            )
        except Exception:
            upstream.close()
            raise

    def remap_shard(self, item: Source) -> Shard:
        """Bindings that were decided with those of others may still have to be made at their times."""
        shared = transaction_source(self._catalog.state, item) is not None
        opened_ = self._environment.open_ingested if shared else self._environment.open_shard
        return opened_(item.remap_shard)

    def _shared_bindings(self, wanted: _Wanted) -> TableBindings | None:
        topic = transaction_source(wanted.state, wanted.item)
        if topic is None:
            return None
        # A server without such a source need not load the client.
        from tidemill.ingest.transactions.group import TransactionGroup

        with self._lock:
            group = self._groups.get(topic.id)
            if group is None:
                group = self._groups[topic.id] = TransactionGroup(
                    topic.id,
                    self._environment,
                    lambda: self._catalog.state,
                    self._open_topic,
                    self._learned,
                    self._readable_from,
                )
        return group.table(wanted.item.id)

    def waiting_transaction(self, item: Source) -> str | None:
        """Of the source of a transaction topic: the id of the first transaction that is not complete."""
        with self._lock:
            group = self._groups.get(item.id)
        return None if group is None or group.waiting is None else group.waiting.id

    def transaction_topic(self, item: Source) -> tuple[Source, int | None] | None:
        """The source of its transaction topic, and from which time on that is readable; None if it names
        none."""
        topic = transaction_source(self._catalog.state, item)
        return None if topic is None else (topic, self._readable_from(topic.id))

    def _open_topic(self, state: CatalogState, item: Source) -> KafkaSource:
        from tidemill.sources.kafka.source import KafkaSource

        upstream = open_source(opened(state, item, self._secrets), self.files_root)
        if not isinstance(upstream, KafkaSource):
            raise Internal(f"source {item.name} has no topic")
        return upstream

    def _readable_from(self, source_id: ItemId) -> int | None:
        """None before it is readable."""
        with self._lock:
            source = self._sources.get(source_id)
        machine = None if source is None or source.slot is None else source.slot.machine
        if machine is None or not machine.readable:
            return None
        return max((feed.shard.since for feed in machine.feeds), default=None)

    def _learned(self, source_id: ItemId, learned: Mapping[str, Any]) -> None:
        """Write learned properties to the catalog. Every later open of the source uses them."""
        self._catalog.transact([LearnSource(source_id, learned)])

    def _feeds(self, wanted: _Wanted, upstream: Upstream) -> list[TableFeed]:
        item, names = wanted.item, [output.name for output in upstream.outputs]
        feeds: list[TableFeed] = []
        if item.shard is not None:
            feeds.append(self._feed(0, item.shard, item.created, upstream, item.timeline is not None))
        # Outputs that were added with tables are last, in their order (`catalog.connections.opened`).
        brought = len(names) - sum(table.definition is not None for table in wanted.tables)
        for table in wanted.tables:
            if table.definition is not None:
                output, brought = brought, brought + 1
            elif table.output in names:
                output = names.index(table.output)
            else:
                raise Internal(f"source {item.name} has no output {table.output}")
            feeds.append(self._feed(output, table.shard, table.created, upstream))
        return feeds

    def _feed(
        self, output: int, shard_id: str, created: int, upstream: Upstream, own_times: bool = False
    ) -> TableFeed:
        opened_ = self._environment.open_ingested
        rows = opened_(shard_id)
        if upstream.outputs[output].changes:
            return TableFeed(
                output, rows, created, changes=ChangeState(rows, opened_(positions_id(shard_id)))
            )
        if upstream.outputs[output].stream is None:
            return TableFeed(output, rows, created)
        stash, tally = opened_(stash_id(shard_id)), opened_(tally_id(shard_id))
        if own_times:
            clock = opened_(clock_id(shard_id))
            return TableFeed(output, clock, created, StreamState(clock, stash, tally, rows))
        return TableFeed(output, rows, created, StreamState(rows, stash, tally))

    def _alter(self, slot: SourceSlot, told: _Wanted | None, wanted: _Wanted) -> None:
        """Apply a change of the interval, the name, the tables or a connection. The caller holds the
        machine."""
        machine = slot.machine
        slot.name = wanted.item.name
        machine.timing = replace(machine.timing, interval=wanted.item.interval_ms)
        anew = None if told is not None and wanted.opens_as(told) else self._upstream(wanted)
        try:
            feeds = self._feeds(wanted, anew or machine.source)
        except Exception:
            if anew is not None:
                anew.close()
            raise
        machine.set_feeds(feeds, anew)

    def _moved(self, slot: SourceSlot) -> None:
        if self._on_moved is not None:
            machine = slot.machine
            self._on_moved([machine.remap.shard.id, *(feed.rows.id for feed in machine.feeds)])

    # -- queries by the engine

    def hurried(self) -> set[str]:
        """Shards of sources that are catching up in their own jobs; non-urgent work on them should wait."""
        slots = self.ticker.slots()
        return {feed.rows.id for slot in slots if slot.alone for feed in slot.machine.feeds}

    def _all(self) -> list[_Source]:
        with self._lock:
            return list(self._sources.values())

    def _source(self, item: Source | SourceTable | SourceProgress) -> _Source:
        source_id = item.id if isinstance(item, Source) else item.source
        with self._lock:
            source = self._sources.get(source_id)
        if source is None:
            raise UndefinedObject(
                f'relation "{item.name}" does not exist', detail="It was dropped meanwhile.", sqlstate="42P01"
            )
        return source

    def wait_bound(self, item: Source, frontier: Offsets, seconds: float) -> bool:
        """Wait until everything below is bound. Returns whether it is. Blocks the calling thread."""

        def bound() -> bool:
            machine = self.machine(item)
            if machine is None:
                return False
            machine.source.wanted(frontier)
            return frontier <= machine.remap.frontier

        return self.ticker.wait_for(bound, time.monotonic() + seconds)

    def read(self, item: Source) -> object:
        """How much was read; None if the source is not open."""
        machine = self.machine(item)
        return None if machine is None else (machine.ingested, machine.source.snapshot_progress())

    def now(self) -> int:
        return self._environment.oracle.now()

    def readable(self, item: Source | SourceTable | SourceProgress) -> int:
        """The relation is complete before this time; 0 if it cannot be read yet."""
        slot = self._source(item).slot
        if slot is None:
            return 0
        shard = None if isinstance(item, SourceProgress) else item.shard
        return slot.machine.readable if shard is None else slot.machine.complete(shard)

    def hydrated_at(self, item: Source | SourceTable) -> int:
        """When it first caught up, if that was in this life; else 0."""
        slot = self._source(item).slot
        return 0 if slot is None or item.shard is None else slot.machine.hydrated_at(item.shard)

    def report(self, item: Source | SourceTable | SourceProgress) -> Report:
        return self._source(item).report

    def machine(self, item: Source | SourceTable | SourceProgress) -> SourceMachine | None:
        """The machine of the source; None while it is being opened."""
        slot = self._source(item).slot
        return None if slot is None else slot.machine

    def shard(self, item: Source | SourceTable) -> Shard:
        """The shard with the relation's rows. Only for a readable relation."""
        if item.shard is None:
            raise Internal(f"source {item.name} has no rows of its own")
        return self._environment.open_ingested(item.shard)

    def all(self) -> list[tuple[Source, Report, SourceMachine | None]]:
        return [(s.item, s.report, None if s.slot is None else s.slot.machine) for s in self._all()]

    def retain(self, default_ms: int, kept: Container[ItemId] = frozenset()) -> None:
        """Release history beyond the retention, except of the `kept` sources. Called by the maintenance
        loop."""
        now = self._environment.oracle.now()
        for source in self._all():
            if source.slot is not None and source.item.id not in kept:
                keep = source.item.retain_history_ms
                keep = default_ms if keep is None else keep
                step = max(keep // SINCE_STEPS, SINCE_STEP_MS)
                source.slot.machine.retain(now, keep, step)

    def wait_readable(
        self, item: Source | SourceTable | SourceProgress, at: int, timeout: float | None = None
    ) -> bool:
        """Wait until the relation is complete at a time. Blocks the calling thread."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return self.ticker.wait_for(lambda: self.readable(item) > at, deadline)
