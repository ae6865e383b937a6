"""All sinks of a server, from the catalog to their steps.

Opened by the engine beside the catalog, whose changes it follows. Each sink is stepped when its collection
has moved, and about once a second. One thread sees who is due and does nothing that blocks; steps run on a
pool, each sink's one at a time. A sink that cannot be opened or whose step fails is stalled, waits and is
tried again, and nobody else notices.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tidemill.catalog.connections import behind
from tidemill.catalog.items import Item, ItemId, Sink, SourceTable
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError
from tidemill.sinks.machine import Machine
from tidemill.sinks.status import State, Status, become, begin
from tidemill.sinks.target import Written

log = logging.getLogger(__name__)

# Steps under way at once: most of a step is waiting for acknowledgements. Sinks beyond that take turns, in
# the order in which they fell due; a snapshot takes a thread for as long as it lasts.
STEP_THREADS = 32
# How often a sink that nobody wakes is stepped: its collection goes on in time by itself.
IDLE_SECONDS = 1.0
# After a failure a sink waits so long, twice as long after the next, and so on.
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0
# Steps that are under way when the server stops are given so long to notice.
STOP_SECONDS = 5.0


@dataclass(slots=True)
class _Sink:
    """A sink of the catalog and how it is here; `machine` once it is open. Guarded by the service's lock, but
    for the machine, which is its step's."""

    item: Sink
    # As much of the catalog as it needs.
    catalog: CatalogState
    # The connections and secrets that it is opened with: when one changes, it is opened anew.
    through: tuple[Item, ...]
    status: Status = field(default_factory=begin)
    written: Written = field(default_factory=Written)
    machine: Machine | None = None
    # What the machine was opened with; another one in the catalog means that it is stale.
    opened: tuple[Item, ...] = ()
    busy: bool = False
    woken: bool = True
    # When (monotonic) it is next stepped, and not before when it failed.
    due: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    # It was dropped: whoever steps it closes it.
    gone: bool = False

    def ready(self, now: float) -> bool:
        return not self.busy and (self.woken or now >= self.due) and now >= self.retry_at

    def next_look(self) -> float:
        return max(0.0 if self.woken else self.due, self.retry_at)


