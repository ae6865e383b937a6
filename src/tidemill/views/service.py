"""All materialized views of a server, from the catalog to their steps.

Opened by the engine beside the catalog, whose changes it follows. Each view is stepped when one of its inputs
has moved, when somebody waits for it, and about once a second. One thread sees who is due and does nothing
that blocks; steps run on a pool, each view's one at a time. A view that cannot be opened or whose step fails
is stalled, waits and is tried again, and nobody else notices.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tidemill.catalog.items import ItemId, MaterializedView, SourceProgress, SourceTable, View
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError, UndefinedObject
from tidemill.ingest.status import Report, State
from tidemill.persist.environment import Environment
from tidemill.persist.outcome import Fenced
from tidemill.persist.shard import Shard
from tidemill.views.machine import Machine
from tidemill.views.program import Program

log = logging.getLogger(__name__)

# Steps under way at once. Those that are evaluated on changes share a job with whoever waits then, so that
# few threads make many jobs (measured, 100 such views of one table: 1.0 s from a commit to the last of them,
# 1.9 s with 32 threads). Whole answers wait for Spark's cores. Views beyond that take turns, in the order in
# which they fell due.
STEP_THREADS = 128
# How often a view that nobody wakes is stepped: its inputs go on in time by themselves.
IDLE_SECONDS = 1.0
# After a failure a view waits so long, twice as long after the next, and so on.
FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0
# Steps that are under way when the server stops are given so long to end: what they append is whole or not
# there in any case.
STOP_SECONDS = 5.0


@dataclass(slots=True)
class _View:
    """A view of the catalog and how it is here; `machine` once it is open. Guarded by the service's lock, but
    for the machine, which is its step's."""

    item: MaterializedView
    # As much of the catalog as its query needs.
    catalog: CatalogState
    report: Report = field(default_factory=Report)
    machine: Machine | None = None
    # The shards whose moves wake it; None, for all, before it has rows.
    inputs: frozenset[str] | None = None
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


