"""The durable subscriptions of a server: what is kept for their readers, and who reads.

Opened by the engine beside the catalog, whose changes it follows. For each subscription it holds the history
of all its inputs from the acknowledged position on, so that everything after it can be read again. Until a
hold is taken (an input may not be open yet), `unheld` keeps the maintenance from releasing history. A thread
moves the holds about once a second, and gives a subscription up whose unacknowledged changes are older or
larger than its limits: from then on it is lost, durably, until it is reset.

One reader of a share at a time: the latest one. The one before learns it with its next statement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from tidemill.catalog.items import ItemId, SourceTable, Subscription
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError, UndefinedObject
from tidemill.inputs.collections import Collection, Collections
from tidemill.inputs.opened import QueryInputs
from tidemill.persist.environment import Environment
from tidemill.persist.holds import Hold
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.subscriptions.positions import Position, Positions
from tidemill.subscriptions.query import Place, bind_subscription, initial_position, places
from tidemill.time.shown import show_time

log = logging.getLogger(__name__)

# What is kept for a reader that does not acknowledge, unless the subscription says otherwise: a week, as
# Kafka's topics do, and as much as a small disk has to spare.
DEFAULT_RETAIN_MS = 7 * 24 * 3600 * 1000
DEFAULT_RETAIN_BYTES = 10 << 30
# How often holds are moved and limits are checked.
INTERVAL_SECONDS = 1.0


class SubscriptionLost(TidemillError):
    """The changes after its position are no longer kept."""

    sqlstate = "55000"

    def __init__(self, item: Subscription, why: str) -> None:
        super().__init__(
            f'subscription "{item.name}" has lost its position',
            detail=why,
            hint=f"ALTER SUBSCRIPTION {item.name} RESET begins anew, with the contents of now.",
        )


class Reader(Protocol):
    def end(self, error: TidemillError) -> None:
        """The reader's place is gone. Called on any thread; returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What is held back for a reader: the files with changes after its position, and since when there are
    some."""

    bytes: int = 0
    oldest: int | None = None


@dataclass(slots=True)
class _Entry:
    item: Subscription
    # The part of the catalog that it needs, and the relations that its query reads.
    catalog: CatalogState
    inputs: tuple[Collection, ...]
    # Guards the holds.
    lock: threading.Lock = field(default_factory=threading.Lock)
    holds: list[Hold] = field(default_factory=list[Hold])
    # What `reached` returned last; it never goes back.
    reached: int = 0
    # By share.
    kept: dict[int, Kept] = field(default_factory=dict[int, Kept])
    readers: dict[int, Reader] = field(default_factory=dict[int, Reader])
    gone: bool = False

    def end(self, error: TidemillError) -> None:
        for reader in list(self.readers.values()):
            reader.end(error)


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """Of a share, for mz_subscriptions."""

    place: Place
    position: Position
    kept: Kept
    read: bool

    @property
    def retain_ms(self) -> int:
        own = self.place.item.retain_ms
        return DEFAULT_RETAIN_MS if own is None else own

    @property
    def retain_bytes(self) -> int:
        own = self.place.item.retain_bytes
        return DEFAULT_RETAIN_BYTES if own is None else own


class DurableSubscriptions:
    """Thread-safe."""

    def __init__(
        self,
        environment: Environment,
        catalog: Catalog,
        collections: Collections,
        *,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._environment = environment
        self._collections = collections
        self._interval = interval
        self._lock = threading.Lock()
        self._entries: dict[ItemId, _Entry] = {}
        # Dropped, and perhaps still holding.
        self._going: list[_Entry] = []
        self.positions = Positions(environment)
        self._wake = threading.Event()
        self._stopping = False
        catalog.on_change(lambda _, new: self._follow(new))
        self._follow(catalog.state)
        wanted = {place.key for e in self._entries.values() for place in places(e.item)}
        for key in self.positions.known() - wanted:
            self.positions.forget(key)
        self._lose_restored()
        self._thread = threading.Thread(target=self._run, name="subscriptions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self.positions.stop()

    # -- following the catalog

    def _follow(self, state: CatalogState) -> None:
        """Called under the catalog's lock: nothing here may wait."""
        wanted = {item.id: item for item in state.subscriptions()}
        with self._lock:
            gone = [self._entries.pop(i) for i in self._entries.keys() - wanted.keys()]
            for item_id, item in wanted.items():
                known = self._entries.get(item_id)
                if known is None:
                    needed = state.needed_by(item_id)
                    inputs = QueryInputs.of(needed, bind_subscription(needed, item)).items
                    self._entries[item_id] = _Entry(item, needed, inputs)
                else:
                    known.item = item
            self._going += gone
        for entry in gone:
            entry.gone = True
            for place in places(entry.item):
                self.positions.forget(place.key)
            entry.end(_dropped(entry.item))
        if wanted or gone:
            self._wake.set()

    # -- positions

    def position(self, place: Place) -> Position:
        return self.positions.find(place.key) or initial_position(place.item)

    def lost(self, item: Subscription) -> str | None:
        """Why changes after its positions are not kept: those of all shares."""
        return next((why for p in places(item) if (why := self.position(p).lost) is not None), None)

    def keep(self, place: Place) -> Position:
        """The position, with all that comes after it held. Raises SubscriptionLost. Blocks for the store."""
        entry, item = self._entry(place.item), place.item
        with entry.lock:
            if self.lost(item) is None and not entry.holds:
                self._hold(entry)
            why = self.lost(item)
        if why is not None:
            raise SubscriptionLost(item, why)
        return self.position(place)

    def reached(self, item: Subscription) -> int:
        """Every change before it is known: nobody can have read further. Blocks."""
        entry, now = self._entry(item), self._environment.oracle.read_ts() + 1
        entry.reached = min([now, *(self._collections.complete(i) for i in entry.inputs)])
        return entry.reached

    def surely_reached(self, item: Subscription, position: int) -> bool:
        """Whether `reached` need not be asked again."""
        return position <= self._entry(item).reached

    def acknowledge(self, place: Place, frontier: int) -> Future[Position | None]:
        """Everything before `frontier` is done with; durable when the future has a result."""
        return self.positions.acknowledge(place.key, frontier, initial_position(place.item))

    def reset(self, item: Subscription) -> None:
        """All shares begin anew, with the contents of now. Blocks."""
        entry = self._entry(item)
        with entry.lock:
            shards = self._shards(entry)
            at = max([self._environment.oracle.read_ts(), *(shard.since for shard in shards)])
            holds = [shard.hold(at) for shard in shards]
            try:
                self._begin({place: Position(at, True) for place in places(item)})
            except BaseException:
                _release(holds)
                raise
            self._release(entry)
            entry.holds = holds
        entry.end(TidemillError(f'subscription "{item.name}" was reset', sqlstate="55000"))

    def _lose_restored(self) -> None:
        """A reader may have seen changes that were lost when the directory was restored. Blocks."""
        history = self._environment.history
        old = [p for e in self._entries.values() if history.before(e.item.id) for p in places(e.item)]
        found = {place: self.position(place) for place in old}
        why = "The data directory was restored from a backup, and readers may have seen changes since."
        self._begin(
            {
                place: replace(position, lost=why)
                for place, position in found.items()
                if position.lost is None and position.frontier < history.began
            }
        )

    def _begin(self, positions: Mapping[Place, Position]) -> None:
        """Returns when they are durable, with one commit unless others come between."""
        for waiting in [self.positions.begin(place.key, p) for place, p in positions.items()]:
            waiting.result()

    # -- readers

    def attach(self, place: Place, reader: Reader) -> None:
        """The reader takes the place of another."""
        readers = self._entry(place.item).readers
        before = readers.get(place.share)
        readers[place.share] = reader
        if before is not None and before is not reader:
            hint = "One session reads a subscription at a time: the one that began last."
            if place.item.shares > 1:
                hint = "One session reads a share at a time: the one that began last."
            before.end(TidemillError(f"{place} is read by another session now", hint=hint, sqlstate="55006"))

    def detach(self, place: Place, reader: Reader) -> None:
        with self._lock:
            entry = self._entries.get(place.item.id)
        if entry is not None and entry.readers.get(place.share) is reader:
            del entry.readers[place.share]

    # -- queries of the engine

    def states(self) -> list[SubscriptionState]:
        with self._lock:
            entries = list(self._entries.values())
        return [state for entry in entries for state in self._states(entry)]

    def _states(self, entry: _Entry) -> list[SubscriptionState]:
        return [
            SubscriptionState(p, self.position(p), entry.kept.get(p.share, Kept()), p.share in entry.readers)
            for p in places(entry.item)
        ]

    def unheld(self) -> frozenset[ItemId]:
        """Collections whose history is needed and not held yet: tables, views, and sources with all that
        belongs to them. Their since must not advance."""
        with self._lock:
            waiting = [e for e in self._entries.values() if not e.holds and e.inputs]
        needed = [i for e in waiting if self.lost(e.item) is None for i in e.inputs]
        return frozenset(i.source if isinstance(i, SourceTable) else i.id for i in needed)

    def _entry(self, item: Subscription) -> _Entry:
        with self._lock:
            entry = self._entries.get(item.id)
        if entry is None:
            raise _dropped(item)
        return entry

    # -- holds and limits

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                entries, self._going = [*self._entries.values(), *self._going], []
            for entry in entries:
                self._attempt(lambda e=entry: self._keep(e))
            self._attempt(self.positions.compacted)
            self._wake.wait(self._interval)
            self._wake.clear()

    def _attempt(self, what: Callable[[], None]) -> None:
        try:
            what()
        except TidemillError as e:
            level = logging.DEBUG if e.transient or self._environment.lost else logging.WARNING
            log.log(level, "durable subscriptions: %s, it is tried again", e)
        except Exception:
            log.exception("durable subscriptions failed for an unforeseen reason, it is tried again")

    def _keep(self, entry: _Entry) -> None:
        with entry.lock:
            if entry.gone or self.lost(entry.item) is not None:
                self._release(entry)
                entry.kept = {}
                return
            if not entry.holds:
                self._hold(entry)
            held = self._held(entry.item)
            for hold in entry.holds:
                if held > hold.at:
                    hold.advance(held)
            parts = [part for shard in self._shards(entry) for part in shard.parts]
            entry.kept = {
                place.share: kept_since(parts, self.position(place).held) for place in places(entry.item)
            }
            for state in self._states(entry):
                why = self._exceeded(state)
                if why is not None:
                    self._give_up(entry, why)
                    return

    def _held(self, item: Subscription) -> int:
        """The time that must stay readable: that of the share that is furthest behind."""
        return min(self.position(place).held for place in places(item))

    def _hold(self, entry: _Entry) -> None:
        """Under the entry's lock. What is not kept any more is lost: nobody can read it again."""
        holds: list[Hold] = []
        held = self._held(entry.item)
        try:
            for shard in self._shards(entry):
                holds.append(shard.hold(held))
        except InvalidAsOf as e:
            _release(holds)
            since = show_time(e.since)
            self._give_up(entry, f"The history of its inputs before {since} is no longer kept.")
            return
        except BaseException:
            _release(holds)
            raise
        entry.holds = holds
        if entry.gone:
            self._release(entry)

    def _give_up(self, entry: _Entry, why: str) -> None:
        """Durable before the history goes."""
        self._begin({p: replace(self.position(p), lost=why) for p in places(entry.item)})
        self._release(entry)
        log.warning('subscription "%s" has lost its position: %s', entry.item.name, why)
        entry.end(SubscriptionLost(entry.item, why))

    def _exceeded(self, state: SubscriptionState) -> str | None:
        kept, limit, size = state.kept, state.retain_ms, state.retain_bytes
        if kept.oldest is not None and self._environment.oracle.now() - kept.oldest > limit:
            return (
                f"Changes since {show_time(kept.oldest)} were not acknowledged; "
                f"they are kept for {limit} milliseconds (RETAIN)."
            )
        if kept.bytes > size:
            return (
                f"The changes that were not acknowledged are in files of {kept.bytes} bytes; "
                f"at most {size} are kept (RETAIN SIZE)."
            )
        return None

    def _shards(self, entry: _Entry) -> Sequence[Shard]:
        return [self._collections.shard(item) for item in entry.inputs]

    @staticmethod
    def _release(entry: _Entry) -> None:
        holds, entry.holds = entry.holds, []
        _release(holds)


def kept_since(parts: Sequence[Part], held: int) -> Kept:
    """Of the parts of the inputs those with changes after `held`. A part that compaction has made of earlier
    changes and later ones counts as its latest change."""
    later = [part for part in parts if part.max_time > held]
    times = [part.min_time if part.min_time > held else part.max_time for part in later]
    return Kept(sum(part.bytes for part in later), min(times, default=None))


def _dropped(item: Subscription) -> UndefinedObject:
    return UndefinedObject(f'subscription "{item.name}" was dropped', sqlstate="42704")


def _release(holds: Sequence[Hold]) -> None:
    for hold in holds:
        hold.release()