class Sinks:
    """Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        opened: Callable[[CatalogState, Sink, Written], Machine],
        shard_of: Callable[[CatalogState, Sink], str],
    ) -> None:
        """`opened` makes a sink's machine as the catalog has it, `shard_of` names the shard whose moves wake
        it. `start` when collections can be asked."""
        self._opened = opened
        self._shard_of = shard_of
        # Guards all below; notified when a sink may be due, and when a step ends.
        self._cond = threading.Condition()
        self._sinks: dict[ItemId, _Sink] = {}
        self._by_shard: dict[str, set[ItemId]] = {}
        self._stopping = False
        self._pool = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="sink-step")
        self._thread = threading.Thread(target=self._run, name="sinks", daemon=True)
        catalog.on_change(lambda _, new: self._changed(new))
        self._changed(catalog.state)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        with self._cond:
            self._stopping = True
            for sink in self._sinks.values():
                if sink.machine is not None:
                    sink.machine.cancel()
            self._cond.notify_all()
            self._cond.wait_for(lambda: not any(s.busy for s in self._sinks.values()), STOP_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- following the catalog

    def _changed(self, state: CatalogState) -> None:
        """Called under the catalog's lock: nothing here waits."""
        wanted = {item.id: item for item in state.sinks()}
        with self._cond:
            for item_id in self._sinks.keys() - wanted.keys():
                sink = self._sinks.pop(item_id)
                self._by_shard.get(self._shard_of(sink.catalog, sink.item), set()).discard(item_id)
                sink.gone = True
                if sink.machine is not None:
                    sink.machine.cancel()
                    if not sink.busy:
                        sink.machine.close()
            for item_id, item in wanted.items():
                through = behind(state, item.connections)
                known = self._sinks.get(item_id)
                if known is None:
                    self._sinks[item_id] = _Sink(item, state.needed_by(item_id), through)
                    self._by_shard.setdefault(self._shard_of(state, item), set()).add(item_id)
                else:
                    known.item = item
                    if known.through != through:
                        known.catalog, known.through = state.needed_by(item_id), through
                        known.woken, known.retry_at = True, 0.0
            self._cond.notify_all()

    # -- stepping

    def _run(self) -> None:
        while True:
            with self._cond:
                if self._stopping:
                    return
                now = time.monotonic()
                for sink in self._sinks.values():
                    if sink.ready(now):
                        sink.busy, sink.woken, sink.due = True, False, now + IDLE_SECONDS
                        self._pool.submit(self._step, sink)
                looks = [s.next_look() for s in self._sinks.values() if not s.busy]
                self._cond.wait(max(0.0, min(looks, default=now + IDLE_SECONDS) - now))

    def _step(self, sink: _Sink) -> None:
        more = False
        try:
            machine = self._machine(sink)
            more = machine.step()
            if machine.begun:
                sink.status = become(sink.status, State.RUNNING)
            sink.failures = 0
        except TidemillError as e:
            if not (self._stopping or sink.gone):
                level = logging.INFO if e.transient else logging.WARNING
                log.log(level, "sink %s is stalled, it is tried again: %s", sink.item.name, e)
            self._failed(sink, e)
        except Exception as e:
            if not (self._stopping or sink.gone):
                log.exception("sink %s failed for an unforeseen reason", sink.item.name)
            self._failed(sink, TidemillError(f"{type(e).__name__}: {e}"))
        finally:
            with self._cond:
                sink.busy = False
                sink.woken = sink.woken or more
                if sink.gone and sink.machine is not None:
                    sink.machine.close()
                self._cond.notify_all()

    def _machine(self, sink: _Sink) -> Machine:
        """Another one when a connection has changed, which holds what the old one held."""
        with self._cond:
            catalog, through = sink.catalog, sink.through
        if sink.machine is not None and sink.opened == through:
            return sink.machine
        if sink.status.state is not State.STALLED:
            sink.status = become(sink.status, State.STARTING)
        machine, before = self._opened(catalog, sink.item, sink.written), sink.machine
        if before is not None:
            machine.take_over(before)
        with self._cond:
            sink.machine, sink.opened = machine, through
            if self._stopping or sink.gone:
                machine.cancel()
        return machine

    def _failed(self, sink: _Sink, error: TidemillError) -> None:
        sink.status = become(sink.status, State.STALLED, error)
        sink.retry_at = time.monotonic() + min(FIRST_RETRY_SECONDS * 2**sink.failures, LAST_RETRY_SECONDS)
        sink.failures += 1

    # -- being told

    def moved(self, shards: Collection[str]) -> None:
        """The shards have new updates, or time has gone on for them."""
        with self._cond:
            woken = [self._sinks[i] for shard in shards for i in self._by_shard.get(shard, ())]
            for sink in woken:
                sink.woken = True
            if woken:
                self._cond.notify_all()

    # -- what the engine asks

    def all(self) -> list[tuple[Sink, Status, Written, int]]:
        """With how far each has come: everything before is written; 0 where nobody knows."""
        with self._cond:
            return [
                (s.item, s.status, s.written, 0 if s.machine is None else s.machine.frontier)
                for s in self._sinks.values()
            ]

    def unheld(self) -> frozenset[ItemId]:
        """Collections whose history a sink needs that does not hold it yet: tables, views, and sources with
        all that belongs to them. None of it may be let go."""
        with self._cond:
            waiting = [s for s in self._sinks.values() if s.machine is None or not s.machine.holding]
            found = [s.catalog.relation(s.item.relation) for s in waiting]
        return frozenset(i.source if isinstance(i, SourceTable) else i.id for i in found)
