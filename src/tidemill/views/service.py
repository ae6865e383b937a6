"""All materialized views of a server, from the catalog to their steps.

The engine opens it beside the catalog, whose changes it follows. A view is stepped (`stepping`) when one of
its inputs has advanced, when a reader waits for it, and about once a second. A view that cannot be opened or
whose step fails is stalled and is retried after a delay. Other views are unaffected.

A query that is to replace that of a view is a view of its own here, which the catalog does not have and
nobody reads. When it has caught up it is not stepped by itself any more: the view's own step brings both to
one time (`replacing`), and goes on as the new one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tidemill import failpoints
from tidemill.catalog.items import ItemId, MaterializedView, SourceProgress, SourceTable, View
from tidemill.catalog.materialized_ops import EndReplacement, SwitchQuery, beside
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import Internal, InvalidValue, TidemillError, UndefinedObject
from tidemill.ingest.status import Report, RunState, RunStatus
from tidemill.inputs.view_failures import failure_hint
from tidemill.persist.environment import Environment
from tidemill.persist.outcome import Fenced
from tidemill.persist.shard import Shard
from tidemill.stepping import Stepped, Stepper
from tidemill.types.arrow import error_parts
from tidemill.views.difference import append_difference
from tidemill.views.machine import ViewMachine
from tidemill.views.program import ViewQuery
from tidemill.views.replacing import (
    FP_DIFFERENCE,
    FP_MEETING,
    FP_RESUMED,
    FP_SWITCHED,
    GAP_TEXT,
    Meeting,
    has_error_at,
    meeting,
)

log = logging.getLogger(__name__)

# Concurrent steps. Steps on changes share a job with all that wait then, so that few threads make many jobs
# (measured, 100 such views of one table: 1.0 s from a commit to the last of them, 1.9 s with 32 threads).
# Whole results wait for Spark's cores. Further views take turns, in the order in which they became due.
STEP_THREADS = 128
# A view whose steps fail so often in a row, other than for a while, is not waited for by its replacement.
BROKEN_FAILURES = 3
# A step waits so long for two queries to be complete at one time: usually for the next millisecond.
MEETING_SECONDS = 0.04
# What replaces a view is brought to the view's time change by change for so long, and then at once.
JUMP_SECONDS = 1.0
# It catches up with its inputs by itself for so long, or until it has: under many writes it may never.
CATCH_UP_SECONDS = 5.0
# Errors of replacements that were given up; each is asked for once, soon after.
MAX_FAILURES = 1000


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
    # The view whose query it is to replace; and whether it has caught up, so that that view's step steps it.
    replaces: ItemId | None = None
    caught_up: bool = False
    # When (monotonic) it got its first rows; 0 before that.
    hydrated_at: float = 0.0
    # The last step failed, and not only for a while.
    broken: bool = False
    # Of a view that is being switched: what keeps the time of the switch until its machine does.
    switch: Meeting | None = None


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
        self._catalog = catalog
        self._bind = bind
        self._on_moved = on_moved
        self._on_lost = on_lost
        # The views to wake when a shard moves, so that only these of thousands are checked. Views without
        # rows are woken by every move.
        self._readers: dict[str, set[ItemId]] = {}
        self._without_rows: set[ItemId] = set()
        # Why replacements were given up.
        self._given_up: dict[ItemId, TidemillError] = {}
        catalog.on_change(lambda _, new: self._follow(new))
        self._follow(catalog.state)

    # -- following the catalog

    def _follow(self, state: CatalogState) -> None:
        """Called under the catalog's lock: nothing here waits."""
        wanted = {item.id: item for item in state.materialized_views()}
        replaces: dict[ItemId, ItemId] = {}
        for item in list(wanted.values()):
            if item.replacement is not None and not item.switching:
                new = beside(item, item.replacement)
                wanted[new.id] = new
                replaces[new.id] = item.id
        with self._changed:
            for item_id in self._all.keys() - wanted.keys():
                self._listen(self._drop(item_id), frozenset())
                self._without_rows.discard(item_id)
            for item_id, item in wanted.items():
                known = self._all.get(item_id)
                of = replaces.get(item_id)
                if known is None:
                    self._all[item_id] = _View(item, state.needed_by(of or item_id), replaces=of)
                    self._without_rows.add(item_id)
                elif known.item != item:
                    known.item, known.catalog = item, state.needed_by(of or item_id)
            self._changed.notify_all()

    # -- stepping

    def _step(self, each: _View) -> bool:
        if each.replaces is not None:
            return self._step_beside(each, each.replaces)
        if each.item.switching:
            self._finish(each)
            return True
        with self._taken(each) as new:
            return self._go_on(each) if new is None else self._approach(each, new)

    def _go_on(self, each: _View) -> bool:
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
        each.broken = isinstance(error, TidemillError) and not error.transient
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
        elif each.replaces is not None and each.broken and not self._stopping:
            self._give_up(each, each.replaces, error)

    def _close(self, each: _View) -> None:
        if each.machine is not None:
            each.machine.close()
        if each.switch is not None:
            each.switch.release()

    def _stepped(self, each: _View) -> None:
        readable = 0 if each.machine is None else each.machine.readable
        if readable > each.told:
            each.told = readable
            self._on_moved([each.item.shard])
            self.moved([each.item.shard])
        if each.replaces is not None and each.caught_up:
            with self._changed:
                self._wake([self._all[each.replaces]] if each.replaces in self._all else [])

    def _open(self, view: _View) -> ViewMachine:
        program = self._bind(view.catalog, view.item)
        shard = self._environment.open_ingested(view.item.shard)
        view.machine = ViewMachine(view.item, shard, program, self._environment)
        return view.machine

    # -- replacing the query of a view

    def _step_beside(self, each: _View, view: ItemId) -> bool:
        """What is to replace a view goes on by itself until it has caught up."""
        more = False
        if not each.caught_up:
            more = self._go_on(each)
            machine = each.machine
            if machine is None or not machine.hydrated:
                return more
            each.hydrated_at = each.hydrated_at or time.monotonic()
            if more and time.monotonic() - each.hydrated_at < CATCH_UP_SECONDS:
                return True
            if (error := _error(machine)) is not None:
                self._give_up(each, view, error)
                return False
            each.caught_up = True
        return False

    @contextmanager
    def _taken(self, view: _View) -> Generator[_View | None]:
        """What is to replace the view, if it has caught up, and no other thread steps it here."""
        pending = view.item.replacement
        with self._changed:
            new = None if pending is None else self._all.get(pending.id)
            if new is not None and (new.busy or new.gone or not new.caught_up):
                new = None
            if new is not None:
                new.busy = True
        try:
            yield new
        finally:
            if new is not None:
                with self._changed:
                    new.busy = False
                    if new.gone:
                        self._close(new)
                    self._changed.notify_all()

    def _approach(self, each: _View, new: _View) -> bool:
        """Bring the view and what replaces it to one time, and switch it there."""
        if new.machine is None:
            raise Internal(f'the replacement of materialized view "{each.item.name}" is not open')
        broken = each.broken and each.failures >= BROKEN_FAILURES
        found = meeting(each.item, self.shard(each.item), each.machine, new.machine, broken=broken)
        if found is None:
            more = self._go_on(each)
            return more or (each.machine is not None and each.machine.readable >= new.machine.readable)
        try:
            if not self._brought(each, new, new.machine, found.at):
                found.release()
                return False
            failpoints.hit(FP_MEETING)
            self._catalog.transact([SwitchQuery(each.item.id, new.item.id, found.at, found.gap_from)])
        except BaseException:
            found.release()
            raise
        each.switch = found
        self._finish(each)
        return True

    def _brought(self, each: _View, new: _View, machine: ViewMachine, at: int) -> bool:
        """Whether what replaces the view is complete at that time, and no error. Until it is, the view waits:
        from then on it is as late as its new inputs are."""
        began = time.monotonic()
        try:
            while machine.readable <= at:
                more = machine.step()
                if machine.readable > at:
                    break
                passed = time.monotonic() - began
                if more and passed > JUMP_SECONDS:
                    # The times before are nobody's, and are more than it can compute while more come.
                    machine.jump(at)
                elif not more:
                    if passed > MEETING_SECONDS:
                        return False
                    time.sleep(MEETING_SECONDS / 20)
        except Exception as e:
            # It is on its own again, and the view goes on.
            new.caught_up = False
            self._failed(new, e)
            return False
        error = _error(machine)
        if error is not None:
            self._give_up(new, each.item.id, error)
        return error is None and not has_error_at(machine.shard, at)

    def _finish(self, each: _View) -> None:
        """The catalog has the new query and the time of the switch: what remains is certain, and the same
        after a crash."""
        item, new, switched = each.item, each.item.replacement, each.item.switched
        if new is None or switched is None:
            raise Internal(f'materialized view "{item.name}" is not being switched')
        failpoints.hit(FP_SWITCHED)
        shard = self.shard(item)
        result = self._environment.open_ingested(new.shard)
        gap = None if switched.gap_from is None else (switched.gap_from, GAP_TEXT)
        job = self._environment.begin_job()
        try:
            append_difference(shard, result, switched.at, job, gap)
        finally:
            self._environment.end_job(job)
        failpoints.hit(FP_DIFFERENCE)
        old = each.machine
        machine = ViewMachine(item, shard, self._bind(each.catalog, item), self._environment)
        with self._changed:
            each.machine = machine
            if not each.gone:
                self._without_rows.discard(item.id)
                self._listen(each, frozenset(one.shard.id for one in machine.program.inputs))
        if old is not None:
            old.close()
        if each.switch is not None:
            each.switch.release()
            each.switch = None
        failpoints.hit(FP_RESUMED)
        self._catalog.transact([EndReplacement(item.id, new.id, done=True)])
        log.info("materialized view %s has another query from %s on", item.name, switched.at)

    def _give_up(self, new: _View, view: ItemId, error: TidemillError) -> None:
        """The view keeps its query."""
        with self._changed:
            self._given_up[new.item.id] = error
            for old in list(self._given_up)[:-MAX_FAILURES]:
                del self._given_up[old]
        log.warning("the query of materialized view %s is not replaced: %s", new.item.name, error)
        try:
            self._catalog.transact([EndReplacement(view, new.item.id, done=False)])
        except (UndefinedObject, InvalidValue):
            pass  # it has ended in another way meanwhile

    def why_given_up(self, replacement: ItemId) -> TidemillError | None:
        """Why a replacement that has ended did not replace the query, if that was because of it."""
        with self._changed:
            return self._given_up.get(replacement)

    def replacements(self) -> dict[ItemId, RunStatus]:
        """How the replacements of the views are that have one."""
        with self._changed:
            return {v.replaces: _status(v.report, v.machine) for v in self._all.values() if v.replaces}

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
                below = [] if view.machine is None else list(view.machine.program.views)
                if view.item.replacement is not None:
                    below.append(view.item.replacement.id)
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
        """Without what is to replace one of them."""
        with self._changed:
            views = [v for v in self._all.values() if v.replaces is None]
            return [(v.item, _status(v.report, v.machine), v.machine) for v in views]

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
    return RunStatus(RunState.FAILED, health.since, primary, detail, failure_hint(detail))


def _error(machine: ViewMachine) -> TidemillError | None:
    """The error that it holds in place of rows."""
    if machine.health.error is None:
        return None
    primary, detail = error_parts(machine.health.error)
    return InvalidValue(primary, detail=detail, sqlstate="22000")


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
