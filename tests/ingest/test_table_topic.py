"""How far the topic of a table is seen, of several partitions: no partition waits for another to come to its
end, which can be more than may wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tidemill.ingest.transactions import reading, table_topic
from tidemill.ingest.transactions.table_topic import TableTopic
from tidemill.reclock.transactions.ids import Origins
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.kafka.transactions import SeenChanges
from tidemill.sources.offsets import Offsets

RECORDS = 400


class Topic:
    """Two partitions, whose changes are of transactions in turns."""

    topic, start = "t", Offsets({})

    def access(self) -> Topic:
        return self

    def close(self) -> None:
        pass

    def frontier(self, now: int) -> Offsets:
        return Offsets({0: RECORDS, 1: RECORDS})


class Scanner:
    def __init__(self, access: Topic) -> None:
        pass

    def scan(self, partition: int, lower: int, upper: int) -> Iterator[SeenChanges]:
        offsets = np.arange(lower, upper)
        numbers = (2 * offsets + partition).tolist()
        ids = pa.array([f"{700 + n}:{10 * n + 5}" for n in numbers])
        ones = np.ones(len(offsets), np.int64)
        yield SeenChanges(offsets, np.array(numbers), ids, ones, 10 * np.array(numbers), ones)


def scan(table: TableTopic, records: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        table.begin(records, Origins(), pool)
    table.take(0)


def test_partitions_are_seen_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_topic, "ChangeScanner", Scanner)
    monkeypatch.setattr(table_topic, "MAX_WAITING", 100)
    monkeypatch.setattr(reading, "STEP", 10)
    table = TableTopic(cast("KafkaSource", cast("Any", Topic())), "t", None, joined=True)
    seen = table.changes.partitions
    for _ in range(2 * RECORDS):
        table.look(1)
        scan(table, 30)
        # The first transactions that are not seen whole are of the partition that is furthest behind.
        least = min(each.scanned for each in seen.values())
        assert max(each.scanned for each in seen.values()) - least <= 30
        assert sum(len(each.runs) for each in seen.values()) <= 100 + 2 * 10
        if table.to_end:
            break
        for each in seen.values():
            each.cut(least)
    assert table.to_end


def test_what_is_full_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_topic, "ChangeScanner", Scanner)
    monkeypatch.setattr(table_topic, "MAX_WAITING", 100)
    table = TableTopic(cast("KafkaSource", cast("Any", Topic())), "t", None, joined=True)
    table.look(1)
    for _ in range(100):
        scan(table, 60)
    assert table.full and not table.to_end
    assert {each.scanned for each in table.changes.partitions.values()} == {60}
    for each in table.changes.partitions.values():
        each.cut(60)
    assert not table.full


class GatedScanner(Scanner):
    """Reads when it is let."""

    gate = threading.Event()
    begun: list[int]

    def scan(self, partition: int, lower: int, upper: int) -> Iterator[SeenChanges]:
        for at in range(lower, upper):
            assert self.gate.wait(60)
            self.begun.append(at)
            yield from super().scan(partition, at, at + 1)


def test_cuts_are_made_while_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = gated(monkeypatch)
    GatedScanner.gate.set()
    scan(table, 40)
    GatedScanner.gate.clear()
    seen = table.changes.partitions
    with ThreadPoolExecutor(1) as pool:
        table.begin(40, Origins(), pool)
        # Once it has begun, it is not begun again.
        table.begin(40, Origins(), pool)
        for each in seen.values():
            each.cut(15)
        assert {each.scanned for each in seen.values()} == {20}
        GatedScanner.gate.set()
        table.take(0)
    assert [each.runs.ends.tolist() for each in seen.values()] == 2 * [[*range(16, 41)]]


def test_a_topic_that_is_closed_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    table = gated(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        table.begin(2 * RECORDS, Origins(), pool)
        table.close()
        GatedScanner.gate.set()
    assert len(GatedScanner.begun) <= 1


def gated(monkeypatch: pytest.MonkeyPatch) -> TableTopic:
    monkeypatch.setattr(GatedScanner, "gate", threading.Event())
    monkeypatch.setattr(GatedScanner, "begun", [], raising=False)
    monkeypatch.setattr(table_topic, "ChangeScanner", GatedScanner)
    monkeypatch.setattr(reading, "STEP", 10)
    table = TableTopic(cast("KafkaSource", cast("Any", Topic())), "t", None, joined=True)
    table.look(1)
    return table
