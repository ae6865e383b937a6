"""Keyed sinks into a real broker's topics: whatever dies, a reader of committed messages gets each change
once, and what cannot be written is told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer
from sinks_world import ShardFeed, World

from support.kafka import REQUEST_SECONDS, Kafka
from support.shards import DESC, memory_folder
from tidemill import failpoints
from tidemill.catalog.retention import follow
from tidemill.sinks import kafka_progress, kafka_topic, kafka_transactions
from tidemill.sinks.kafka_progress import TOPIC_CONFIG
from tidemill.sinks.kafka_topic import make_topic
from tidemill.sinks.kafka_transactions import TransactionalTopic
from tidemill.sinks.keyed_writer import KeyedWriter
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.rows.messages import Origin, RowMessages
from tidemill.sinks.target import SinkError, Written
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka.metadata import Admin

COMMITTED: dict[str, Any] = {"isolation.level": "read_committed"}
COMPACT = {"cleanup.policy": "compact"}
POINTS = (
    "sink.snapshot_sent",
    "sink.transaction_sent",
    "sink.transaction_ready",
    "sink.stated",
)


@pytest.fixture
def world() -> Iterator[World]:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        yield World(Path(folder))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """No busy broker is given up."""
    for module in (kafka_progress, kafka_topic, kafka_transactions):
        monkeypatch.setattr(module, "LOOK_SECONDS", REQUEST_SECONDS)
    yield
    failpoints.arm("")


# Compacted as those of users, but never while the test runs: a restart of the broker ends a segment, and the
# messages' times, small numbers, are older than any `min.compaction.lag.ms`. No share of a log is above 1.
KEPT = {**COMPACT, "min.cleanable.dirty.ratio": "1"}


class Topic:
    """A topic of rows (k, v) by k, and the sinks that write to it."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        envelope: str = "upsert",
        partitions: int = 2,
        config: Mapping[str, str] = KEPT,
    ) -> None:
        self.world = world
        self.kafka = kafka
        self.envelope = envelope
        self.partitions = partitions
        self.name = f"keyed-{time.time_ns()}"
        self.reached = {"brokers": [kafka.bootstrap]}
        make_topic(self.reached, self.name, partitions, 1, config)
        make_topic(self.reached, f"{self.name}-p", 1, 1, TOPIC_CONFIG)

    def machine(self, life: int = 1, *, as_of: int = 4, snapshot: bool = True) -> SinkMachine:
        made: list[SinkMachine] = []
        written = Written()
        target = TransactionalTopic(
            self.reached, self.name, f"{self.name}-p", "s1", life, written, lambda: made[0].check()
        )
        feed, origin = ShardFeed(self.world.shard), Origin("s", "d", "public", "t")
        messages = RowMessages(DESC.columns, [0], "json", self.envelope, origin)
        writer = KeyedWriter(
            DESC, [0], feed.names, messages, target, written, tombstones=self.envelope == "debezium"
        )
        made.append(SinkMachine(self.world.sink(as_of, snapshot=snapshot), feed, writer))
        return made[0]

    def said(self) -> list[tuple[int, Any, Any, int]]:
        """Partition, key, value, time; of committed messages."""
        found: list[tuple[int, Any, Any, int]] = []
        for partition in range(self.partitions):
            for m in self.kafka.read(self.name, partition, OFFSET_BEGINNING, **COMMITTED):
                key, value = m.key(), m.value()
                assert isinstance(key, bytes) and (value is None or isinstance(value, bytes))
                ((header, at),) = m.headers() or []
                assert isinstance(at, bytes)
                assert header == "tidemill-timestamp" and m.timestamp()[1] == int(at)
                shown = None if value is None else json.loads(value)
                found.append((partition, json.loads(key)["k"], shown, int(at)))
        return found

    def decided(self) -> None:
        """Returns when the ends of all transactions are in all partitions, which is after the answer."""
        admin, deadline = Admin(self.reached), time.monotonic() + REQUEST_SECONDS
        for name, partitions in ((self.name, range(self.partitions)), (f"{self.name}-p", [0])):
            while admin.ends(name, partitions, 60) != admin.written(name, partitions, 60):
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def check(self) -> None:
        """Each change of each key once, in the order of their times."""
        self.decided()
        wanted: dict[tuple[Any, int], Any] = {}
        for ((k, v), at), diff in self.world.expected(4, 1 << 60).items():
            if diff > 0:
                wanted[k, at] = v
            else:
                wanted.setdefault((k, at), None)
        found: dict[tuple[Any, int], Any] = {}
        last: dict[int, int] = {}
        for _, k, value, at in self.said():
            assert (k, at) not in found, f"key {k} at {at} came twice"
            assert last.get(k, 0) < at
            last[k] = at
            found[k, at] = None if value is None else value["v"]
        assert found == wanted


