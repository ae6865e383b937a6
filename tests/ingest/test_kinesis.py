"""A stream of Kinesis under a source that ends and begins again: the collection is the fold of what was put,
whatever happens between a binding and its commit, and while shards are split and merged. Without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ingest.house import POINTS, WAIT_SECONDS, House
from support.kinesis import Kinesis
from tidemill.persist.environment import Environment
from tidemill.reclock.progress import all_bindings, progress_at
from tidemill.reclock.remap import FP_BOUND, Remap
from tidemill.sources.kinesis.layout import GAUGE
from tidemill.sources.offsets import Offsets

TEXT: dict[str, Any] = {"format": "text"}
NONE: dict[str, Any] = {"kind": "none"}
UPSERT: dict[str, Any] = {"kind": "upsert"}

Record = tuple[str, bytes]


class StreamHouse(House):
    """With a source over a stream."""

    def __init__(self, folder: Path, kinesis: Kinesis, stream: str, envelope: dict[str, Any]) -> None:
        super().__init__(folder)
        include = [{"what": "key", "as": None}]
        output = {"name": "o", "key": TEXT, "value": TEXT, "include": include, "envelope": envelope}
        definition = {"kind": "kinesis", "connection": kinesis.options, "stream": stream, "start_ms": None}
        self.create(
            {**definition, "outputs": [output], "started": 0, "shards": sorted(kinesis.shards(stream))}
        )


@pytest.fixture
def house(tmp_path: Path, kinesis: Kinesis) -> Iterator[Callable[..., StreamHouse]]:
    made: list[StreamHouse] = []

    def make(stream: str, envelope: dict[str, Any]) -> StreamHouse:
        made.append(StreamHouse(tmp_path, kinesis, stream, envelope))
        return made[0]

    yield make
    made[0].close()


def fold(ledger: list[Record], envelope: dict[str, Any]) -> list[tuple[str, str]]:
    if envelope == NONE:
        return sorted((key, data.decode()) for key, data in ledger)
    return sorted((key, data.decode()) for key, data in dict(ledger).items() if data)


def drawn(rng: Random, ledger: list[Record]) -> list[Record]:
    count = rng.randrange(1, 30)
    return [
        (f"k{rng.randrange(12)}", b"" if rng.random() < 0.2 else b"%d.%d" % (len(ledger), n))
        for n in range(count)
    ]


@pytest.mark.parametrize(
    "envelope", [UPSERT, pytest.param(NONE, marks=pytest.mark.chaos)], ids=lambda e: e["kind"]
)
@pytest.mark.parametrize("point", POINTS)
def test_every_record_is_there_once_wherever_it_is_killed(
    house: Callable[..., StreamHouse], kinesis: Kinesis, point: str, envelope: dict[str, Any]
) -> None:
    """A ledger of what was put, against the collection, over lives that each end at the point; shards are
    split and merged in between, and the upstream is restarted."""
    stream = kinesis.stream(2)
    found, rng = house(stream, envelope), Random(7)
    found.close()
    ledger: list[Record] = []
    for _ in range(1 if envelope == UPSERT else 3):
        for _ in range(3):
            records = drawn(rng, ledger)
            kinesis.put(stream, records)
            ledger += records
            kinesis.reshard(stream, rng)
        found.killed(point)
    if point == FP_BOUND:
        kinesis.restart()
    found.open()
    found.settle(fold(ledger, envelope))
    # Bindings are monotone, and each ends with the number of its last record.
    there = {shard: kinesis.records(stream, shard) for shard in kinesis.shards(stream)}
    ends = {shard: len(records) for shard, records in there.items() if records}
    deadline = time.monotonic() + WAIT_SECONDS
    while found.machine.remap.frontier.as_dict() != ends and time.monotonic() < deadline:
        # The last records may delete what is not there.
        time.sleep(0.02)
    last: dict[str, int] = {}
    for _, shard, count, number in found.bindings():
        assert shard is not None and count >= last.get(shard, 0)
        assert number == there[shard][count - 1]["SequenceNumber"]
        last[shard] = count
    assert last == ends
    machine = found.machine
    at = machine.remap.upper - 1
    progress = progress_at(machine.remap.shard, machine.source, at, at + 1)
    shown = dict(zip(*(progress.column(n).to_pylist() for n in progress.column_names[:2]), strict=True))
    numbers = {shard: records[-1]["SequenceNumber"] for shard, records in there.items() if records}
    assert shown == {**dict.fromkeys(machine.source.partitions), **numbers}
    # The children of a shard are never bound together with it.
    parents = {shard: info.parents for shard, info in kinesis.shards(stream).items()}
    moved: dict[int, set[str]] = {}
    for (time_, shard, count, _), before in zip(found.bindings(), _before(found.bindings()), strict=True):
        if count != before:
            moved.setdefault(time_, set()).add(str(shard))
    assert not any(set(parents[shard]) & together for together in moved.values() for shard in together)


def _before(bindings: list[tuple[int, str | None, int, str | None]]) -> list[int]:
    last: dict[str | None, int] = {}
    found: list[int] = []
    for _, shard, count, _ in bindings:
        found.append(last.get(shard, 0))
        last[shard] = count
    return found


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
def test_resharding_under_way_keeps_every_row(
    house: Callable[..., StreamHouse], kinesis: Kinesis, seed: int
) -> None:
    stream = kinesis.stream(2)
    found, rng = house(stream, UPSERT), Random(seed)
    ledger: list[Record] = []
    for turn in range(20):
        records = drawn(rng, ledger)
        kinesis.put(stream, records)
        ledger += records
        if rng.random() < 0.5:
            kinesis.reshard(stream, rng)
        if turn % 7 == 6:
            kinesis.persisted()
            kinesis.program.kill()
            time.sleep(rng.random())
            kinesis.start()
        if rng.random() < 0.2:
            found.close()
            found.open()
    found.settle(fold(ledger, UPSERT))


def test_resharding_while_it_is_read(house: Callable[..., StreamHouse], kinesis: Kinesis) -> None:
    stream = kinesis.stream(1)
    found, rng = house(stream, UPSERT), Random(3)
    ledger: list[Record] = []
    for _ in range(5):
        for _ in range(2):
            records = drawn(rng, ledger)
            kinesis.put(stream, records)
            ledger += records
        kinesis.reshard(stream, rng)
    found.settle(fold(ledger, UPSERT))
    kinesis.restart()
    records = drawn(rng, ledger)
    kinesis.put(stream, records)
    ledger += records
    found.settle(fold(ledger, UPSERT))


LARGEST = 2**186 - 1


def test_bindings_hold_the_largest_numbers(tmp_path: Path) -> None:
    """Also after a compaction, and for readers at any time."""
    environment = Environment.open(str(tmp_path / "data"))
    try:
        shard = environment.create_shard("remap", GAUGE.remap_desc)
        remap = Remap(shard, GAUGE, Offsets())
        ends = [Offsets({"a": 3}), Offsets({"a": 5, "b": 1}), Offsets({"a": 9, "b": 1})]
        stamps = [{"a": LARGEST - 2}, {"a": LARGEST - 1, "b": 5}, {"a": LARGEST}]
        for n, (end, numbers) in enumerate(zip(ends, stamps, strict=True)):
            remap.bind(1000 * (n + 1), end, f"job{n}", {p: str(number) for p, number in numbers.items()})
        places = {"a": [(3, str(LARGEST - 2)), (5, str(LARGEST - 1)), (9, str(LARGEST))], "b": [(1, "5")]}
        assert remap.places() == places
        found = all_bindings(shard, GAUGE)
        assert [(count, number) for _, partition, count, number in found if partition == "a"] == places["a"]
        again = Remap(shard, GAUGE, Offsets())
        assert again.frontier == ends[-1] and again.stamps == {"a": str(LARGEST), "b": "5"}
        remap.allow_compaction(2000)
        later = Remap(shard, GAUGE, Offsets())
        assert later.places()["a"][-1] == (9, str(LARGEST)) and later.frontier == ends[-1]
        assert len(str(LARGEST)) == 56
    finally:
        environment.close()