class Views:
    """Thread-safe."""

    def __init__(
        self,
        environment: Environment,
        catalog: Catalog,
        bind: Callable[[CatalogState, MaterializedView], Program],
        *,
        on_moved: Callable[[Collection[str]], None],
        on_lost: Callable[[TidemillError], None],
    ) -> None:
        """`bind` gives a view's query; `on_moved` is told the shard of a view that has gone on. `start` when
        the inputs can be asked."""
        self._environment = environment
        self._bind = bind
        self._on_moved = on_moved
        self._on_lost = on_lost
        # Guards all below; notified when a view may be due, and when a step ends.
        self._cond = threading.Condition()
        self._views: dict[ItemId, _View] = {}
        self._stopping = False
        self._pool = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="view-step")
        self._thread = threading.Thread(target=self._run, name="views", daemon=True)
        catalog.on_change(lambda _, new: self._changed(new))
        self._changed(catalog.state)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        with self._cond:
            self._stopping = True
            self._cond.notify_all()
            self._cond.wait_for(lambda: not any(v.busy for v in self._views.values()), STOP_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- following the catalog

    def _changed(self, state: CatalogState) -> None:
        """Called under the catalog's lock: nothing here waits."""
        wanted = {item.id: item for item in state.materialized_views()}
        with self._cond:
            for item_id in self._views.keys() - wanted.keys():
                view = self._views.pop(item_id)
                view.gone = True
                if not view.busy and view.machine is not None:
                    view.machine.close()
            for item_id, item in wanted.items():
                known = self._views.get(item_id)
                if known is None:
                    self._views[item_id] = _View(item, state.needed_by(item_id))
                else:
                    known.item = item
            self._cond.notify_all()

    # -- stepping

    def _run(self) -> None:
        while True:
            with self._cond:
                if self._stopping:
                    return
                now = time.monotonic()
                for view in self._views.values():
                    if view.ready(now):
                        view.busy, view.woken, view.due = True, False, now + IDLE_SECONDS
                        self._pool.submit(self._step, view)
                looks = [v.next_look() for v in self._views.values() if not v.busy]
                self._cond.wait(max(0.0, min(looks, default=now + IDLE_SECONDS) - now))

    def _step(self, view: _View) -> None:
        more = False
        before = 0 if view.machine is None else view.machine.readable
        try:
            machine = view.machine or self._open(view)
            more = machine.step()
            view.report.become(_state(machine))
            view.failures = 0
            if machine.hydrated and view.inputs is None:
                view.inputs = frozenset(each.shard.id for each in machine.program.inputs)
        except Fenced as e:
            self._failed(view, e)
            self._on_lost(e)
        except TidemillError as e:
            level = logging.INFO if e.transient or self._stopping else logging.WARNING
            log.log(level, "materialized view %s is stalled, it is tried again: %s", view.item.name, e)
            self._failed(view, e)
        except Exception as e:
            if not self._stopping:
                log.exception("materialized view %s failed for an unforeseen reason", view.item.name)
            self._failed(view, TidemillError(f"{type(e).__name__}: {e}"))
        finally:
            moved = view.machine is not None and view.machine.readable > before
            with self._cond:
                view.busy = False
                view.woken = view.woken or more
                if view.gone and view.machine is not None:
                    view.machine.close()
                self._cond.notify_all()
            if moved:
                self._on_moved([view.item.shard])
                self.moved([view.item.shard])

    def _open(self, view: _View) -> Machine:
        program = self._bind(view.catalog, view.item)
        shard = self._environment.open_ingested(view.item.shard)
        view.machine = Machine(view.item, shard, program, self._environment)
        return view.machine

    def _failed(self, view: _View, error: TidemillError) -> None:
        view.report.become(State.STALLED, error)
        view.retry_at = time.monotonic() + min(FIRST_RETRY_SECONDS * 2**view.failures, LAST_RETRY_SECONDS)
        view.failures += 1

    # -- being told

    def moved(self, shards: Collection[str]) -> None:
        """The shards have new updates, or time has gone on for them."""
        with self._cond:
            woken = [v for v in self._views.values() if v.inputs is None or not v.inputs.isdisjoint(shards)]
            for view in woken:
                view.woken = True
            if woken:
                self._cond.notify_all()

    def hurry(self, item_id: ItemId) -> None:
        """Somebody waits for the view: it and the views under it are stepped as soon as they can be."""
        with self._cond:
            for view in self._under(item_id):
                view.woken = True
            self._cond.notify_all()

    def _under(self, item_id: ItemId) -> Iterator[_View]:
        todo, seen = [item_id], {item_id}
        while todo:
            view = self._views.get(todo.pop())
            if view is not None:
                yield view
                below = () if view.machine is None else view.machine.program.views
                todo += [i for i in below if i not in seen]
                seen.update(below)

    # -- what the engine asks

    def _view(self, item: MaterializedView) -> _View:
        with self._cond:
            view = self._views.get(item.id)
        if view is None:
            raise UndefinedObject(
                f'relation "{item.name}" does not exist', detail="It was dropped meanwhile.", sqlstate="42P01"
            )
        return view

    def readable(self, item: MaterializedView) -> int:
        """The view is complete before it; 0 while it cannot be read at all."""
        machine = self._view(item).machine
        return 0 if machine is None else machine.readable

    def report(self, item: MaterializedView) -> Report:
        return self._view(item).report

    def shard(self, item: MaterializedView) -> Shard:
        """Where its rows are. Blocks."""
        return self._environment.open_ingested(item.shard)

    def all(self) -> list[tuple[MaterializedView, Report, Machine | None]]:
        with self._cond:
            return [(v.item, v.report, v.machine) for v in self._views.values()]

    # -- history

    def retain(self, default_ms: int, kept: Container[ItemId] = frozenset()) -> None:
        """Let history go that nobody asked to keep, but of the views that are `kept`. For the maintenance
        loop."""
        now, unheld = self._environment.oracle.now(), self.unheld()
        for item, _, machine in self.all():
            if machine is not None and item.id not in unheld and item.id not in kept:
                own = item.retain_history_ms
                machine.retain(now, default_ms if own is None else own)

    def unheld(self) -> frozenset[ItemId]:
        """Collections whose history a view needs that is not open yet and so does not hold it: tables, views,
        and sources with all that belongs to them. None of it may be let go."""
        with self._cond:
            waiting = [v for v in self._views.values() if v.machine is None or not v.machine.holding]
        found: set[ItemId] = set()
        for view in waiting:
            found |= _read_by(view.catalog, view.item)
        return frozenset(found)


def _state(machine: Machine) -> State:
    if not machine.program.ready:
        return State.STARTING
    return State.RUNNING if machine.hydrated else State.HYDRATING


def _read_by(catalog: CatalogState, item: MaterializedView) -> set[ItemId]:
    """What the view's query reads, through views; of what belongs to a source, the source."""
    found: set[ItemId] = set()
    todo = list(item.depends_on)
    while todo:
        needed = catalog.relation(todo.pop())
        if isinstance(needed, View):
            todo += needed.depends_on
        elif isinstance(needed, SourceTable | SourceProgress):
            found.add(needed.source)
        else:
            found.add(needed.id)
    return found
