"""Dead letters are definite: after a crash at any step of a tick each message is a row or a dead letter, and
is there once, at the first time whose binding covers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ingest.scripted import House, ScriptedSource
from kafka.kafka_decoders import spec
from kafka.kafka_world import opened
from support.kafka import Kafka, Record
from tidemill import failpoints
from tidemill.errors import TidemillError
from tidemill.sources.kafka.dead_letters import ASIDE, twin

STEPS = [
    "tick.bound",
    "tick.task.read",
    "tick.task.written",
    "tick.before_commit",
    "tick.committed",
    "tick.between_commits",
]
PLACE = [{"what": what, "as": None} for what in ("partition", "offset")]


def outputs() -> list[dict[str, Any]]:
    plain = {**spec("none", include=PLACE, name="plain"), ASIDE: True}
    keyed = {**spec("upsert", name="keyed"), ASIDE: True}
    return [plain, twin(plain, "plain#2"), keyed, twin(keyed, "keyed#2")]


def until_caught_up(house: House) -> None:
    while house.tick(max(house.environment.oracle.now(), house.machine.promised) + 100):
        pass


@pytest.mark.parametrize("step", STEPS)
def test_each_message_is_there_once_after_a_crash(tmp_path: Path, kafka: Kafka, step: str) -> None:
    topic = kafka.create_topic(partitions=2)

    def produce(count: int) -> None:
        bad = [b"\xff" if n % 3 == 0 else b"v%d" % n for n in range(count)]
        kafka.produce(
            topic, [Record(b"k%d" % (n % 5), value, None, None, n % 2) for n, value in enumerate(bad)]
        )

    source = cast(ScriptedSource, opened(kafka, topic, *outputs()))
    house = House(tmp_path / "data", source)
    try:
        produce(9)
        house.tick(house.environment.oracle.now())
        produce(14)
        failpoints.arm(f"{step}=error")
        with pytest.raises((failpoints.FailpointError, TidemillError)):
            while True:
                house.tick(max(house.environment.oracle.now(), house.machine.promised) + 100)
        failpoints.arm("")
        house.close()
        house.open()
        produce(5)
        until_caught_up(house)
        covered: dict[tuple[int, int], int] = {}
        for time, upper in reversed(house.bindings()):
            covered |= {(cast(int, p), offset): time for p, end in upper.items() for offset in range(end)}
        rows = {(row[1], int(cast(Any, row[2]))): time for row, time, _ in house.updates(0)}
        letters = [((row[1], int(cast(Any, row[2]))), time) for row, time, _ in house.updates(1)]
        assert len(letters) == 10 and len(house.updates(0)) == 18
        assert rows | dict(letters) == covered and not rows.keys() & dict(letters).keys()
        again = [((row[1], int(cast(Any, row[2]))), time) for row, time, _ in house.updates(3)]
        assert sorted(again) == sorted(letters)
        assert {row[1] for row, _, diff in house.updates(2) if diff > 0} <= {f"v{n}" for n in range(14)}
    finally:
        failpoints.arm("")
        house.close()
