"""The replication slot of a PostgreSQL source that was dropped goes with it, whenever the server ends."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.upstream_postgres import UpstreamDatabase
from tidemill.catalog.connection_ops import AlterConnectionOp, CreateConnectionOp
from tidemill.catalog.items import Connection, Source
from tidemill.catalog.ops import DropOp
from tidemill.catalog.source_ops import CreateSourceOp
from tidemill.catalog.store import Catalog
from tidemill.ingest import service
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.persist.environment import Environment
from tidemill.sources.postgres.definition import GAUGE
from tidemill.sources.postgres.describe import look

pytestmark = pytest.mark.server

WAIT_SECONDS = 120.0


@dataclass
class World:
    upstream: UpstreamDatabase
    folder: Path
    environment: Environment
    catalog: Catalog

    def ingest(self) -> Ingestion:
        return Ingestion(self.environment, self.catalog, LocalRunner(str(self.folder / "state")))

    def restart(self) -> None:
        self.environment.close()
        self.environment = Environment.open(str(self.folder / "data"))
        self.catalog = Catalog.open(self.environment)

    def source(self, name: str) -> tuple[Source, Connection]:
        """A source of which the slot exists."""
        state = self.catalog.state
        schema = state.schema(state.database("materialize").id, "public").id
        options = json.dumps(self.upstream.options)
        state = self.catalog.transact([CreateConnectionOp(schema, f"{name}_pg", "postgres", options)])
        connection = next(c for c in state.connections() if c.name == f"{name}_pg")
        definition = {
            "kind": "postgres",
            "connection": connection.id,
            "publication": "p",
            "slot": f"{self.upstream.name}_{name}",
            "system": look(self.upstream.options, "p").system,
            "lsn": None,
            "timeline": None,
            "outputs": [],
            "started": 0,
        }
        op = CreateSourceOp(
            schema=schema,
            name=name,
            type="postgres",
            definition=json.dumps(definition),
            sql="",
            desc=None,
            envelope=None,
            remap_desc=GAUGE.remap_desc,
            progress_desc=GAUGE.progress_desc,
            interval_ms=100,
            depends_on=(connection.id,),
        )
        before = len(self.slots())
        state = self.catalog.transact([op])
        ingestion = self.ingest()
        self.wait(lambda: len(self.slots()) > before)
        ingestion.stop()
        return next(s for s in state.sources() if s.name == name), connection

    def slots(self) -> list[str]:
        found = self.upstream.query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
        )
        return [slot.removeprefix(f"{self.upstream.name}_") for (slot,) in found]

    def wait(self, what: object) -> None:
        assert callable(what)
        deadline = time.monotonic() + WAIT_SECONDS
        while not what():
            assert time.monotonic() < deadline, (self.slots(), self.catalog.owed)
            time.sleep(0.02)


@pytest.fixture
def world(upstream: UpstreamDatabase, tmp_path: Path) -> Iterator[World]:
    upstream.run(
        "CREATE TABLE t (id int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    environment = Environment.open(str(tmp_path / "data"))
    world = World(upstream, tmp_path, environment, Catalog.open(environment))
    yield world
    world.environment.close()


def test_a_slot_is_dropped_by_the_next_server(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed right behind DROP SOURCE. Then the upstream is away, or the connection was dropped, too."""
    monkeypatch.setattr(service, "FIRST_RETRY_SECONDS", 0.1)
    dropped, connection = world.source("a")
    stays, gone = world.source("b")
    world.source("c")
    # Nobody ingests: as if the server was killed now.
    world.catalog.transact([DropOp(dropped.id)])
    world.catalog.transact([DropOp(stays.id)])
    world.catalog.transact([DropOp(gone.id)])
    away = json.dumps({**world.upstream.options, "port": 1})
    world.catalog.transact([AlterConnectionOp(connection.id, connection.options, away)])
    world.restart()
    assert {left.name for left in world.catalog.owed} == {"a", "b"}
    with caplog.at_level(logging.WARNING):
        ingestion = world.ingest()
        try:
            world.wait(lambda: "could not be dropped" in caplog.text)
            assert f"pg_drop_replication_slot('{world.upstream.name}_a')" in caplog.text
            world.wait(lambda: [left.name for left in world.catalog.owed] == ["a"])
            world.catalog.transact([AlterConnectionOp(connection.id, away, connection.options)])
            world.wait(lambda: not world.catalog.owed)
        finally:
            ingestion.stop()
    assert f"drop its replication slot {world.upstream.name}_b there" in caplog.text
    assert world.slots() == ["b", "c"]
    # It is remembered that nothing is owed, and a drop in a running server leaves nothing either.
    world.restart()
    assert not world.catalog.owed
    ingestion = world.ingest()
    try:
        left = next(s for s in world.catalog.state.sources() if s.name == "c")
        world.catalog.transact([DropOp(left.id)])
        world.wait(lambda: not world.catalog.owed)
        assert world.slots() == ["b"]
    finally:
        ingestion.stop()
