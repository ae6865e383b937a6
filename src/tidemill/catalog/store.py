"""The durable catalog: a shard of versioned items, and the one place where it changes.

Opened by a server after its environment, before it serves. Promises: `transact` is durable before its state
is seen; changes happen one at a time, each at a time of its own on the one clock, and never in the middle of
a transaction's commit; what was acknowledged is there after a crash. A table's shard exists before the entry
that names it, and goes after the entry that retracts it: a crash in between leaves files that nobody refers
to, never a name without its shard.

The shard's rows are (id, body): one per item (`codec`), one that holds the next free id, and one per dropped
shard whose files are still there.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog import codec
from tidemill.catalog.items import BUILTINS, DEFAULT_DATABASE, DEFAULT_ROLE, Builtins, Item, Table, is_system
from tidemill.catalog.ops import CreateDatabase, CreateRole, Op, apply_all
from tidemill.catalog.state import CatalogState
from tidemill.errors import DataCorrupted, TidemillError, UndefinedObject
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.outcome import Fenced
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard, ShardExists
from tidemill.persist.txns.request import conflict, merge
from tidemill.time.bounds import MAX_TIME
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import TEXT, Column, RelationDesc

log = logging.getLogger(__name__)

FP_BEFORE_PUT = failpoints.register(
    "catalog.before_put", "shards of new tables exist, the catalog does not know them"
)
FP_PUT = failpoints.register("catalog.put", "a catalog change is durable, nobody knows yet")

CATALOG_SHARD = "catalog"
CATALOG_DESC = RelationDesc((Column("id", TEXT, nullable=False), Column("body", TEXT, nullable=False)))

# The row that holds the next free id, and the prefix of rows that name shards to be deleted. No item's id
# looks like these.
_NEXT_ID = "next_id"
DROPPED = "dropped:"

# How long what the catalog was can be asked for. Its changes are few and small.
RETAIN_MS = 7 * 24 * 3600 * 1000
# What a table keeps without RETAIN HISTORY FOR: an hour, so that AS OF works for what one has just seen.
DEFAULT_RETAIN_MS = 3600 * 1000
# Since moves when this share of the retention has passed, and not more often than this.
SINCE_STEPS = 10
SINCE_STEP_MS = 1000
# Files of a dropped table stay this long: a statement that was planned before the drop may be about to open
# them.
DROP_GRACE_SECONDS = 60.0


class Catalog:
    """Thread-safe. `state` is replaced, never changed."""

    def __init__(self, environment: Environment, shard: Shard, builtins: Builtins) -> None:
        """Use `Catalog.open`."""
        self._environment = environment
        self._shard = shard
        self._builtins = builtins
        self._lock = threading.Lock()
        # Row id -> body as it stands in the shard: a row is retracted by value.
        self._rows: dict[str, str] = {}
        self._state = CatalogState(builtins.items, next_id=1, time=0)
        # Shard -> when (monotonic) its table was dropped here; those of earlier processes may go at once.
        self._dropped_at: dict[str, float] = {}

    @staticmethod
    def open(environment: Environment, builtins: Builtins = BUILTINS) -> Catalog:
        """Read the catalog, or make it in a new directory; items of an older format are rewritten."""
        try:
            shard = environment.open_shard(CATALOG_SHARD)
        except ShardMissing:
            try:
                shard = environment.create_shard(CATALOG_SHARD, CATALOG_DESC)
            except ShardExists:
                shard = environment.open_shard(CATALOG_SHARD)
        catalog = Catalog(environment, shard, builtins)
        catalog._load()
        return catalog

    @property
    def state(self) -> CatalogState:
        """What exists now."""
        return self._state

    def state_as_of(self, time: int) -> CatalogState:
        """What existed at `time`; raises InvalidAsOf when that is forgotten, NotYetReadable when it is to
        come."""
        rows = self._read(time, self._environment.txns.readable_upper(CATALOG_SHARD))
        return self._state_of(rows, time)

    def transact(
        self, ops: Sequence[Op], *, contents: pa.Table | None = None, reads: Mapping[str, int] | None = None
    ) -> CatalogState:
        """Make all of the changes, or none, durably; returns the state after them. `contents` are the updates
        (physical columns and `mz_diff`) that the one table which `ops` create starts with; `reads` are the
        shards that they were read from, with the times: SerializationFailure when one has changed since."""
        with self._lock, self._environment.txns.paused():
            for shard_id, read_at in (reads or {}).items():
                if (changed_at := self._environment.txns.last_write(shard_id)) > read_at:
                    raise conflict(shard_id, read_at, changed_at)
            old = self._state
            oracle = self._environment.oracle
            ts = oracle.write_ts()
            created: list[str] = []
            try:
                new = apply_all(old, ops, time=ts)
                self._move_shards(old, new, ts, created)
                if contents is not None:
                    self._fill(created, contents, ts)
                gone = _dropped_tables(old, new)
                rows = self._rows_of(new) | {r: b for r, b in self._rows.items() if r.startswith(DROPPED)}
                rows |= {DROPPED + t.shard: _dropped_body(t.shard) for t in gone}
                self._write(rows, ts)
            except Exception:
                self._discard(created)
                raise
            finally:
                oracle.complete(ts)
            # Only now: who sees a new table reads at its time or later, before which it has no contents.
            self._state = new
            for table in gone:
                self._dropped_at[table.shard] = time.monotonic()
                self._environment.txns.forget(table.shard, _dropped_error(table))
            return new

    def sweep(self) -> int:
        """Delete the files of dropped tables whose time has come; returns how many tables. For the
        maintenance loop."""
        count = 0
        for row in [r for r in self._rows if r.startswith(DROPPED)]:
            shard_id = row.removeprefix(DROPPED)
            dropped_at = self._dropped_at.get(shard_id)
            if dropped_at is not None and time.monotonic() - dropped_at < DROP_GRACE_SECONDS:
                continue
            if self._is_read(shard_id):
                continue
            self._environment.drop_shard(shard_id)
            with self._lock, self._environment.txns.paused():
                ts = self._environment.oracle.write_ts()
                try:
                    self._write({r: b for r, b in self._rows.items() if r != row}, ts)
                finally:
                    self._environment.oracle.complete(ts)
            self._dropped_at.pop(shard_id, None)
            count += 1
        return count

    def maintain(self, default_retain_ms: int = DEFAULT_RETAIN_MS) -> None:
        """Let history go that nobody asked to keep, of the tables and of the catalog itself, and sweep
        dropped tables. Compaction of what became equal is the environment's."""
        now = self._environment.oracle.now()
        retained = {
            t.shard: default_retain_ms if t.retain_history_ms is None else t.retain_history_ms
            for t in self._state.tables()
        }
        retained[CATALOG_SHARD] = RETAIN_MS
        for shard in self._environment.open_shards():
            if (retain := retained.get(shard.id)) is not None:
                _follow(shard, now, retain)
        self.sweep()

    # -- shards of tables

    def _move_shards(self, old: CatalogState, new: CatalogState, ts: int, created: list[str]) -> None:
        for item in new.items.values():
            if not isinstance(item, Table):
                continue
            before = old.items.get(item.id)
            if not isinstance(before, Table):
                created.append(item.shard)
                self._environment.create_shard(item.shard, storage_desc(item.desc), since=ts)
            elif len(before.desc.columns) != len(item.desc.columns):
                # Before the entry: a column that the catalog does not know yet hurts nobody. It may be there
                # from an attempt that failed.
                shard = self._environment.open_shard(item.shard)
                shard.evolve(storage_desc(item.desc))

    def _fill(self, created: Sequence[str], contents: pa.Table, ts: int) -> None:
        """What the new table holds from its first moment on; before the entry that names it."""
        (shard_id,) = created
        shard = self._environment.open_shard(shard_id)
        updates = merge([contents], shard.desc, ts)
        if updates is not None:
            part = shard.write_part(updates, job=f"catalog-e{self._environment.epoch}")
            shard.compare_and_append([part], shard.upper, ts + 1)

    def _discard(self, created: list[str]) -> None:
        """Shards of a change that surely did not happen. Best effort: what stays takes a little space."""
        for shard_id in created:
            try:
                self._environment.drop_shard(shard_id)
            except (TidemillError, OSError) as e:
                log.warning("the shard %s of a table that was not created stays behind: %s", shard_id, e)

    def _is_read(self, shard_id: str) -> bool:
        """Whether somebody in this process holds a time of the shard."""
        shard = next((s for s in self._environment.open_shards() if s.id == shard_id), None)
        return shard is not None and shard.downgrade_since(MAX_TIME) < MAX_TIME

    # -- rows

    def _load(self) -> None:
        upper = upper_of(self._shard)
        self._rows = self._read(upper - 1, upper) if upper else {}
        for row in self._rows:
            if row.startswith(DROPPED):
                self._environment.txns.forget(row.removeprefix(DROPPED))
        if _NEXT_ID not in self._rows:
            # A new directory, or one whose first server died right here.
            self.transact([CreateDatabase(DEFAULT_DATABASE), CreateRole(DEFAULT_ROLE)])
            return
        self._state = self._state_of(self._rows, upper - 1)
        if self._rows_of(self._state).items() - self._rows.items():
            log.info("rewriting catalog items of an older format")
            self.transact([])

    def _read(self, as_of: int, readable: int) -> dict[str, str]:
        with self._shard.snapshot(as_of, readable=readable) as snapshot:
            table = snapshot.read()
        rows: dict[str, str] = {}
        ids, bodies, diffs = (table.column(n).to_pylist() for n in ("id", "body", DIFF_COLUMN))
        for row, body, diff in zip(ids, bodies, diffs, strict=True):
            if diff != 1 or row in rows:
                raise DataCorrupted(f"the catalog has item {row} other than once")
            rows[row] = body
        return rows

    def _state_of(self, rows: Mapping[str, str], time: int) -> CatalogState:
        items: list[Item] = list(self._builtins.items)
        items += [codec.decode(r, b) for r, b in rows.items() if r != _NEXT_ID and not r.startswith(DROPPED)]
        next_id = int(json.loads(rows.get(_NEXT_ID, '{"next": 1}'))["next"])
        return CatalogState(items, next_id=next_id, time=time)

    @staticmethod
    def _rows_of(state: CatalogState) -> dict[str, str]:
        rows = {i.id: codec.encode(i) for i in state.items.values() if not is_system(i.id)}
        rows[_NEXT_ID] = json.dumps({"format": codec.FORMAT, "kind": "next_id", "next": state.next_id})
        return rows

    def _write(self, rows: dict[str, str], ts: int) -> None:
        """Replace the shard's rows by `rows` at `ts`. Raises when surely nothing happened."""
        added, retracted = rows.items() - self._rows.items(), self._rows.items() - rows.items()
        updates = [(r, b, 1) for r, b in added] + [(r, b, -1) for r, b in retracted]
        if updates:
            table = pa.table(
                {
                    "id": pa.array([r for r, _, _ in updates], pa.string()),
                    "body": pa.array([b for _, b, _ in updates], pa.string()),
                    TIME_COLUMN: pa.array([ts] * len(updates), pa.int64()),
                    DIFF_COLUMN: pa.array([d for _, _, d in updates], pa.int64()),
                }
            )
            try:
                part = self._shard.write_part(table, job=f"catalog-e{self._environment.epoch}")
                failpoints.hit(FP_BEFORE_PUT)
                append_settled(self._shard, part, upper_of(self._shard), ts + 1, after_put=FP_PUT)
            except Fenced as e:
                self._environment.oracle.lose(e)
                raise
        self._rows = rows


def _follow(shard: Shard, now: int, retain_ms: int) -> None:
    """Move since to the retention's distance, in steps, and only where there is history to let go: every move
    is an entry of the log sooner or later, and an idle shard should have none."""
    target = now - retain_ms
    if (
        target - shard.since >= max(retain_ms // SINCE_STEPS, SINCE_STEP_MS)
        and upper_of(shard) > shard.since + 1
    ):
        shard.downgrade_since(target)


def storage_desc(desc: RelationDesc) -> RelationDesc:
    """The relation as its shard keeps it: whether a column may be null is the catalog's to say, and
    changes."""
    return RelationDesc(tuple(Column(c.name, c.type) for c in desc.columns))


def _dropped_tables(old: CatalogState, new: CatalogState) -> list[Table]:
    return [t for t in old.tables() if t.id not in new.items and not is_system(t.id)]


def _dropped_body(shard_id: str) -> str:
    return json.dumps({"format": codec.FORMAT, "kind": "dropped", "shard": shard_id})


def _dropped_error(table: Table) -> TidemillError:
    return UndefinedObject(
        f'relation "{table.name}" does not exist', detail="It was dropped meanwhile.", sqlstate="42P01"
    )
