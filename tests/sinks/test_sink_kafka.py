"""Sinks into a real broker's topics: what is found at their ends and read back, a broker that is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from sinks_world import World, recovered

from support.kafka import REQUEST_SECONDS, Kafka
from support.shards import memory_folder
from tidemill.cdcv2 import Message, Progress
from tidemill.cdcv2.untyped import from_json
from tidemill.errors import InvalidValue
from tidemill.sinks import kafka_target, kafka_topic
from tidemill.sinks.cdcv2_writer import Cdcv2Writer
from tidemill.sinks.definition import KAFKA, Definition, codec_of
from tidemill.sinks.kafka_target import KafkaTarget
from tidemill.sinks.kafka_topic import last_upper, make_topic, place_of
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.target import SinkError, Written
from tidemill.sources.contract import UpstreamError


@pytest.fixture
def world() -> Iterator[World]:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        yield World(Path(folder))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """No busy broker is given up."""
    monkeypatch.setattr(kafka_target, "LOOK_SECONDS", REQUEST_SECONDS)
    monkeypatch.setattr(kafka_topic, "LOOK_SECONDS", REQUEST_SECONDS)


class Eager(KafkaTarget):
    pace = kafka_target.SinkPace(0.0, 0.0)


def reached(kafka: Kafka) -> dict[str, list[str]]:
    return {"brokers": [kafka.bootstrap]}


def sink(world: World, kafka: Kafka, topic: str, share: tuple[int, int] = (0, 1)) -> SinkMachine:
    from sinks_world import ShardFeed

    made: list[SinkMachine] = []
    target = Eager(reached(kafka), topic, share, Written(), lambda: made[0].check())
    definition = Definition(KAFKA, "json", topic=topic, share=share)
    item, feed = world.sink(4), ShardFeed(world.shard)
    writer = Cdcv2Writer(codec_of(item, definition), share, feed.names, target, Written())
    made.append(SinkMachine(item, feed, writer))
    return made[0]


def run(world: World, one: SinkMachine) -> None:
    while one.frontier != world.shard.upper:
        one.step()


def said(kafka: Kafka, topic: str, partitions: int) -> list[Message]:
    found: list[Message] = []
    for partition in range(partitions):
        for m in kafka.read(topic, partition):
            value = m.value()
            assert isinstance(value, bytes)
            found.append(from_json(value, f"{partition}/{m.offset()}"))
    return found


def test_a_topic_is_made_written_and_gone_on_with(world: World, kafka: Kafka) -> None:
    topic = f"sink-{time.time_ns()}"
    place = make_topic(reached(kafka), topic, 3, 1)
    assert (place.partitions, place.empty) == (3, True)
    assert make_topic(reached(kafka), topic, None, None).partitions == 3
    with pytest.raises(InvalidValue, match="has 3 partitions, not 2"):
        make_topic(reached(kafka), topic, 2, 1)

    world.append([((n, "a"), 1) for n in range(20)], 5)
    for upper in (8, 12):
        one = sink(world, kafka, topic)
        run(world, one)
        world.append([((upper, "b"), 1), ((1, "a"), -1 if upper == 8 else 1)], upper)
        run(world, one)
        one.close()
    place = place_of(reached(kafka), topic)
    assert last_upper(reached(kafka), topic, (0, 1), place, lambda: None) == 12
    assert recovered(said(kafka, topic, 3)) == (world.expected(4, 12), 12)


def test_the_last_statement_lies_far_back(
    world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_topic, "FIRST_LOOK", 2)
    monkeypatch.setattr(kafka_topic, "FARTHER", 2)
    topic = kafka.create_topic()
    place = place_of(reached(kafka), topic)
    assert last_upper(reached(kafka), topic, (0, 1), place, lambda: None) is None
    kafka.produce(topic, [(None, b"[]"), (b"0/1 40", b"{}"), (b"0/2 90", b"{}"), *[(None, b"[]")] * 9])
    kafka.produce(topic, [(b"somebody's key", b"{}"), (b"1/2 60", b"{}")])
    place = place_of(reached(kafka), topic)

    def last(share: tuple[int, int]) -> int | None:
        return last_upper(reached(kafka), topic, share, place, lambda: None)

    assert [last((0, 1)), last((0, 2)), last((1, 2))] == [40, 90, 60]


def test_writers_beside_each_other_and_shares(world: World, kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    world.append([((n, "a"), 1) for n in range(50)], 5)
    both = [sink(world, kafka, topic) for _ in range(2)]
    shares = [sink(world, kafka, topic, (n, 2)) for n in range(2)]
    for upper in range(6, 12):
        world.append([((upper, "b"), 1), ((upper - 1, "b"), -1)], upper)
        for one in (*both, *shares):
            run(world, one)
    for one in (*both, *shares):
        one.close()
    assert recovered(said(kafka, topic, 2)) == (world.expected(4, 11), 11)
    # Shares alone are the whole, too.
    topic = kafka.create_topic(partitions=2)
    for n in (1, 0):
        one = sink(world, kafka, topic, (n, 2))
        run(world, one)
        one.close()
    found = said(kafka, topic, 2)
    assert recovered(found) == (world.expected(4, 11), 11)
    assert sum(len(m.updates) for m in found if not isinstance(m, Progress)) == len(world.expected(4, 11))


def test_a_broker_that_is_away_stalls_and_loses_nothing(
    world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_target, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(kafka_target, "LOOK_SECONDS", 3.0)
    topic = kafka.create_topic()
    world.append([((1, "a"), 1)], 5)
    one = sink(world, kafka, topic)
    until(one, lambda: one.frontier == 5)
    kafka.kill()
    world.append([((2, "b"), 1)], 6)
    with pytest.raises(UpstreamError, match="cannot be reached"):
        one.step()
    assert one.frontier == 5 and one.holding
    with pytest.raises(UpstreamError, match="cannot be reached"):
        one.step()
    assert world.shard.downgrade_since(5) == 4
    kafka.start()
    until(one, lambda: one.frontier == 6)
    one.close()
    assert recovered(said(kafka, topic, 1)) == (world.expected(4, 6), 6)


def until(one: SinkMachine, done: Callable[[], bool]) -> None:
    """Step until it is so; a broker that has just been started may still be refused."""
    deadline = time.monotonic() + REQUEST_SECONDS
    while not done():
        assert time.monotonic() < deadline
        try:
            one.step()
        except UpstreamError:
            time.sleep(0.1)


def test_what_a_topic_does_not_take(world: World, kafka: Kafka) -> None:
    # Not to be compressed away.
    world.append([((1, Random(1).randbytes(5_000).hex()), 1)], 5)
    small = kafka.create_topic(config={"max.message.bytes": "2000"})
    one = sink(world, kafka, small)
    with pytest.raises(SinkError, match="a message is too large"):
        one.step()
    one.close()
    compacted = kafka.create_topic(config={"cleanup.policy": "compact"})
    one = sink(world, kafka, compacted)
    with pytest.raises(SinkError, match="does not take the messages"):
        one.step()
    one.close()
    gone = sink(world, kafka, "there-is-no-such-topic")
    with pytest.raises(SinkError, match="there is no topic"):
        gone.step()
    gone.close()


def test_a_writer_that_waits_can_be_stopped(world: World, kafka: Kafka) -> None:
    topic = kafka.create_topic()
    world.append([((1, "a"), 1)], 5)
    one = sink(world, kafka, topic)
    until(one, lambda: one.frontier == 5)
    kafka.kill()
    world.append([((2, "b"), 1)], 6)
    stopping = threading.Timer(0.2, one.cancel)
    stopping.start()
    with pytest.raises(Exception, match=r"is being stopped|cannot be reached"):
        one.step()
    stopping.join()
    one.close()
