"""When a table of a transaction topic may be read: not before it has what there was when it joined."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from tidemill.catalog.items import ItemId, Schema, Source
from tidemill.catalog.sidecars import FACTS_DESC
from tidemill.catalog.state import CatalogState
from tidemill.ingest.transactions import announcement_topic, table_topic
from tidemill.ingest.transactions.group import TransactionGroup
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.reclock.boundaries import boundary
from tidemill.sources.kafka.source import KafkaSource
from tidemill.sources.kafka.transactions import UNKNOWN_COMMIT, SeenChanges
from tidemill.sources.offsets import Offsets
from tidemill.types.model import INT8, Column, RelationDesc

SHARD, SECOND = "u1-cuts", 1000
DESC = RelationDesc((Column("n", INT8),))
EMPTY, FULL = Offsets({0: 5}), Offsets({0: 8})


class Topic:
    topic, learned, start, end = "t", None, EMPTY, EMPTY

    def access(self) -> None:
        pass

    def close(self) -> None:
        pass

    def frontier(self, now: int) -> Offsets:
        return self.end


class Scanner:
    """Rows of a snapshot, which are of no transaction."""

    def __init__(self, access: None) -> None:
        pass

    def scan(self, partition: int, lower: int, upper: int) -> Iterator[SeenChanges]:
        offsets, ones = np.arange(lower, upper), np.ones(upper - lower, np.int64)
        ids = pa.nulls(len(ones), pa.string())
        yield SeenChanges(offsets, offsets, ids, ones, UNKNOWN_COMMIT * ones, ones)


class Silent(Scanner):
    """Nothing is announced."""

    def scan(self, *_: int, **__: int) -> Iterator[SeenChanges]:
        return iter(())


def table(item: ItemId, created: int) -> Source:
    said = json.dumps({"outputs": [{"envelope": {"transactions": {"collection": item}}}]})
    made = Source(item, item, "u0", "kafka", said, "", DESC, item, "none", DESC, item, created, SECOND)
    return replace(made, depends_on=("u1",))


def test_a_table_is_not_readable_before_its_joining_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_topic, "ChangeScanner", Scanner)
    monkeypatch.setattr(announcement_topic, "AnnouncementScanner", Silent)
    items = [replace(table("u1", 0), depends_on=(), cuts_shard=SHARD), table("u2", 0)]
    topics = {f"u{n}": Topic() for n in range(1, 5)}

    def state() -> CatalogState:
        return CatalogState([Schema("u0", "public", None), *items], next_id=5, time=0)

    with closing(Environment.open(str(tmp_path / "data"))) as environment:
        start = environment.start
        Shard.create(environment.blobs, SHARD, FACTS_DESC, epoch=environment.epoch, upper=start)
        opened = cast("dict[str, KafkaSource]", cast("Any", topics))
        group = TransactionGroup(
            "u1", environment, state, lambda _, item: opened[item.id], lambda *_: None, lambda _: start
        )
        with closing(group):
            now = boundary(start, SECOND) + SECOND
            for at in (now, now + SECOND):
                assert group.next("u2", at, 0, EMPTY, 100) is None
            assert group.hydrated_from("u2") == start
            items.append(table("u3", now))
            now += 2 * SECOND
            assert group.next("u3", now, 0, EMPTY, 100) is None
            # It joins, but a table that was made in this moment puts the decision off.
            now += SECOND
            items.append(table("u4", now))
            topics["u3"].end = FULL
            assert group.next("u3", now, 0, EMPTY, 100) is None
            assert group.hydrated_from("u3") is None
            now += SECOND
            found = group.next("u3", now, 0, EMPTY, 100)
            assert found is not None and found.upper == FULL
            assert group.next("u3", now, now + 1, FULL, 100) is None
            assert group.hydrated_from("u3") == start
