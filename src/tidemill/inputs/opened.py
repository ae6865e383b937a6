"""The inputs of a bound query, open at one time.

Called for SELECT, subscribed queries and materialized views. The caller passes what a session adds: its own
writes, and the rows of system relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Source, SourceProgress, SourceTable, Table, is_system
from tidemill.catalog.state import CatalogState
from tidemill.errors import Internal
from tidemill.inputs.collections import Collection, Collections
from tidemill.persist.snapshot import Snapshot
from tidemill.query.read import ConstantInput, Input
from tidemill.sql.bind import BoundQuery
from tidemill.types.names import physical_names

# A transaction's uncommitted writes to a shard; None for none.
Pending: TypeAlias = Callable[[str], pa.Table | None]
# The rows that a system relation shows now, by its id.
SystemRows: TypeAlias = Callable[[str], pa.Table]


@dataclass(frozen=True, slots=True)
class QueryInputs:
    """The collections that a query reads; `system` if it also reads relations that show current state."""

    items: tuple[Collection, ...]
    system: bool

    @staticmethod
    def of(catalog: CatalogState, bound: BoundQuery) -> QueryInputs:
        ids = dict.fromkeys(bound.inputs.values())
        items: list[Collection] = []
        for relation_id in ids:
            if not is_system(relation_id):
                item = catalog.relation(relation_id)
                if not isinstance(item, Collection):
                    raise Internal(f"{item.name} is no collection")
                items.append(item)
        return QueryInputs(tuple(items), len(items) < len(ids))

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(item.id for item in self.items)


@dataclass(slots=True)
class OpenedInputs:
    """The inputs of one query, open at one time. Close it after the rows are read; otherwise it holds `since`
    forever."""

    inputs: dict[str, Input | ConstantInput] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def close(self) -> None:
        for snapshot in self.snapshots:
            snapshot.close()


def open_inputs(
    collections: Collections,
    catalog: CatalogState,
    bound: BoundQuery,
    ts: int,
    *,
    system: SystemRows | None = None,
    pending: Pending | None = None,
) -> OpenedInputs:
    """Every input of the query at `ts`, with a transaction's `pending` writes on top. `system` returns the
    rows of system relations; without it the query must use none. Blocks."""
    opened = OpenedInputs()
    try:
        for placeholder, relation_id in bound.inputs.items():
            used = bound.used.get(placeholder, frozenset())
            if is_system(relation_id):
                if system is None:
                    raise Internal(f"system relation {relation_id} is read outside of a session")
                opened.inputs[placeholder] = ConstantInput(system(relation_id))
                continue
            item = catalog.relation(relation_id)
            if isinstance(item, SourceProgress):
                opened.inputs[placeholder] = ConstantInput(collections.progress(item, ts))
                continue
            if not isinstance(item, Table | Source | SourceTable | MaterializedView):
                raise Internal(f"{item.name} is no collection")
            snapshot = collections.snapshot(item, ts)
            opened.snapshots.append(snapshot)
            columns = [name for name in physical_names(snapshot.desc) if name in used]
            extra = pending(item.shard) if pending is not None and isinstance(item, Table) else None
            opened.inputs[placeholder] = Input(snapshot, columns, extra)
    except BaseException:
        opened.close()
        raise
    return opened
