"""All materialized views of a server, from the catalog to their steps.

The engine opens it beside the catalog, whose changes it follows. A view is stepped (`stepping`) when one of
its inputs has advanced, when a reader waits for it, and about once a second. A view that cannot be opened or
whose step fails is stalled and is retried after a delay. Other views are unaffected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass, field, replace

from tidemill.catalog.items import ItemId, MaterializedView, SourceProgress, SourceTable, View
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError, UndefinedObject
from tidemill.ingest.status import Report, RunState, RunStatus
from tidemill.inputs.view_failures import FAILURE_HINT
from tidemill.persist.environment import Environment
from tidemill.persist.outcome import Fenced
from tidemill.persist.shard import Shard
from tidemill.stepping import Stepped, Stepper
from tidemill.types.arrow import error_parts
from tidemill.views.machine import ViewMachine
from tidemill.views.program import ViewQuery

log = logging.getLogger(__name__)

# Concurrent steps. Steps on changes share a job with all that wait then, so that few threads make many jobs
# (measured, 100 such views of one table: 1.0 s from a commit to the last of them, 1.9 s with 32 threads).
# Whole results wait for Spark's cores. Further views take turns, in the order in which they became due.
STEP_THREADS = 128


@dataclass(slots=True)
class _View(Stepped):
    """A view of the catalog and how it is here; `machine` once it is open. Guarded by the service's lock, but
    for the machine, which is its step's."""

    item: MaterializedView
    # As much of the catalog as its query needs.
    catalog: CatalogState
    report: Report = field(default_factory=Report)
    machine: ViewMachine | None = None
    # The shards whose moves wake it; empty, for all, before it has rows.
    inputs: frozenset[str] = frozenset()
    # Callbacks have reported it complete before this time.
    told: int = 0


