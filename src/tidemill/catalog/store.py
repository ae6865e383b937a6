"""Catalog store: a shard of versioned items, and the only place where the catalog changes.

A server opens it after its environment, before it serves clients. Promises: `transact` is durable before its
state is visible. Changes happen one at a time, each at its own time of the one clock, and never during the
commit of a transaction. Acknowledged changes survive a crash. The shard of a table exists before the entry
that names it, and is deleted after the entry that retracts it. A crash in between leaves unreferenced files,
never a name without its shard. For ADD COLUMN see `add_column`.

The rows of the shard are (id, body): one per item (`codec`), one with the next free id, and one per dropped
shard whose files still exist.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog import codec
from tidemill.catalog.add_column import Widening, prepare, settled, storage_desc
from tidemill.catalog.items import (
    BUILTINS,
    DEFAULT_DATABASE,
    DEFAULT_ROLE,
    Builtins,
    Collection,
    Item,
    ItemId,
    Source,
    Table,
    is_system,
)
from tidemill.catalog.ops import CreateDatabaseOp, CreateRoleOp, Op, apply_all
from tidemill.catalog.retention import follow
from tidemill.catalog.sidecars import OWING
from tidemill.catalog.state import CatalogState
from tidemill.errors import DataCorrupted, SerializationFailure, TidemillError, UndefinedObject
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.outcome import Fenced
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard, ShardExists
from tidemill.persist.sweep import never_used
from tidemill.persist.txns.request import conflict, merge
from tidemill.time.bounds import MAX_TIME
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import TEXT, Column, RelationDesc

log = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[CatalogState, CatalogState], None]

FP_BEFORE_PUT = failpoints.register(
    "catalog.before_put", "shards of new tables exist, the catalog does not know them"
)
FP_PUT = failpoints.register("catalog.put", "a catalog change is durable, nobody knows yet")

CATALOG_SHARD = "catalog"
CATALOG_DESC = RelationDesc((Column("id", TEXT, nullable=False), Column("body", TEXT, nullable=False)))

# The row that holds the next free id, the prefix of rows that name shards to be deleted, and that of dropped
# sources that have something upstream. No item's id looks like these.
_NEXT_ID = "next_id"
DROPPED = "dropped:"
OWED = "owed:"
_NO_ITEMS = (_NEXT_ID, DROPPED, OWED)

# The shards that are made here (`ops`).
_OURS = re.compile(r"u\d+-\d+(-remap|-stash|-tally|-clock|-positions)?")

# How long earlier states of the catalog can be read. Its changes are few and small.
RETAIN_MS = 7 * 24 * 3600 * 1000
# Retention of a table without RETAIN HISTORY FOR: an hour, so that AS OF works for recent reads.
DEFAULT_RETAIN_MS = 3600 * 1000
# Files of a dropped table stay this long: a statement that was planned before the drop may be about to open
# them.
DROP_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class OwedSource:
    """A source that was dropped: its id, its name, and its definition as `Source.definition`."""

    id: ItemId
    name: str
    definition: str


class Catalog:
    """Thread-safe. `state` is replaced, never changed."""

    def __init__(self, environment: Environment, shard: Shard, builtins: Builtins) -> None:
        """Use `Catalog.open`."""
        self._environment = environment
        self._shard = shard
        self._builtins = builtins
        self._lock = threading.Lock()
        # Row id -> body as stored in the shard: a row is retracted by value.
        self._rows: dict[str, str] = {}
        self._state = CatalogState(builtins.items, next_id=1, time=0)
        # Shards of tables that an earlier server made and died before it named them here.
        self._strays: list[str] = []
        # Shard -> when (monotonic) its table was dropped here; those of earlier processes may be deleted at
        # once.
        self._dropped_at: dict[str, float] = {}
        self._listeners: list[Listener] = []

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
        catalog._find_strays()
        return catalog

    @property
    def state(self) -> CatalogState:
        """What exists now."""
        return self._state

    def on_change(self, listener: Listener) -> None:
        """`listener` is called with the states before and after every change, in order, when the change is
        durable and seen. It must return at once, and not change the catalog."""
        self._listeners.append(listener)

    def state_as_of(self, time: int) -> CatalogState:
        """The state at `time`; raises InvalidAsOf before since, NotYetReadable in the future. A column that a
        crash kept from being added is visible from its entry until its removal."""
        rows = self._read(time, self._environment.txns.readable_upper(CATALOG_SHARD))
        return self._state_of(rows, time, lambda table: replace(table, unsettled_from=None))

    def transact(
        self,
        ops: Sequence[Op],
        *,
        contents: pa.Table | None = None,
        reads: Mapping[str, int] | None = None,
        unaltered: Table | None = None,
        before: Listener | None = None,
        owner: ItemId | None = None,
    ) -> CatalogState:
        """Make all of the changes, or none, durably; returns the state after them. `contents` are the updates
        (physical columns and `mz_diff`) of the change: the initial contents of the one table which `ops`
        create, or the values of the columns which `ops` add to one table. `reads` are the shards that the
        change was computed from, with the times, and `unaltered` the table as it was then:
        SerializationFailure when one has changed since. `before` is called with the states before and after
        the change when nothing of it is durable yet; an exception from it aborts the attempt. `owner` is the
        role that owns new items."""
        with self._lock, self._environment.txns.paused():
            for shard_id, read_at in (reads or {}).items():
                if (changed_at := self._environment.txns.last_write(shard_id)) > read_at:
                    raise conflict(shard_id, read_at, changed_at)
            old = self._state
            if unaltered is not None and old.get(unaltered.id, Table) != unaltered:
                raise SerializationFailure(
                    f'relation "{unaltered.name}" was altered meanwhile', hint="Run the statement again."
                )
            oracle = self._environment.oracle
            ts = oracle.write_ts()
            created: list[str] = []
            widening: Widening | None = None
            try:
                new = apply_all(old, ops, time=ts, owner=owner)
                if before is not None:
                    before(old, new)
                self._create_shards(old, new, ts, created)
                widening = prepare(self._environment, old, new, contents, ts)
                if contents is not None and widening is None:
                    self._fill(created, contents, ts)
                gone = _dropped(old, new)
                dropped = {r: b for r, b in self._rows.items() if r.startswith((DROPPED, OWED))}
                rows = self._rows_of(new) | dropped
                rows |= {DROPPED + c.shard: _dropped_body(c.shard) for c in gone}
                rows |= {OWED + s.id: _owed_body(s) for s in _owing(old, new)}
                if widening is not None:
                    rows[widening.table.id] = codec.encode(widening.entry)
                self._write(rows, ts)
                if widening is not None:
                    self._widen(widening, self._rows_of(old) | dropped)
            except Exception:
                self._discard(created)
                if widening is not None:
                    widening.discard()
                raise
            finally:
                oracle.complete(ts)
            # Only now: who sees a new table reads at its time or later, before which it has no contents.
            self._state = new
            for collection in gone:
                self._dropped_at[collection.shard] = time.monotonic()
                self._environment.txns.forget(collection.shard, _dropped_error(collection))
            for listener in self._listeners:
                listener(old, new)
            changed = [t.shard for t in new.tables() if t is not old.items.get(t.id)]
            self._environment.txns.note([CATALOG_SHARD, *changed])
            return new

    def sweep(self) -> int:
        """Delete the files of dropped tables that are due; returns the number of tables. For the maintenance
        loop."""
        count = 0
        for row in [r for r in self._rows if r.startswith(DROPPED)]:
            shard_id = row.removeprefix(DROPPED)
            dropped_at = self._dropped_at.get(shard_id)
            if dropped_at is not None and time.monotonic() - dropped_at < DROP_GRACE_SECONDS:
                continue
            if self._is_read(shard_id):
                continue
            self._environment.drop_shard(shard_id)
            self._forget(row)
            self._dropped_at.pop(shard_id, None)
            count += 1
        while self._strays:
            self._drop_stray(self._strays[-1])
            self._strays.pop()
        return count

    @property
    def owed(self) -> list[OwedSource]:
        """Sources that were dropped, and may have left something upstream, until `settle`."""
        rows = {r: json.loads(b) for r, b in self._rows.items() if r.startswith(OWED)}
        return [OwedSource(r.removeprefix(OWED), b["name"], b["definition"]) for r, b in rows.items()]

    def settle(self, source_id: ItemId) -> None:
        """Nothing of the dropped source is upstream any more, or can be removed."""
        if OWED + source_id in self._rows:
            self._forget(OWED + source_id)

    def _forget(self, row: str) -> None:
        with self._lock, self._environment.txns.paused():
            if row not in self._rows:
                return
            ts = self._environment.oracle.write_ts()
            try:
                self._write({r: b for r, b in self._rows.items() if r != row}, ts)
            finally:
                self._environment.oracle.complete(ts)
            self._environment.txns.note([CATALOG_SHARD])

    def maintain(
        self, default_retain_ms: int = DEFAULT_RETAIN_MS, kept: Container[str] = frozenset()
    ) -> None:
        """Release history beyond the retention, of the tables (except those whose ids are `kept`) and of the
        catalog itself, and sweep dropped tables. The environment compacts equal updates."""
        now = self._environment.oracle.now()
        retained = {CATALOG_SHARD: RETAIN_MS}
        for table in self._state.tables():
            if table.id in kept:
                continue
            own = table.retain_history_ms
            retained[table.shard] = default_retain_ms if own is None else own
        for shard in self._environment.open_shards():
            if (retain := retained.get(shard.id)) is not None:
                follow(shard, now, retain)
        self.sweep()

    # -- shards of tables

    def _create_shards(self, old: CatalogState, new: CatalogState, ts: int, created: list[str]) -> None:
        known = {c.shard for c in old.collections()}
        for collection in new.collections():
            if collection.shard not in known:
                created.append(collection.shard)
                desc = storage_desc(collection.desc)
                if collection.foreign:
                    self._environment.create_foreign(collection.shard, desc)
                else:
                    self._environment.create_shard(collection.shard, desc, since=ts)

    def _widen(self, widening: Widening, before: dict[str, str]) -> None:
        """The catalog's entry exists. Write the shard's entry, or restore the catalog's state `before`."""
        try:
            widening.commit()
        except Exception as e:
            log.error("a column could not be added, it is taken back: %s", e)
            ts = self._environment.oracle.write_ts()
            try:
                self._write(before, ts)
            except (TidemillError, OSError, failpoints.FailpointError) as again:
                # The next change writes the content of the state, and the next server checks the shard.
                log.error("the column stands in the catalog until its next change: %s", again)
            finally:
                self._environment.oracle.complete(ts)
            raise

    def _fill(self, created: Sequence[str], contents: pa.Table, ts: int) -> None:
        """Write the initial contents of the new table, before the entry that names it."""
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

    def _find_strays(self) -> None:
        """Call before anything is created here. The catalog is at our epoch, so no earlier server can name
        them any more."""
        known = {c.shard for c in self._state.collections()}
        known |= {r.removeprefix(DROPPED) for r in self._rows if r.startswith(DROPPED)}
        self._strays = [s for s in self._environment.shard_ids() if _OURS.fullmatch(s) and s not in known]

    def _drop_stray(self, shard_id: str) -> None:
        if never_used(self._environment.blobs, shard_id, creator="catalog-e"):
            log.info("deleting shard %s of a table that was never created", shard_id)
            self._environment.drop_shard(shard_id)
        else:
            log.warning("shard %s holds rows, but no table: it is left alone", shard_id)

    def _is_read(self, shard_id: str) -> bool:
        """Whether this process holds a time of the shard."""
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
            self.transact([CreateDatabaseOp(DEFAULT_DATABASE), CreateRoleOp(DEFAULT_ROLE)])
            return
        self._state = self._state_of(self._rows, upper - 1, partial(settled, self._environment))
        if self._rows_of(self._state).items() - self._rows.items():
            log.info("rewriting catalog items of an older format or an unfinished change")
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

    def _state_of(self, rows: Mapping[str, str], time: int, settle: Callable[[Table], Table]) -> CatalogState:
        items: list[Item] = list(self._builtins.items)
        found = [codec.decode(r, b) for r, b in rows.items() if not r.startswith(_NO_ITEMS)]
        items += [settle(item) if isinstance(item, Table) else item for item in found]
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


