"""Errors of tables on their way into the stream: what the catalog upstream tells becomes messages of it.

Called by `receiver`, in its thread. `table_watch` finds out what is wrong with a table. The error must be
behind everything that is bound, because the shards may have all of that, and before the next change of the
table. So it stands in the transaction that announces the table again, or in one of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tidemill.sources.postgres.definition import ReplicatedTable, shown
from tidemill.sources.postgres.lsn import aligned
from tidemill.sources.postgres.pgoutput import FULL_IDENTITY, Relation, write_fault
from tidemill.sources.postgres.row_changes import table_error
from tidemill.sources.postgres.spool import Spool, framed
from tidemill.sources.postgres.table_marks import not_full
from tidemill.sources.postgres.table_watch import TableWatch

# How often tables and publication are looked at; and how often at most, when the stream hints at a change.
WATCH_SECONDS = 10.0
HINTED_SECONDS = 1.0


class TableFaults:
    """Those methods that look at the catalog raise UpstreamError."""

    def __init__(
        self, tables: Sequence[ReplicatedTable], bound: int, watch: TableWatch, spool: Spool
    ) -> None:
        self._tables = tables
        # How far transactions have times already.
        self._bound = bound
        self._watch = watch
        self._spool = spool
        # The outputs of each table.
        self.outputs: dict[int, list[int]] = {}
        for n, table in enumerate(tables):
            self.outputs.setdefault(table.relid, []).append(n)
        # Outputs whose errors are in the spool, behind what is bound.
        self._reported: set[int] = set()
        # Those of them that are in the open transaction, which may be cut off.
        self._unsettled: set[int] = set()
        # The partitioned table that was announced last; its partition follows.
        self._root: int | None = None
        # Whether this connection has looked at the tables behind what is bound, and when.
        self.looked = False
        self._looked_at = 0.0

    def connected(self) -> None:
        """A new connection; a transaction that was open comes again."""
        self._reported -= self._unsettled
        self._unsettled.clear()
        self._root, self.looked = None, False

    def committed(self) -> None:
        self._unsettled.clear()

    @property
    def due(self) -> bool:
        return time.monotonic() - self._looked_at > WATCH_SECONDS

    def announced(self, relation: Relation, *, new: bool) -> None:
        """A table is announced before its first change, and again when something about it or about the
        publication may have changed. Inside a transaction, before the change. `new`: in other words than
        before."""
        mine = self.outputs.get(relation.relid, ())
        if not mine:
            self._announced_partition(relation)
            return
        self._root = relation.relid if self._tables[mine[0]].partitioned else None
        now = time.monotonic()
        if new or now - self._looked_at > HINTED_SECONDS:
            self._add({n: text for n, text in self._found().items() if n in mine})
        # The others soon.
        self._looked_at = min(self._looked_at, now - WATCH_SECONDS + HINTED_SECONDS)

    def _announced_partition(self, relation: Relation) -> None:
        """A partitioned table is announced right before its partition, which says what old rows there are."""
        root, self._root = self._root, None
        if root is None or relation.identity == FULL_IDENTITY:
            return
        outputs = [n for n in self.outputs[root] if n not in self._reported]
        found = not_full(self._tables[self.outputs[root][0]].shown, shown(relation.schema, relation.name))
        self._add(dict.fromkeys(outputs, table_error(found.what, found.detail)))

    def look(self) -> None:
        """Between transactions. Errors become a transaction of their own behind the last one: its end is no
        position that a commit of PostgreSQL can have, because those are multiples of eight."""
        reached = max(self._spool.reached, self._bound)
        if self._spool.open or self._spool.reached < aligned(self._bound):
            return
        if aligned(reached + 1) > reached:
            return  # no number is left before the next position of PostgreSQL
        found = self._found()
        self._looked_at, self.looked = time.monotonic(), True
        if not found:
            # (What is bound may end with an error that is no more.)
            self._spool.advance(reached)
            return
        self._add(found)
        self._spool.commit(reached + 1)
        self.committed()

    def _add(self, faults: Mapping[int, str]) -> None:
        for output, text in faults.items():
            self._spool.add(framed(write_fault(output, text)))
            # What is received again is not read by shards that have it.
            if self._spool.reached >= aligned(self._bound):
                self._reported.add(output)
                self._unsettled.add(output)

    def _found(self) -> dict[int, str]:
        return {n: text for n, text in self._watch.faults().items() if n not in self._reported}
