"""When a table of a transaction topic may be read: not before it has what is before its joining."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tidemill.catalog.items import Item, Schema, Source
from tidemill.catalog.sidecars import FACTS_DESC
from tidemill.catalog.state import CatalogState
from tidemill.ingest.transactions import announcement_topic, table_topic
from tidemill.ingest.transactions.group import TransactionGroup
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.kafka.transactions import UNKNOWN_COMMIT, SeenChanges
from tidemill.sources.offsets import Offsets
from tidemill.types.model import INT8, Column, RelationDesc

SHARD, INTERVAL, RECORDS = "u1-cuts", 1000, 3
DESC = RelationDesc((Column("n", INT8),))


class Topic:
    topic, start, learned, end = "t", Offsets({0: 0}), None, 0

    def access(self) -> None:
        pass

    def close(self) -> None:
        pass

    def frontier(self, now: int) -> Offsets:
        return Offsets({0: self.end})


class Scanner:
    """Rows of a snapshot, which are of no transaction."""

    def __init__(self, access: object) -> None:
        pass

    def scan(self, partition: int, lower: int, upper: int) -> Iterator[SeenChanges]:
        offsets = np.arange(lower, upper)
        ones, ids = np.ones(len(offsets), np.int64), pa.nulls(len(offsets), pa.string())
        yield SeenChanges(offsets, offsets, ids, ones, UNKNOWN_COMMIT * ones, ones)


def source(name: str, created: int) -> Source:
    said = {"outputs": [{"envelope": {"transactions": {"collection": name}}}]}
    made = Source(
        name, name, "u0", "kafka", json.dumps(said), "", DESC, name, "none", DESC, name, created, INTERVAL
    )
    made.depends_on = ("u1",)
    return made


def test_a_table_is_not_readable_before_its_joining_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_topic, "ChangeScanner", Scanner)
    monkeypatch.setattr(announcement_topic, "AnnouncementScanner", Scanner)
    environment = Environment.open(str(tmp_path / "data"))
    Shard.create(environment.blobs, SHARD, FACTS_DESC, epoch=environment.epoch, upper=environment.start)
