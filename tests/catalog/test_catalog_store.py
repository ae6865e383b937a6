"""The durable catalog: the model again over a shard with restarts, history, crashes, formats, dropped
tables."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from catalog.test_catalog_model import CatalogMachine
from tidemill import failpoints
from tidemill.catalog import codec, store
from tidemill.catalog.items import Table
from tidemill.catalog.ops import AddColumnOp, AlterSystemOp, CreateTableOp, CreateViewOp, DropOp, Op, RenameOp
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import CATALOG_SHARD, Catalog
from tidemill.errors import SerializationFailure, TidemillError, UndefinedObject, Unsupported
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.outcome import Fenced
from tidemill.persist.shard import Shard
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4, nullable=False), Column("b", TEXT)))


class DurableMachine(CatalogMachine):
    """The naive model against a catalog that is closed and opened again, and asked for its past."""

    def begin(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.env = Environment.open(self.folder)
        self.catalog = Catalog.open(self.env)
        self.state = self.catalog.state
        self.past: list[tuple[int, CatalogState]] = [(self.state.time, self.state)]

    def transact(self, ops: list[Op]) -> CatalogState:
        self.state = self.catalog.transact(ops)
        assert self.state.time > self.past[-1][0]
        self.past.append((self.state.time, self.state))
        return self.state

    @rule()
    def reopen(self) -> None:
        before = self.state
        self.env.close()
        self.env = Environment.open(self.folder)
        self.catalog = Catalog.open(self.env)
        self.state = self.catalog.state
        assert dict(self.state.items) == dict(before.items) and self.state.next_id == before.next_id

    @rule()
    def look_back(self) -> None:
        for (at, state), (after, _) in list(zip(self.past, self.past[1:], strict=False))[-3:]:
            for t in (at, after - 1):
                assert dict(self.catalog.state_as_of(t).items) == dict(state.items)

    def teardown(self) -> None:
        if hasattr(self, "env"):
            self.env.close()
            shutil.rmtree(self.folder)


TestDurableCatalog = DurableMachine.TestCase
TestDurableCatalog.settings = settings(
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment.open(str(tmp_path / "data"))
    yield env
    failpoints.arm("")
    env.close()


def public(catalog: Catalog) -> str:
    return catalog.state.resolve_schema(["public"], "materialize").id


def table(catalog: Catalog, name: str) -> Table:
    found = catalog.state.resolve([name], "materialize", ["public"])
    assert isinstance(found, Table)
    return found


def test_a_new_directory(env: Environment) -> None:
    catalog = Catalog.open(env)
    state = catalog.state
    assert [d.name for d in state.databases()] == ["materialize"]
    schemas = [s.name for s in state.schemas(state.database("materialize").id)]
    assert schemas == ["public", "mz_catalog", "mz_internal", "pg_catalog", "information_schema"]
    assert state.role("mz_system").superuser and not state.role("materialize").superuser
    assert Catalog.open(env).state.items == state.items


def test_a_table_has_its_shard_before_its_name(env: Environment) -> None:
    catalog = Catalog.open(env)
    state = catalog.transact([CreateTableOp(public(catalog), "t", DESC), AlterSystemOp("x", "1")])
    shard = env.open_shard(table(catalog, "t").shard)
    assert shard.since == state.time and [c.nullable for c in shard.desc.columns] == [True, True]
    catalog.transact([AddColumnOp(table(catalog, "t").id, Column("c", TEXT))])
    assert shard.desc.names == ["a", "b", "c"]
    updates = pa.table(
        {"a": pa.array([1], pa.int32()), "b": ["x"], "c": ["y"], "mz_diff": pa.array([1], pa.int64())}
    )
    env.txns.commit({shard.id: updates}).result()
    catalog.transact([RenameOp(table(catalog, "t").id, "u")])
    assert table(catalog, "u").shard == shard.id


def test_drop(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog.open(env)
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    dropped = table(catalog, "t")
    catalog.transact([CreateViewOp(public(catalog), "v", "SELECT a FROM t", DESC, (dropped.id,))])
    shard = env.open_shard(dropped.shard)
    hold = shard.hold(shard.since)
    catalog.transact([DropOp(dropped.id, cascade=True)])
    updates = pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "mz_diff": pa.array([1], pa.int64())})
    with pytest.raises(UndefinedObject, match='relation "t" does not exist'):
        env.txns.commit({dropped.shard: updates}).result()
    # Its files stay for a while, and as long as somebody reads them.
    assert catalog.sweep() == 0
    monkeypatch.setattr(store, "DROP_GRACE_SECONDS", 0.0)
    assert catalog.sweep() == 0
    hold.release()
    assert catalog.sweep() == 1 and catalog.sweep() == 0
    with pytest.raises(ShardMissing):
        Shard.open(env.blobs, dropped.shard, epoch=None)
    assert not [r for r in catalog._rows if r.startswith("dropped:")]  # pyright: ignore[reportPrivateUsage]
    # The id is not used again.
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    assert table(catalog, "t").id != dropped.id and table(catalog, "t").shard != dropped.shard


def test_history_goes_after_its_time(env: Environment) -> None:
    catalog = Catalog.open(env)
    catalog.transact([CreateTableOp(public(catalog), "t", DESC, retain_history_ms=2_000)])
    shard = env.open_shard(table(catalog, "t").shard)
    created = shard.since
    updates = pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "mz_diff": pa.array([1], pa.int64())})
    ts = env.txns.commit({shard.id: updates}).result()
    env.txns.apply_until(shard.id, ts)
    catalog.maintain()
    assert shard.since == created
    env.oracle.advance_to(ts + 10_000)
    with shard.hold(created):
        catalog.maintain()
        assert shard.since == created  # held
    catalog.maintain()
    assert ts < shard.since <= env.oracle.now() - 2_000
    # Nothing happens to it any more: since stays, however late it is.
    stays = shard.since
    env.oracle.advance_to(ts + 100_000)
    catalog.maintain()
    assert shard.since == stays


def test_files_of_a_dropped_table_are_swept_by_the_next_server(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    env = Environment.open(url)
    catalog = Catalog.open(env)
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    dropped = table(catalog, "t")
    catalog.transact([DropOp(dropped.id)])
    env.close()
    env = Environment.open(url)
    assert Catalog.open(env).sweep() == 1
    with pytest.raises(ShardMissing):
        env.open_shard(dropped.shard)
    env.close()


@pytest.mark.parametrize("where", ["persist.part.before_fsync", "catalog.before_put"])
def test_a_full_disk(env: Environment, where: str) -> None:
    catalog = Catalog.open(env)
    before = catalog.state
    failpoints.arm(f"{where}=enospc")
    with pytest.raises((TidemillError, OSError)):
        catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    assert catalog.state is before
    assert {i.path.split("/")[1] for i in env.blobs.list("shards")} == {"catalog", "clock", "txns"}
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    assert Catalog.open(env).state.items == catalog.state.items


@pytest.mark.parametrize(
    ("where", "written"),
    [
        ("persist.part.before_fsync=enospc", False),  # the rows' new values
        ("catalog.before_put=enospc", False),
        ("persist.entry.temp_written=enospc@1", False),  # the catalog's entry
        ("persist.entry.temp_written=enospc@2", False),  # the shard's: the catalog's is taken back
        ("persist.entry.temp_written=enospc@2;catalog.before_put=enospc@2", False),  # and that fails too
        ("catalog.put=eio", True),
        ("catalog.widened=eio", True),
    ],
)
def test_a_column_is_added_whole_or_not_at_all(env: Environment, where: str, written: bool) -> None:
    catalog = Catalog.open(env)
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    t = table(catalog, "t")
    old = {"a": pa.array([1], pa.int32()), "b": ["x"]}
    env.txns.commit({t.shard: pa.table({**old, "mz_diff": pa.array([1], pa.int64())})}).result()
    env.txns.apply_until(t.shard, env.oracle.read_ts())
    contents = pa.table(
        {
            "a": pa.array([1, 1], pa.int32()),
            "b": ["x", "x"],
            "c": pa.array([None, "new"], pa.string()),
            "mz_diff": pa.array([-1, 1], pa.int64()),
        }
    )
    add = AddColumnOp(t.id, Column("c", TEXT), "'new'")
    failpoints.arm(where)
    if written:
        catalog.transact([add], contents=contents)
    else:
        with pytest.raises((TidemillError, OSError)):
            catalog.transact([add], contents=contents)
        assert table(catalog, "t") == t
        # A server that begins here finds the same.
        items, catalog = dict(catalog.state.items), Catalog.open(env)
        assert dict(catalog.state.items) == items
        catalog.transact([add], contents=contents)
    failpoints.arm("")
    shard = env.open_shard(t.shard)
    assert shard.desc.names == table(catalog, "t").desc.names == ["a", "b", "c"]
    with shard.snapshot(env.oracle.read_ts(), readable=env.oracle.read_ts() + 1) as snapshot:
        rows = snapshot.read().to_pylist()
    assert rows == [{"a": 1, "b": "x", "c": "new", "mz_diff": 1, "mz_error": None}]
    # Nothing is left of what failed, but for the catalog's own.
    parts = {i.path for i in env.blobs.list(f"shards/{t.shard}/parts")}
    assert parts == {f"shards/{t.shard}/{part.path}" for part in shard.parts}
    assert Catalog.open(env).state.items == catalog.state.items


def test_what_a_change_was_worked_out_from_must_not_have_changed(env: Environment) -> None:
    catalog = Catalog.open(env)
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    t = table(catalog, "t")
    catalog.transact([AddColumnOp(t.id, Column("c", TEXT))])
    with pytest.raises(SerializationFailure, match='"t" was altered meanwhile'):
        catalog.transact([AddColumnOp(t.id, Column("d", TEXT))], unaltered=t)
    catalog.transact([AddColumnOp(t.id, Column("d", TEXT))], unaltered=table(catalog, "t"))


def test_an_error_behind_the_commit_point_is_no_failure(env: Environment) -> None:
    catalog = Catalog.open(env)
    failpoints.arm("catalog.put=eio")
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    assert Catalog.open(env).state.items == catalog.state.items


def test_items_of_an_older_format_are_rewritten(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog.open(env)
    catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    monkeypatch.setattr(codec, "FORMAT", codec.FORMAT + 1)
    monkeypatch.setitem(codec.MIGRATIONS, codec.FORMAT - 1, lambda body: body)
    newer = Catalog.open(env)
    assert newer.state.items == catalog.state.items
    bodies = newer._rows.values()  # pyright: ignore[reportPrivateUsage]
    assert all(f'"format":{codec.FORMAT}' in b.replace(" ", "") for b in bodies)
    monkeypatch.undo()
    with pytest.raises(Unsupported, match="this version reads up to 1"):
        Catalog.open(env)


def test_a_catalog_that_was_taken_over(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    first = Environment.open(url)
    catalog = Catalog.open(first)
    second = Environment.open(url, take_over=True)
    successor = Catalog.open(second)
    with pytest.raises(TidemillError) as caught:
        catalog.transact([CreateTableOp(public(catalog), "t", DESC)])
    assert caught.value.sqlstate == "57P01" and (isinstance(caught.value, Fenced) or first.lost)
    assert successor.transact([]).items == successor.state.items
    assert second.open_shard(CATALOG_SHARD).epoch == second.epoch
    first.close()
    second.close()
