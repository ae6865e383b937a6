"""A data directory as its files tell it, read by nobody's server: after a kill, before anything recovers.

What txns has committed and not yet applied counts as there: that is what its commit point promises. This is a
second, simpler reading of the recovery rules, so it also checks the first.
"""

from __future__ import annotations

from proof_ledger import Found, Update

from tidemill.catalog import codec
from tidemill.catalog.items import Table
from tidemill.catalog.store import CATALOG_SHARD
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.shard import Shard
from tidemill.persist.txns.record import TXNS_SHARD, Unapplied, unapplied
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.names import physical_names


class Store:
    """One look. Caches nothing: files that a sweeper took away must be missed."""

    def __init__(self, data_dir: str) -> None:
        self._blobs = open_blobs(data_dir)
        # The order matters while a server lives: what txns retracts is in its data shard by then.
        txns = self._open(TXNS_SHARD)
        self.closed = txns.upper or 0
        with txns.snapshot(self.closed - 1) as snapshot:
            self._unapplied = unapplied(snapshot.read())

    def _open(self, shard_id: str) -> Shard:
        return Shard.open(self._blobs, shard_id, epoch=None, cache=PartCache())

    def tables(self) -> dict[str, Table]:
        """By name; names are unique in the tests that look here."""
        shard = self._open(CATALOG_SHARD)
        assert shard.upper is not None
        with shard.snapshot(shard.upper - 1) as snapshot:
            rows = snapshot.read()
        found: dict[str, Table] = {}
        for row, body in zip(rows.column("id").to_pylist(), rows.column("body").to_pylist(), strict=True):
            if row != "next_id" and not row.startswith("dropped:"):
                item = codec.decode(row, body)
                if isinstance(item, Table):
                    found[item.name] = item
        return found

    def found(self, names: list[str]) -> Found:
        """The tables; one that was never made is empty."""
        tables = self.tables()
        updates: dict[str, list[Update]] = {}
        since = 0
        for name in names:
            updates[name] = []
            if name in tables:
                shard = self._open(tables[name].shard)
                updates[name] = self._updates(shard)
                since = max(since, shard.since)
        return Found(updates, self.closed, since)

    def _updates(self, shard: Shard) -> list[Update]:
        assert shard.upper is not None
        waiting: list[Unapplied] = [
            u for u in self._unapplied if u.shard_id == shard.id and u.time >= shard.upper
        ]
        columns = [*physical_names(shard.desc), TIME_COLUMN, DIFF_COLUMN]
        found: list[Update] = []
        for part in [*shard.parts, *(u.part for u in waiting)]:
            table = shard.reader.read(part, shard.desc).select(columns)
            values = [column.to_pylist() for column in table.columns]
            found += [(row[:-2], row[-2], row[-1]) for row in zip(*values, strict=True)]
        return found
