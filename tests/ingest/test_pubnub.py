"""PubNub under a source that ends and begins again: the collection is what was published, whatever happens
between receiving a message and its commit. Without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ingest.house import POINTS, WAIT_SECONDS, House
from support.pubnub import PubNubServer, pubnub_server
from tidemill.catalog.ops import DropOp
from tidemill.catalog.sidecars import inbox_id
from tidemill.sources.offsets import Offsets
from tidemill.sources.pubnub.inbox import FP_BEFORE_INBOX, FP_INBOX, FP_INBOX_PUT


class ChannelHouse(House):
    """With a source over channels."""

    def __init__(self, folder: Path, server: PubNubServer) -> None:
        super().__init__(folder)
        include = [{"what": what, "as": None} for what in ("key", "partition")]
        output = {"name": "in", "value": {"format": "text"}, "include": include, "envelope": {"kind": "none"}}
        self.create(
            {
                "kind": "pubnub",
                "connection": server.connection,
                "channels": ["a", "b"],
                "groups": [],
                "cursor": [server.now(), 1],
                "history_seconds": 86_400,
                "outputs": [output],
                "started": 0,
            }
        )


@pytest.fixture
def service() -> Iterator[PubNubServer]:
    with pubnub_server() as server:
        yield server


@pytest.fixture
def house(tmp_path: Path, service: PubNubServer) -> Iterator[Callable[[], ChannelHouse]]:
    made: list[ChannelHouse] = []

    def make() -> ChannelHouse:
        made.append(ChannelHouse(tmp_path, service))
        return made[0]

    yield make
    made[0].close()


@pytest.mark.parametrize("point", [FP_BEFORE_INBOX, FP_INBOX_PUT, FP_INBOX, *POINTS[1:]])
def test_every_message_is_there_once_wherever_it_is_killed(
    house: Callable[[], ChannelHouse], service: PubNubServer, point: str
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
        found.killed(point)
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
    assert "1" in {region for _, region, _, _ in found.bindings()}


def test_a_table_that_is_made_later_has_everything(
    house: Callable[[], ChannelHouse], service: PubNubServer
) -> None:
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
    upstream = found.machine.source
    reader, pieces = upstream.plan(Offsets(), upstream.frontier(0), 2, frozenset({0}))
    assert sum(batch.rows.num_rows for piece in pieces for batch in reader.read(piece)) == 31


def test_a_dropped_source_leaves_no_inbox(house: Callable[[], ChannelHouse], service: PubNubServer) -> None:
    found = house()
    service.publish("a", "one")
    found.settle([("one", "a", 1)])
    (source,) = found.catalog.state.sources()
    found.catalog.transact([DropOp(source.id)])
    assert inbox_id(source.remap_shard) not in {c.shard for c in found.catalog.state.collections()}