def _dropped(old: CatalogState, new: CatalogState) -> list[Collection]:
    kept = {c.shard for c in new.collections()}
    return [c for c in old.collections() if c.shard not in kept and not is_system(c.item.id)]


def _owing(old: CatalogState, new: CatalogState) -> list[Source]:
    return [s for s in old.sources() if s.type in OWING and new.items.get(s.id) is None]


def _owed_body(source: Source) -> str:
    body = {"format": codec.FORMAT, "kind": "owed", "name": source.name, "definition": source.definition}
    return json.dumps(body)


def _dropped_body(shard_id: str) -> str:
    return json.dumps({"format": codec.FORMAT, "kind": "dropped", "shard": shard_id})


def _dropped_error(collection: Collection) -> TidemillError:
    return UndefinedObject(
        f'relation "{collection.item.name}" does not exist',
        detail="It was dropped meanwhile.",
        sqlstate="42P01",
    )


def next_id(shard: Shard) -> int:
    """The next number of an item, in a catalog that is opened for reading."""
    upper = upper_of(shard)
    if upper:
        with shard.snapshot(upper - 1) as snapshot:
            table = snapshot.read()
        rows = dict(zip(table.column("id").to_pylist(), table.column("body").to_pylist(), strict=True))
        if _NEXT_ID in rows:
            return int(json.loads(rows[_NEXT_ID])["next"])
    return 1
