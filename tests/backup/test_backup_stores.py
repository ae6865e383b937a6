"""Backups in an object store, and directories restored into one: the client of object stores over memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from tidemill.backup.manifest import names, prune
from tidemill.backup.restore import NotEmpty, find, restore
from tidemill.backup.take import take
from tidemill.catalog.store import Catalog
from tidemill.persist import s3
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.environment import Environment
from tidemill.persist.history import history_of
from tidemill.persist.lease import CLOCK_SHARD
from tidemill.persist.shard import Shard
from tidemill.types.model import INT8, Column, RelationDesc

DESC = RelationDesc((Column("n", INT8),))


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Blobs]:
    def memory(*_: Any, **__: Any) -> MemoryStore:
        return MemoryStore()

    monkeypatch.setattr(s3, "S3Store", memory)
    return [open_blobs(f"s3://bucket/{name}") for name in ("backups", "copy", "again")]


def test_object_stores(tmp_path: Path, stores: list[Blobs]) -> None:
    place, copy, again = stores
    environment = Environment.open(str(tmp_path / "data"))
    try:
        Catalog.open(environment)
        environment.create_shard("left", DESC)
        rows = pa.table({"n": pa.array([1, 2], pa.int64()), "mz_diff": pa.array([1, 1], pa.int64())})
        environment.txns.apply_until("left", environment.txns.commit({"left": rows}).result(60))
        take(environment.blobs, place, None)
        environment.txns.apply_until("left", environment.txns.commit({"left": rows}).result(60))
        taken = take(environment.blobs, place, None)
        assert taken.copied < taken.manifest.bytes, "what the first has was copied again"
    finally:
        environment.close()
    prune(place, 1)
    assert names(place) == [taken.manifest.name]
    restore(place, find(place, None), copy, None)
    with pytest.raises(NotEmpty):
        restore(place, find(place, None), copy, None)
    # From the one store to the other: what was restored can be backed up.
    take(copy, place, None)
    restore(place, find(place, None), again, None)
    shard = Shard.open(again, "left", epoch=None)
    assert shard.upper is not None
    with shard.snapshot(shard.upper - 1) as snapshot:
        assert sum(snapshot.read().column("mz_diff").to_pylist()) == 4
    histories = {history_of(Shard.open(store, CLOCK_SHARD, epoch=None)).id for store in (copy, again)}
    assert len({environment.history.id, *histories}) == 3
