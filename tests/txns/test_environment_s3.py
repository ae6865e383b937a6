"""The environment on a real S3-compatible server: no LOCK file there, so the heartbeat and the epochs must
do."""

from __future__ import annotations

import pyarrow as pa
import pytest

from support.s3 import S3Server
from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError
from tidemill.persist import environment
from tidemill.persist.blob import open_blobs
from tidemill.persist.environment import DirectoryHeld, Environment
from tidemill.time import oracle
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("k", INT4),))


@pytest.mark.s3
def test_on_s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (environment, oracle):
        monkeypatch.setattr(module, "LEASE_MS", 3000)
    url = s3_server.fresh_url()
    # The server makes its bucket with the first object.
    open_blobs(url, s3_server.options).put("hello", b"hello")
    first = Environment.open(url, options=s3_server.options)
    catalog = Catalog.open(first)
    public = catalog.state.resolve_schema(["public"], "materialize").id
    catalog.transact([CreateTableOp(public, "t", DESC)])
    shard_id = catalog.state.tables()[0].shard
    updates = pa.table({"k": pa.array([1], pa.int32()), "mz_diff": pa.array([1], pa.int64())})
    ts = first.txns.commit({shard_id: updates}).result(timeout=120)
    with pytest.raises(DirectoryHeld):
        Environment.open(url, options=s3_server.options)
    second = Environment.open(url, options=s3_server.options, take_over=True)
    with pytest.raises(TidemillError):
        first.txns.commit({shard_id: updates}).result(timeout=120)
    assert Catalog.open(second).state.items == catalog.state.items
    at = second.oracle.read_ts()
    assert at > ts
    second.txns.apply_until(shard_id, at)
    with second.open_shard(shard_id).snapshot(at, readable=at + 1) as snapshot:
        assert snapshot.read().column("k").to_pylist() == [1]
    first.close()
    second.close()
