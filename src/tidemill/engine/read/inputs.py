"""The inputs of a bound query, open at one time: what SELECT, subscribed queries and materialized views read.

Needs the engine and a catalog, no session: what a session adds (its own writes, what system relations show
it) is handed in by whoever has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Source, SourceProgress, SourceTable, Table
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.timelines import not_readable
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID, Situation
from tidemill.errors import Internal, Unavailable
from tidemill.persist.snapshot import InvalidAsOf, Snapshot
from tidemill.query.read import Constant, Input
from tidemill.reclock.progress import progress_at
from tidemill.sql.bind import BoundQuery
from tidemill.types.names import physical_names

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine

# What a transaction has written to a shard and not yet committed; None for nothing.
Pending: TypeAlias = Callable[[str], pa.Table | None]


@dataclass(slots=True)
class Opened:
    """The inputs of one query, open at one time. Close it when the rows are read, or they hold `since` for
    ever."""

    inputs: dict[str, Input | Constant] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def close(self) -> None:
        for snapshot in self.snapshots:
            snapshot.close()


def open_inputs(
    engine: TidemillEngine,
    catalog: CatalogState,
    bound: BoundQuery,
    ts: int,
    *,
    situation: Situation | None = None,
    pending: Pending | None = None,
) -> Opened:
    """Every input of the query at `ts`, with a transaction's `pending` writes on top. `situation` is what
    system relations show; without it there must be none. Blocks."""
    opened = Opened()
    try:
        for placeholder, relation_id in bound.inputs.items():
            used = bound.used.get(placeholder, frozenset())
            system = SYSTEM_RELATIONS_BY_ID.get(relation_id)
            if system is not None:
                if situation is None:
                    raise Internal(f"{system.name} is read by nobody's session")
                opened.inputs[placeholder] = Constant(system.table(situation))
                continue
            item = catalog.relation(relation_id)
            if isinstance(item, SourceProgress):
                opened.inputs[placeholder] = Constant(progress_of(engine, item, ts))
                continue
            if not isinstance(item, Table | Source | SourceTable | MaterializedView):
                raise Internal(f"{item.name} is no collection")
            snapshot = snapshot_of(engine, item, ts)
            opened.snapshots.append(snapshot)
            columns = [name for name in physical_names(snapshot.desc) if name in used]
            extra = pending(item.shard) if pending is not None and isinstance(item, Table) else None
            opened.inputs[placeholder] = Input(snapshot, columns, extra)
    except BaseException:
        opened.close()
        raise
    return opened


def snapshot_of(
    engine: TidemillEngine, item: Table | Source | SourceTable | MaterializedView, ts: int
) -> Snapshot:
    """The relation at `ts`: of a table a time that the oracle gave out for reading or an earlier one, of a
    source or materialized view one at which it is complete. Blocks."""
    try:
        if isinstance(item, Table):
            shard = engine.environment.open_shard(item.shard)
            engine.environment.txns.apply_until(item.shard, ts)
            return shard.snapshot(ts, readable=ts + 1)
        if isinstance(item, MaterializedView):
            return engine.views.shard(item).snapshot(ts, readable=engine.views.readable(item))
        return engine.ingestion.shard(item).snapshot(ts, readable=engine.ingestion.readable(item))
    except InvalidAsOf as e:
        e.detail = not_readable(item, e.since, ts)
        raise


def progress_of(engine: TidemillEngine, item: SourceProgress, ts: int) -> pa.Table:
    """The progress relation at `ts`. Blocks."""
    ingestion = engine.ingestion
    machine = ingestion.machine(item)
    if machine is None:
        raise Unavailable(f'"{item.name}" is not open yet', hint="Try again in a moment.")
    try:
        return progress_at(machine.remap.shard, machine.source, ts, ingestion.readable(item))
    except InvalidAsOf as e:
        e.detail = not_readable(item, e.since, ts)
        raise
