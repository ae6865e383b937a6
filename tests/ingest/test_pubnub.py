"""PubNub under a source that ends and begins again: the collection is what was published, whatever happens
between receiving a message and its commit. Without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest

from support.pubnub import PubNubServer, pubnub_server
from tidemill import failpoints
from tidemill.catalog.ops import DropOp
from tidemill.catalog.sidecars import inbox_id
from tidemill.catalog.store import Catalog
from tidemill.ingest.machine import FP_BEFORE_COMMIT, FP_BETWEEN
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.ingest.storage import CollectionType, SourceDescription, Storage, StorageCollectionId
from tidemill.persist.environment import Environment
from tidemill.reclock.progress import all_bindings
from tidemill.reclock.remap import FP_BOUND, FP_PUT
from tidemill.sources.offsets import Offsets
from tidemill.sources.pubnub.inbox import FP_BEFORE_INBOX, FP_INBOX, FP_INBOX_PUT
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN

WAIT_SECONDS = 120.0
# Before and behind each step that makes something durable.
POINTS = [
    FP_BEFORE_INBOX,
    FP_INBOX_PUT,
    FP_INBOX,
    FP_PUT,
    FP_BOUND,
    FP_BEFORE_COMMIT,
    FP_BETWEEN,
]


class House:
    """A data directory with a source over channels."""

    def __init__(self, folder: Path, server: PubNubServer) -> None:
        self.folder = folder
        include = [{"what": what, "as": None} for what in ("key", "partition")]
        output = {"name": "in", "value": {"format": "text"}, "include": include, "envelope": {"kind": "none"}}
        self.definition = {
            "kind": "pubnub",
            "connection": server.connection,
            "channels": ["a", "b"],
            "groups": [],
            "cursor": [server.now(), 1],
            "history_seconds": 86_400,
            "outputs": [output],
            "started": 0,
        }
        self.open()
        schema = self.catalog.state.schema(self.catalog.state.database("materialize").id, "public").id
        (self.id,) = self.storage.create_sources([SourceDescription(schema, "s", self.definition, "", 100)])

    def open(self) -> None:
        self.environment = Environment.open(str(self.folder / "data"))
        self.catalog = Catalog.open(self.environment)
        self.ingestion = Ingestion(self.environment, self.catalog, LocalRunner(str(self.folder / "state")))
        self.storage = Storage(self.environment, self.catalog, self.ingestion)

    def close(self) -> None:
        self.ingestion.stop()
        self.environment.close()

    def rows(self) -> list[tuple[Any, ...]]:
        rendered = self.storage.render(StorageCollectionId(self.id))
        if not rendered.upper:
            return []
        with rendered.snapshot(rendered.upper - 1) as snapshot:
            table = snapshot.read()
        assert set(table.column(DIFF_COLUMN).to_pylist()) <= {1}
        if ERROR_COLUMN in table.column_names:
            assert table.column(ERROR_COLUMN).null_count == len(table)
        names = [n for n in table.column_names if not n.startswith("mz_")]
        return sorted(zip(*(table.column(n).to_pylist() for n in names), strict=True))

    def settle(self, wanted: list[tuple[Any, ...]]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.rows() != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.rows() == wanted


@pytest.fixture
def service() -> Iterator[PubNubServer]:
    with pubnub_server() as server:
        yield server


@pytest.fixture
def house(tmp_path: Path, service: PubNubServer) -> Iterator[Callable[[], House]]:
    made: list[House] = []

    def make() -> House:
        made.append(House(tmp_path, service))
        return made[0]

    yield make
    made[0].close()


def live(folder: Path, spec: str) -> None:
    """A life of the server in this process, which ends with SIGKILL at the point, or after a while."""
    house = House.__new__(House)
    house.folder = folder
    failpoints.arm(spec)
    house.open()
    time.sleep(WAIT_SECONDS)


@pytest.mark.parametrize("point", POINTS)
def test_every_message_is_there_once_wherever_it_is_killed(
    house: Callable[[], House], service: PubNubServer, point: str
) -> None:
    """A ledger of what was published, against the collection, over lives that each end at the point, with
    breaks, moves of the region and more than the service keeps in between."""
    found, rng = house(), Random(11)
    found.close()
    ledger: list[tuple[str, str, int]] = []
    for life in range(2):
        for n in range(rng.randrange(20, 160)):
            channel, region = "ab"[rng.randrange(2)], rng.choice((1, 2))
            service.publish(channel, f"{life}.{n}", region=region, delay=rng.choice((0, 0, 0.05)))
            ledger.append((f"{life}.{n}", channel, region))
        service.move(rng.choice((1, 2)), repeats=rng.randrange(5))
        service.break_next(rng.randrange(2))
        process = get_context("spawn").Process(target=live, args=(found.folder, f"{point}=kill"))
        process.start()
        process.join(WAIT_SECONDS)
        assert process.exitcode == -SIGKILL
    found.open()
    service.publish("a", "last")
    ledger.append(("last", "a", 1))
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found.rows()) < len(ledger) and time.monotonic() < deadline:
        time.sleep(0.02)
    # Messages of the history have no region.
    published = {(text, channel): region for text, channel, region in ledger}
    rows = found.rows()
    assert sorted((text, channel) for text, channel, _ in rows) == sorted(published)
    assert all(region in (0, published[text, channel]) for text, channel, region in rows)
    # Bindings are monotone, and are those of the inbox.
    remap = found.storage.render(StorageCollectionId(found.id, CollectionType.REMAPPING)).shard
    (source,) = found.catalog.state.sources()
    machine = found.ingestion.machine(source)
    assert machine is not None
    last: dict[str | None, int] = {}
    for _, region, end, _ in all_bindings(remap, machine.source.gauge):
        assert end >= last.get(region, 0)
        last[region] = end
    assert "1" in last


def test_a_table_that_is_made_later_has_everything(house: Callable[[], House], service: PubNubServer) -> None:
    """Also after merges of the inbox."""
    found = house()
    wanted: list[tuple[Any, ...]] = []
    for n in range(30):
        service.publish("ab"[n % 2], f"m{n}")
        wanted.append((f"m{n}", "ab"[n % 2], 1))
        if n % 10 == 9:
            found.settle(sorted(wanted))
    (source,) = found.catalog.state.sources()
    inbox = found.environment.open_ingested(inbox_id(source.remap_shard))
    before = len(inbox.parts)
    inbox.compact(everything=True)
    assert before > len(inbox.parts)
    found.close()
    found.open()
    service.publish("a", "more")
    found.settle(sorted([("more", "a", 1), *wanted]))
    machine = found.ingestion.machine(source)
    assert machine is not None
    upstream = machine.source
    reader, pieces = upstream.plan(Offsets(), upstream.frontier(0), 2, frozenset({0}))
    assert sum(batch.rows.num_rows for piece in pieces for batch in reader.read(piece)) == 31


def test_a_dropped_source_leaves_no_inbox(house: Callable[[], House], service: PubNubServer) -> None:
    found = house()
    service.publish("a", "one")
    found.settle([("one", "a", 1)])
    (source,) = found.catalog.state.sources()
    found.catalog.transact([DropOp(source.id)])
    assert inbox_id(source.remap_shard) not in {c.shard for c in found.catalog.state.collections()}
