"""Announcements that are read ahead are taken in once, in order, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from reclock.upstream import COUNTS
from tidemill.ingest.transactions import announcement_topic
from tidemill.ingest.transactions.announcement_topic import AnnouncementTopic
from tidemill.reclock.transactions.log import TransactionLog
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.transactions import SeenAnnouncements

STEP = 7


class Scanner:
    """BEGIN and END of transactions, from 700 on. `faults`: offsets that cannot be read the first time."""

    def __init__(self, faults: set[int]) -> None:
        self.faults = faults

    def scan(self, lower: int, upper: int) -> Iterator[SeenAnnouncements]:
        for first in range(lower, upper, STEP):
            offsets = np.arange(first, min(first + STEP, upper))
            broken = self.faults.intersection(offsets.tolist())
            if broken:
                self.faults -= broken
                raise UpstreamError("the broker is away")
            ends = offsets % 2 == 1
            ids = pa.array([f"{700 + n // 2}:{10 * n}" for n in offsets.tolist()])
            counts = pa.array([[] if end else None for end in ends.tolist()], COUNTS)
            yield SeenAnnouncements(offsets, offsets, ends, ids, counts)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_ahead_is_taken_in_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(announcement_topic, "AnnouncementScanner", Scanner)
    monkeypatch.setattr(announcement_topic, "MAX_OPEN", 60)
    monkeypatch.setattr(announcement_topic, "AHEAD_RECORDS", 40)
    monkeypatch.setattr(announcement_topic, "FEED_RECORDS", 10)
    chance = random.Random(seed)
    topic = AnnouncementTopic(cast("Any", {chance.randrange(300) for _ in range(5)}))
    log, end, done = TransactionLog("t"), 0, 0
    with ThreadPoolExecutor(1) as pool:
        while done < 150:
            end = min(end + chance.choice([0, 0, 1, 30, 200]), 300)
            room = log.read + 60 - len(log.announced)
            try:
                whole = topic.read(log, end)
            except UpstreamError:
                continue
            assert whole == (end <= room) and log.read == min(end, room)
            keys = log.announced.keys.tolist()
            assert keys == list(range(700 + done, 700 + log.read // 2))
            count = chance.randint(0, len(keys))
            log.finish(count)
            done += count
            if chance.random() < 0.7:
                topic.begin(log, pool)
        topic.close()
    assert log.finished.last == ("", 10 * 299)