def run(one: SinkMachine, world: World) -> None:
    while one.frontier != world.shard.upper:
        one.step()


def change(world: World, rng: Random, rows: dict[int, str]) -> None:
    """Some keys get another row, or none."""
    updates: list[tuple[tuple[int, str], int]] = []
    for k in rng.sample(range(12), rng.randrange(5)):
        if k in rows:
            updates.append(((k, rows.pop(k)), -1))
        if rng.random() < 0.7:
            rows[k] = f"{len(world.history)}-{k}"
            updates.append(((k, rows[k]), 1))
    world.append(updates, (world.shard.upper or 0) + rng.randrange(1, 4))


@pytest.mark.parametrize("seed", range(2))
def test_whatever_dies_each_change_comes_once(world: World, kafka: Kafka, seed: int) -> None:
    rng, rows = Random(seed), dict.fromkeys(range(6), "first")
    world.append([((k, v), 1) for k, v in rows.items()], 5)
    topic = Topic(world, kafka)
    one, died = topic.machine(), 0
    failpoints.arm(f"{POINTS[0]}=error")
    with pytest.raises(failpoints.FailpointError):
        one.step()
    for life in range(2, 12):
        failpoints.arm(f"{rng.choice(POINTS[1:])}=error@{rng.randrange(1, 3)}")
        for _ in range(rng.randrange(2, 5)):
            change(world, rng, rows)
            try:
                run(one, world)
            except failpoints.FailpointError:
                died += 1
                if rng.random() < 0.5:
                    one.close()
                    one = topic.machine(life)
        if one.holding:
            follow(world.shard, world.shard.upper or 0, 0)
    failpoints.arm("")
    run(one, world)
    one.close()
    assert died > 3
    topic.check()


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, from its description."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_debezium_has_both_rows_and_partitions_are_those_of_java(world: World, kafka: Kafka) -> None:
    topic = Topic(world, kafka, "debezium", partitions=3)
    world.append([((n, "a"), 1) for n in range(20)], 5)
    one = topic.machine()
    run(one, world)
    world.append([((1, "a"), -1), ((1, "b"), 1), ((2, "a"), -1)], 8)
    world.append([((2, "c"), 1)], 9)
    run(one, world)
    one.close()
    said = topic.said()
    assert all(murmur2(b'{"k":%d}' % k) % 3 == partition for partition, k, _, _ in said)
    found = {
        k: [None if v is None else (v["op"], v["before"], v["after"]) for _, key, v, _ in said if key == k]
        for k in (1, 2, 3)
    }
    assert found == {
        1: [("r", None, {"k": 1, "v": "a"}), ("u", {"k": 1, "v": "a"}, {"k": 1, "v": "b"})],
        2: [
            ("r", None, {"k": 2, "v": "a"}),
            ("d", {"k": 2, "v": "a"}, None),
            None,
            ("c", None, {"k": 2, "v": "c"}),
        ],
        3: [("r", None, {"k": 3, "v": "a"})],
    }