class Views(Stepper[_View]):
    """Thread-safe."""

    def __init__(
        self,
        environment: Environment,
        catalog: Catalog,
        bind: Callable[[CatalogState, MaterializedView], ViewQuery],
        *,
        on_moved: Callable[[Collection[str]], None],
        on_lost: Callable[[TidemillError], None],
    ) -> None:
        """`bind` returns a view's query; `on_moved` receives the shard of a view that advanced. `start` when
        the inputs can be read."""
        super().__init__("view", STEP_THREADS)
        self._environment = environment
        self._bind = bind
        self._on_moved = on_moved
        self._on_lost = on_lost
        # The views to wake when a shard moves, so that only these of thousands are checked. Views without
        # rows are woken by every move.
        self._readers: dict[str, set[ItemId]] = {}
        self._without_rows: set[ItemId] = set()
        catalog.on_change(lambda _, new: self._follow(new))
        self._follow(catalog.state)

    # -- following the catalog

    def _follow(self, state: CatalogState) -> None:
        """Called under the catalog's lock: nothing here waits."""
        wanted = {item.id: item for item in state.materialized_views()}
        with self._changed:
            for item_id in self._all.keys() - wanted.keys():
                self._listen(self._drop(item_id), frozenset())
                self._without_rows.discard(item_id)
            for item_id, item in wanted.items():
                known = self._all.get(item_id)
                if known is None:
                    self._all[item_id] = _View(item, state.needed_by(item_id))
                    self._without_rows.add(item_id)
                else:
                    known.item = item
            self._changed.notify_all()

    # -- stepping

    def _step(self, each: _View) -> bool:
        machine = each.machine or self._open(each)
        more = machine.step()
        each.report.become(_state(machine))
        if machine.hydrated and each.item.id in self._without_rows:
            with self._changed:
                if not each.gone:
                    self._without_rows.discard(each.item.id)
                    self._listen(each, frozenset(one.shard.id for one in machine.program.inputs))
        return more

    def _listen(self, view: _View, inputs: frozenset[str]) -> None:
        """From now on it is woken when these shards move. Under the lock."""
        for shard in view.inputs - inputs:
            readers = self._readers[shard]
            readers.discard(view.item.id)
            if not readers:
                del self._readers[shard]
        for shard in inputs - view.inputs:
            self._readers.setdefault(shard, set()).add(view.item.id)
        view.inputs = inputs

    def _failed(self, each: _View, error: Exception) -> None:
        name = each.item.name
        if not isinstance(error, TidemillError):
            if not self._stopping:
                log.error("materialized view %s failed for an unforeseen reason", name, exc_info=error)
            error = TidemillError(f"{type(error).__name__}: {error}")
        elif not isinstance(error, Fenced):
            level = logging.INFO if error.transient or self._stopping else logging.WARNING
            log.log(level, "materialized view %s is stalled, it is tried again: %s", name, error)
        each.report.become(RunState.STALLED, error)
        if isinstance(error, Fenced):
            self._on_lost(error)

    def _close(self, each: _View) -> None:
        if each.machine is not None:
            each.machine.close()

    def _stepped(self, each: _View) -> None:
        readable = 0 if each.machine is None else each.machine.readable
        if readable > each.told:
            each.told = readable
            self._on_moved([each.item.shard])
            self.moved([each.item.shard])

    def _open(self, view: _View) -> ViewMachine:
        program = self._bind(view.catalog, view.item)
        shard = self._environment.open_ingested(view.item.shard)
        view.machine = ViewMachine(view.item, shard, program, self._environment)
        return view.machine

    # -- notifications

    def moved(self, shards: Collection[str]) -> None:
        """The shards have new updates, or time has gone on for them."""
        with self._changed:
            woken = self._without_rows.union(*(self._readers.get(shard, ()) for shard in shards))
            self._wake(self._all[item_id] for item_id in woken)

    def hurry(self, item_id: ItemId) -> None:
        """A reader waits for the view: it and the views under it are stepped as soon as possible."""
        with self._changed:
            self._wake(self._under(item_id))

    def _under(self, item_id: ItemId) -> Iterator[_View]:
        todo, seen = [item_id], {item_id}
        while todo:
            view = self._all.get(todo.pop())
            if view is not None:
                yield view
                below = () if view.machine is None else view.machine.program.views
                todo += [i for i in below if i not in seen]
                seen.update(below)

    # -- queries by the engine

    def _view(self, item: MaterializedView) -> _View:
        with self._changed:
            view = self._all.get(item.id)
        if view is None:
            raise UndefinedObject(
                f'relation "{item.name}" does not exist', detail="It was dropped meanwhile.", sqlstate="42P01"
            )
        return view

    def readable(self, item: MaterializedView) -> int:
        """The view is complete before it; 0 while it cannot be read at all."""
        machine = self._view(item).machine
        return 0 if machine is None else machine.readable

    def status(self, item: MaterializedView) -> RunStatus:
        view = self._view(item)
        return _status(view.report, view.machine)

    def shard(self, item: MaterializedView) -> Shard:
        """Where its rows are. Blocks."""
        return self._environment.open_ingested(item.shard)

    def all(self) -> list[tuple[MaterializedView, RunStatus, ViewMachine | None]]:
        with self._changed:
            return [(v.item, _status(v.report, v.machine), v.machine) for v in self._all.values()]

    # -- history

    def retain(self, default_ms: int, kept: Container[ItemId] = frozenset()) -> None:
        """Release history that is not retained, except of the `kept` views. For the maintenance loop."""
        now, unheld = self._environment.oracle.now(), self.unheld()
        for item, _, machine in self.all():
            if machine is not None and item.id not in unheld and item.id not in kept:
                own = item.retain_history_ms
                machine.retain(now, default_ms if own is None else own)

    def unheld(self) -> frozenset[ItemId]:
        """Collections whose history is needed by a view that is not yet open and so does not hold it: tables,
        views, and sources with everything that belongs to them. None of it may be released."""
        with self._changed:
            waiting = [v for v in self._all.values() if v.machine is None or not v.machine.holding]
        found: set[ItemId] = set()
        for view in waiting:
            found |= _read_by(view.catalog, view.item)
        return frozenset(found)


def _state(machine: ViewMachine) -> RunState:
    if not machine.program.ready:
        return RunState.STARTING
    return RunState.RUNNING if machine.hydrated else RunState.HYDRATING


def _status(report: Report, machine: ViewMachine | None) -> RunStatus:
    """A view that continues and holds an error is FAILED. The machine's state is used before the step has
    ended, so that readers of the error see this status, too."""
    status = report.status
    if machine is None or status.state is not RunState.RUNNING:
        return status
    health = machine.health
    if health.error is None:
        return replace(status, since=max(status.since, health.since))
    primary, detail = error_parts(health.error)
    return RunStatus(RunState.FAILED, health.since, primary, detail, FAILURE_HINT)


def _read_by(catalog: CatalogState, item: MaterializedView) -> set[ItemId]:
    """The inputs of the view's query, through views; for an object of a source, the source."""
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
