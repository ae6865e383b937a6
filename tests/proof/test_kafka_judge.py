"""The judge of the Kafka proof finds what is wrong, and reads no history more than once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from proof_kafka import GAUGE, Judge, Ledger

from support.kafka import Kafka
from tidemill.persist import compact
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import Remap
from tidemill.sources.contract import Offsets
from tidemill.types.model import TEXT, Column, RelationDesc

DESC = RelationDesc((Column("key", TEXT), Column("text", TEXT)))


class Message:
    def __init__(self, offset: int, key: str, value: str | None) -> None:
        self._told = (offset, key, value)

    def offset(self) -> int:
        return self._told[0]

    def key(self) -> str:
        return self._told[1]

    def value(self) -> str | None:
        return self._told[2]


class Topic:
    """One partition; counts what is read of it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.read_of_it = 0

    def read(self, topic: str, partition: int, first: int) -> list[Message]:
        found = self.messages[max(first, 0) :]
        self.read_of_it += len(found)
        return found


class World:
    def __init__(self, folder: Path) -> None:
        self.topic = Topic()
        self.ledger = Ledger(cast(Kafka, self.topic), "t", 1, 1)
        self.judge = Judge(str(folder), self.ledger)
        blobs = open_blobs(str(folder), {})
        self.data = Shard.create(blobs, "s", DESC, epoch=1)
        remap = Shard.create(blobs, "s-remap", GAUGE.remap_desc, epoch=1)
        self.remap = Remap(remap, GAUGE, Offsets())

    def tick(
        self, time: int, records: list[tuple[str, str | None]], updates: list[tuple[str, str, int]]
    ) -> None:
        for key, value in records:
            self.topic.messages.append(Message(len(self.topic.messages), key, value))
            self.ledger.acknowledged[0, len(self.topic.messages) - 1] = (key, value)
        self.remap.bind(time, Offsets({0: len(self.topic.messages)}), "j")
        columns: dict[str, Any] = {
            "key": pa.array([key for key, _, _ in updates], pa.string()),
            "text": pa.array([text for _, text, _ in updates], pa.string()),
            "mz_timestamp": pa.array([time] * len(updates), pa.int64()),
            "mz_diff": pa.array([diff for _, _, diff in updates], pa.int64()),
        }
        parts = [self.data.write_part(pa.table(columns), job="j")] if updates else []
        self.data.compare_and_append(parts, self.data.upper, time + 1)

    def check(self) -> int:
        return self.judge.check("s", "s-remap")


def good(world: World) -> None:
    world.tick(10, [("a", "1"), ("b", "1"), ("a", "2")], [("a", "2", 1), ("b", "1", 1)])
    assert world.check() == 3
    world.tick(20, [("a", None), ("b", "2")], [("a", "2", -1), ("b", "1", -1), ("b", "2", 1)])
    world.tick(30, [("c", "1")], [("c", "1", 1)])
    assert world.check() == 6


def test_what_is_right_passes_and_is_read_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    good(world)
    assert world.check() == 6
    assert world.topic.read_of_it == 6
    # Before since the collection says nothing more about single times.
    world.data.downgrade_since(25, record=True)
    world.data.compact(everything=True)
    assert world.check() == 6
    assert world.judge.folded.time == 20
    world.tick(40, [("b", "3")], [("b", "2", -1), ("b", "3", 1)])
    assert world.check() == 7
    assert world.judge.read_again() == 7


@pytest.mark.parametrize(
    "updates",
    [[], [("b", "9", 1)], [("b", "2", -1), ("b", "3", 1), ("c", "1", 1)], [("b", "2", -1), ("b", "4", 1)]],
    ids=["missing", "not retracted", "a copy", "another row"],
)
@pytest.mark.parametrize("since", [0, 25])
def test_what_is_wrong_is_found(tmp_path: Path, updates: list[tuple[str, str, int]], since: int) -> None:
    world = World(tmp_path)
    good(world)
    if since:
        world.data.downgrade_since(since, record=True)
        assert world.check() == 6
    world.tick(40, [("b", "3")], updates)
    with pytest.raises(AssertionError, match="at 40"):
        world.check()


def test_a_time_that_changes_afterwards_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    good(world)
    # A compaction that moves what it must not.
    plain = compact.merge
    monkeypatch.setattr(compact, "merge", lambda tables, desc, since, **more: plain(tables, desc, 25, **more))
    assert world.data.compact(everything=True) is not None
    with pytest.raises(AssertionError, match="at 10"):
        world.check()


@pytest.mark.parametrize(
    "harm",
    [lambda m: m.pop(2), lambda m: m.__setitem__(2, Message(2, "a", "7"))],
    ids=["lost", "changed"],
)
def test_a_broker_that_loses_messages_is_found(tmp_path: Path, harm: Callable[[list[Message]], Any]) -> None:
    world = World(tmp_path)
    good(world)
    harm(world.topic.messages)
    with pytest.raises(AssertionError, match="the broker"):
        world.judge.read_again()
