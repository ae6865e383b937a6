"""ADD COLUMN across two logs: the catalog's, which names the column, and the shard's, which holds it.

Called by `store`. One entry of the shard's log adds the column and its values for existing rows; that entry
is the commit point.

Order, and why:
1. The part with the new values of the rows is written: durable, invisible. A full disk fails here.
2. The entry of the catalog has the table with the new column, marked as unsettled (`Table.unsettled_from`).
3. The entry of the shard adds columns and part, or neither.
4. The state with the column becomes visible. The next entry of the catalog removes the mark.

A crash between 2 and 3 leaves a mark and a shard without the column. The next process that opens the catalog
removes the column; it was never reported and nobody could write it. After 3 the shard has the column, and it
stays. The opposite order would fail: a shard that is wider than its table accepts no writes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog.items import Table
from tidemill.catalog.state import CatalogState
from tidemill.errors import DataCorrupted, Internal
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.part import Part, write_part
from tidemill.persist.settle import evolve_settled
from tidemill.persist.shard import Shard
from tidemill.persist.txns.request import merge
from tidemill.types.model import Column, RelationDesc

log = logging.getLogger(__name__)

FP_WIDENED = failpoints.register("catalog.widened", "a table's shard has its new column, nobody knows yet")


def storage_desc(desc: RelationDesc) -> RelationDesc:
    """The relation as its shard keeps it: whether a column may be null is the catalog's to say, and
    changes."""
    return RelationDesc(tuple(Column(c.name, c.type) for c in desc.columns), desc.hidden)


@dataclass(frozen=True, slots=True)
class Widening:
    """Step 1 is done."""

    table: Table
    columns_before: int
    shard: Shard
    # The rows' new values, and the upper after them.
    parts: Sequence[Part]
    upper: int

    @property
    def entry(self) -> Table:
        """The table as step 2 writes it."""
        return replace(self.table, unsettled_from=self.columns_before)

    def commit(self) -> None:
        """Step 3. Raises when surely nothing happened."""
        desc = storage_desc(self.table.desc)
        evolve_settled(self.shard, desc, self.parts, self.upper, after_put=FP_WIDENED)

    def discard(self) -> None:
        """It will not happen. Best effort: what stays is the sweeper's."""
        for part in self.parts:
            try:
                self.shard.delete_part(part)
            except Exception as e:
                log.warning("a part of a column that was not added is left to the sweeper: %s", e)


def prepare(
    environment: Environment, old: CatalogState, new: CatalogState, contents: pa.Table | None, ts: int
) -> Widening | None:
    """What gives a table of `new` the columns that it lacks in `old`; None where there is none. `contents`
    are updates of the wider table. No transaction may commit until it is over."""
    wider = [
        (before, table)
        for table in new.tables()
        if isinstance(before := old.items.get(table.id), Table)
        and len(before.desc.columns) < len(table.desc.columns)
    ]
    if not wider:
        return None
    if len(wider) > 1:
        raise Internal("only one table can get columns at a time")
    ((before, table),) = wider
    shard = environment.open_shard(table.shard)
    # Earlier commits precede it.
    environment.txns.apply_until(shard.id, ts)
    desc = storage_desc(table.desc)
    updates = None if contents is None else merge([contents], desc, ts)
    parts: list[Part] = []
    if updates is not None:
        job = f"catalog-e{environment.epoch}"
        parts.append(write_part(environment.blobs, shard.id, desc, updates, job))
    return Widening(table, len(before.desc.columns), shard, parts, ts + 1)


def settled(environment: Environment, table: Table) -> Table:
    """An unsettled table, as its shard defines it. The shard is fenced when it is read: the process that
    began to add the column cannot continue."""
    if table.unsettled_from is None:
        return table
    try:
        shard = environment.open_shard(table.shard)
    except (ShardMissing, DataCorrupted) as e:
        # Its reads will report the error; the other tables need not wait for it.
        log.error('whether table "%s" has its last column cannot be told: %s', table.name, e)
        return table
    if len(shard.desc.columns) >= len(table.desc.columns):
        return replace(table, unsettled_from=None)
    log.info('table "%s" does not get a column: the server ended while it was added', table.name)
    kept = table.unsettled_from
    return replace(
        table,
        desc=RelationDesc(table.desc.columns[:kept]),
        defaults=table.defaults[:kept],
        unsettled_from=None,
    )
