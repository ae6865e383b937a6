"""Sink service: runs all sinks of a server, from the catalog to their steps.

Opened by the engine beside the catalog, whose changes it follows. Each sink is stepped (`stepping`) when its
collection has advanced, and about once a second. A sink that cannot be opened or whose step fails is stalled
and retried after a delay. Other sinks are not affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tidemill.catalog.connections import behind
from tidemill.catalog.items import Item, ItemId, Sink, SourceTable
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError
from tidemill.ingest.status import RunState, RunStatus, wall_ms
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.target import Written
from tidemill.stepping import Stepped, Stepper

log = logging.getLogger(__name__)

# The maximum number of concurrent steps: a step mostly waits for acknowledgements. Further sinks take turns,
# in the order in which they became due; a snapshot occupies a thread until it ends.
STEP_THREADS = 32


@dataclass(slots=True)
class _Sink(Stepped):
    """A sink of the catalog and its state here; `machine` once it is open. Guarded by the service's lock,
    except for the machine, which belongs to its step."""

    item: Sink
    # The part of the catalog that it needs.
    catalog: CatalogState
    # The connections and secrets that it is opened with: when one changes, it is opened again.
    through: tuple[Item, ...]
    status: RunStatus = field(default_factory=lambda: RunStatus(RunState.CREATED, wall_ms()))
    written: Written = field(default_factory=Written)
    machine: SinkMachine | None = None
    # The definition that the machine was opened with; if the catalog has another, the machine is stale.
    opened: tuple[Item, ...] = ()


class Sinks(Stepper[_Sink]):
    """Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        opened: Callable[[CatalogState, Sink, Written], SinkMachine],
        shard_of: Callable[[CatalogState, Sink], str],
    ) -> None:
        """`opened` makes a sink's machine from the catalog's definition; `shard_of` names the shard whose
        progress wakes it. Call `start` when collections can be read."""
        super().__init__("sink", STEP_THREADS)
        self._opened = opened
        self._shard_of = shard_of
        self._by_shard: dict[str, set[ItemId]] = {}
        catalog.on_change(lambda _, new: self._follow(new))
        self._follow(catalog.state)

    # -- following the catalog

    def _follow(self, state: CatalogState) -> None:
        """Called under the catalog's lock: nothing here may wait."""
        wanted = {item.id: item for item in state.sinks()}
        with self._changed:
            for item_id in self._all.keys() - wanted.keys():
                sink = self._drop(item_id)
                self._by_shard.get(self._shard_of(sink.catalog, sink.item), set()).discard(item_id)
            for item_id, item in wanted.items():
                through = behind(state, item.connections)
                known = self._all.get(item_id)
                if known is None:
                    self._all[item_id] = _Sink(item, state.needed_by(item_id), through)
                    self._by_shard.setdefault(self._shard_of(state, item), set()).add(item_id)
                else:
                    known.item = item
                    if known.through != through:
                        known.catalog, known.through = state.needed_by(item_id), through
                        known.woken, known.retry_at = True, 0.0
            self._changed.notify_all()

    # -- stepping

    def _step(self, each: _Sink) -> bool:
        machine = self._machine(each)
        more = machine.step()
        if machine.begun:
            each.status = each.status.become(RunState.RUNNING)
        return more

    def _failed(self, each: _Sink, error: Exception) -> None:
        told = not (self._stopping or each.gone)
        if not isinstance(error, TidemillError):
            if told:
                log.error("sink %s failed for an unforeseen reason", each.item.name, exc_info=error)
            error = TidemillError(f"{type(error).__name__}: {error}")
        elif told:
            level = logging.INFO if error.transient else logging.WARNING
            log.log(level, "sink %s is stalled, it is tried again: %s", each.item.name, error)
        each.status = each.status.become(RunState.STALLED, error)

    def _cancel(self, each: _Sink) -> None:
        if each.machine is not None:
            each.machine.cancel()

    def _close(self, each: _Sink) -> None:
        if each.machine is not None:
            each.machine.close()

    def _machine(self, sink: _Sink) -> SinkMachine:
        """The sink's machine. If a connection has changed, it is a new one, which takes over the hold."""
        with self._changed:
            catalog, through = sink.catalog, sink.through
        if sink.machine is not None and sink.opened == through:
            return sink.machine
        if sink.status.state is not RunState.STALLED:
            sink.status = sink.status.become(RunState.STARTING)
        machine, before = self._opened(catalog, sink.item, sink.written), sink.machine
        if before is not None:
            machine.take_over(before)
        with self._changed:
            sink.machine, sink.opened = machine, through
            if self._stopping or sink.gone:
                machine.cancel()
        return machine

    # -- notifications

    def moved(self, shards: Collection[str]) -> None:
        """The shards have new updates, or their upper has advanced."""
        with self._changed:
            self._wake(self._all[i] for shard in shards for i in self._by_shard.get(shard, ()))

    # -- queries of the engine

    def all(self) -> list[tuple[Sink, RunStatus, Written, int]]:
        """All sinks with their progress: everything before it is written; 0 while it is unknown."""
        with self._changed:
            return [
                (s.item, s.status, s.written, 0 if s.machine is None else s.machine.frontier)
                for s in self._all.values()
            ]

    def unheld(self) -> frozenset[ItemId]:
        """Collections whose history is needed by a sink that does not hold it yet: tables, views, and sources
        with all that belongs to them. Their since must not advance."""
        with self._changed:
            waiting = [s for s in self._all.values() if s.machine is None or not s.machine.holding]
            found = [s.catalog.relation(s.item.relation) for s in waiting]
        return frozenset(i.source if isinstance(i, SourceTable) else i.id for i in found)
