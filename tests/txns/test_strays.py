"""Shards that a dead server made for tables which never came to be: they go, and nothing else does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill import failpoints
from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.store import Catalog
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("k", INT4),))
ROWS = pa.table({"k": pa.array([1, 2], pa.int32()), "mz_diff": pa.array([1, 1], pa.int64())})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def create(catalog: Catalog, name: str, contents: pa.Table | None = None) -> str:
    public = catalog.state.resolve_schema(["public"], "materialize").id
    state = catalog.transact([CreateTableOp(public, name, DESC)], contents=contents)
    return next(t.shard for t in state.tables() if t.name == name)


def folders(url: str) -> list[str]:
    return sorted(os.listdir(f"{url}/shards"))


def die_creating(url: str, where: str, contents: pa.Table | None) -> None:
    child = os.fork()
    if child == 0:
        try:
            catalog = Catalog.open(Environment.open(url))
            failpoints.arm(f"{where}=kill")
            create(catalog, "never", contents)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("contents", [None, ROWS], ids=["empty", "filled"])
@pytest.mark.parametrize(
    "where", ["persist.entry.temp_written", "persist.create.after_entry0", "catalog.before_put"]
)
def test_a_table_that_was_never_created(url: str, where: str, contents: pa.Table | None) -> None:
    env = Environment.open(url)
    kept = create(Catalog.open(env), "kept", ROWS)
    env.close()
    before = folders(url)
    die_creating(url, where, contents)
    assert len(folders(url)) == len(before) + 1
    env = Environment.open(url)
    catalog = Catalog.open(env)
    catalog.sweep()
    assert folders(url) == before and kept in before
    # It can be created now, and stays.
    made = create(catalog, "never", contents)
    env.close()
    env = Environment.open(url)
    catalog = Catalog.open(env)
    catalog.sweep()
    assert folders(url) == sorted([*before, made])
    assert env.open_shard(made).state.rows == (0 if contents is None else 2)
    env.close()


def test_a_shard_that_holds_anything_else_is_left_alone(url: str) -> None:
    env = Environment.open(url)
    Catalog.open(env)
    env.create_shard("u900-1", DESC)
    env.txns.commit({"u900-1": ROWS}).result()
    env.create_shard("someone-elses", DESC)
    env.create_shard("u901-1", DESC)
    (Path(url) / "shards/u901-1/notes").write_text("by hand")
    env.close()
    before = folders(url)
    env = Environment.open(url)
    Catalog.open(env).sweep()
    assert folders(url) == before
    assert Shard.open(env.blobs, "u900-1", epoch=None).state.rows == 2
    env.close()


def test_a_mark_without_a_shard_goes(url: str) -> None:
    """A server died between deleting a dropped table's files and writing down that its mark went."""
    env = Environment.open(url)
    Catalog.open(env)
    env.create_shard("u900-1", DESC)
    env.close()
    env = Environment.open(url)
    env.blobs.delete_prefix("shards/u900-1")
    Catalog.open(env).sweep()
    env.maintain()
    assert "u900-1" not in env.txns.marks.shards()
    env.close()
    env = Environment.open(url)
    assert "u900-1" not in env.txns.marks.shards()
    env.close()