def test_two_rows_of_a_key_end_the_topic_before_them(
    world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(world, kafka)
    world.append([((1, "a"), 1)], 5)
    one = topic.machine(snapshot=False)
    run(one, world)
    world.append([((2, "b"), 1)], 7)
    world.append([((1, "c"), 1)], 8)
    for life in (1, 2):  # the keys are known again after a restart
        with pytest.raises(SinkError, match="two rows have one key") as caught:
            run(one, world)
        assert caught.value.detail == "Key (k)=(1) has more than one row at 7."
        assert one.frontier == 7
        # Trying again does not read all keys.
        with monkeypatch.context() as patch, pytest.raises(SinkError, match="two rows have one key"):
            patch.setattr(KeyedWriter, "recall", None)
            one.step()
        one.close()
        one = topic.machine(life + 1, snapshot=False)
    one.close()
    assert [(k, v, at) for _, k, v, at in topic.said()] == [(2, {"k": 2, "v": "b"}, 5)]
    other = Topic(world, kafka)
    world.append([((3, "a"), 1), ((3, "b"), 1)], 9)
    first = other.machine(as_of=8)
    with pytest.raises(SinkError, match="two rows have one key"):
        first.step()
    assert first.frontier == 0
    first.close()
    assert not other.said()


def test_an_earlier_server_writes_no_more(world: World, kafka: Kafka) -> None:
    topic = Topic(world, kafka)
    world.append([((1, "a"), 1)], 5)
    early, late = topic.machine(1), topic.machine(2)
    run(early, world)
    run(late, world)
    world.append([((1, "a"), -1)], 7)
    # Its transaction cannot be committed, and then it finds who is at work, without disturbing it.
    with pytest.raises((SinkError, UpstreamError)):
        early.step()
    with pytest.raises(SinkError, match="another server has gone on with the sink"):
        early.step()
    run(late, world)
    early.close()
    late.close()
    topic.check()


def test_what_stops_a_sink(world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(world, kafka)
    world.append([((1, "a"), 1)], 5)
    one = topic.machine()
    run(one, world)
    one.close()
    again = Topic(world, kafka)
    one = again.machine()
    run(one, world)
    kafka.delete_topic(again.name)
    kafka.create_topic(again.name, 2, COMPACT)
    one.close()
    with pytest.raises(SinkError, match="was created anew"):
        again.machine().step()
    # The progress is gone: nobody knows what the topic has.
    kafka.delete_topic(f"{topic.name}-p")
    kafka.create_topic(f"{topic.name}-p")
    with pytest.raises(SinkError, match="has lost the progress of the sink"):
        topic.machine().step()
    kafka.delete_topic(topic.name)
    with pytest.raises(SinkError, match=f'there is no topic "{topic.name}"'):
        topic.machine().step()
    # A row that the topic does not take; not to be compressed away.
    small = Topic(world, kafka, config={"max.message.bytes": "2000"})
    world.append([((2, Random(1).randbytes(5_000).hex()), 1)], 6)
    one = small.machine()
    with pytest.raises(SinkError, match="a message is too large"):
        run(one, world)
    assert one.frontier < 6
    one.close()


def test_a_broker_that_is_away_stalls_and_loses_nothing(
    world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(world, kafka)
    world.append([((1, "a"), 1)], 5)
    one = topic.machine()
    run(one, world)
    # Kafka 4.3 loses the end of a transaction in topics so new that a restarted broker does not know them.
    topic.decided()
    monkeypatch.setattr(kafka_transactions, "SILENCE_SECONDS", 0.5)
    for module in (kafka_progress, kafka_topic, kafka_transactions):
        monkeypatch.setattr(module, "LOOK_SECONDS", 3.0)
    kafka.kill()
    world.append([((2, "b"), 1), ((1, "a"), -1)], 6)
    for _ in range(2):
        with pytest.raises(UpstreamError, match="cannot be reached"):
            one.step()
        assert one.frontier == 5 and one.holding
    assert world.shard.downgrade_since(5) == 4
    kafka.start()
    deadline = time.monotonic() + REQUEST_SECONDS
    while one.frontier != 6:
        assert time.monotonic() < deadline
        try:
            one.step()
        except (UpstreamError, SinkError) as e:
            assert isinstance(e, UpstreamError) or "another process has gone on" in str(e)
            time.sleep(0.1)
    one.close()
    topic.check()


def test_nothing_is_sent_again_while_a_transaction_is_undecided(
    world: World, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sink's transaction is open in the topic of the progress, and hides what this one committed."""
    monkeypatch.setattr(kafka_progress, "LOOK_SECONDS", 3.0)
    topic = Topic(world, kafka)
    other = Producer(kafka.client(**{"transactional.id": f"{topic.name}-other"}))
    other.init_transactions(REQUEST_SECONDS)
    other.begin_transaction()
    other.produce(f"{topic.name}-p", b"{}", b"s2")
    other.flush()
    world.append([((1, "a"), 1)], 5)
    one = topic.machine()
    run(one, world)
    one.close()
    again = topic.machine(2)
    with pytest.raises(UpstreamError, match="it is not decided"):
        again.step()
    other.abort_transaction(REQUEST_SECONDS)
    world.append([((1, "a"), -1)], 6)
    run(again, world)
    again.close()
    topic.check()
