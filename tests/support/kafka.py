"""A real Kafka broker for tests: started once per run by the first test that asks for it.

The fixture `kafka` is a handle on it. Tests use topics of their own (`create_topic` gives a fresh name). The
broker also has listeners with SASL and TLS (`kafka.broker.secure`). Tests may kill and restart it; each test
begins with a broker that runs. Whatever uses one of the fixtures here gets the marker `kafka`. The jars are
downloaded before the first test, where no test's time limit counts, and stay in the user's cache.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import (
    AdminClient,
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tidemill.dev import jars
from tidemill.dev.broker import Broker
from tidemill.sources.kafka import consume, metadata, source

# What one administrative request or one flush may take on a busy machine.
REQUEST_SECONDS = 120.0
# The fixtures and what each needs, here and in `support.debezium`.
BUNDLES: dict[str, tuple[jars.Bundle, ...]] = {
    "kafka": (jars.BROKER,),
    "registry": (jars.REGISTRY,),
    "debezium": (jars.CONNECT, jars.DEBEZIUM_POSTGRES, jars.AVRO_CONVERTER),
}
# What ends reading: the end of the partition, or no such topic (yet).
_END = (KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART)  # pyright: ignore[reportPrivateUsage]


class Record(NamedTuple):
    """What `Kafka.produce` takes; a plain tuple of the same order serves as well. Without a timestamp (ms)
    the client's clock counts, without a partition the key decides."""

    key: bytes | str | None
    value: bytes | str | None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    timestamp: int | None = None
    partition: int | None = None


class Kafka:
    """The broker of the test run, and what tests do with it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        # Kept: futures of a client that is gone never resolve.
        self.admin = AdminClient(self.client())
        self._producer = self._fresh_producer()

    def client(self, **settings: Any) -> dict[str, Any]:
        """The configuration of a confluent-kafka client for the plain listener. librdkafka's own log is off:
        it tells of every broker that is down, and tests take brokers down."""
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **settings}

    def create_topic(
        self, name: str | None = None, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """A topic; its name, made up if none is given. Returns when the broker serves it."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        _wait(self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(config or {}))]))
        self._until(lambda: self._leaders(name) == partitions)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        _wait(self.admin.create_partitions([NewPartitions(name, total)]))
        self._until(lambda: self._leaders(name) == total)
        self._producer = self._fresh_producer()

    def delete_topic(self, name: str) -> None:
        """Returns when the broker no longer knows it."""
        _wait(self.admin.delete_topics([name]))
        self._until(lambda: self._leaders(name) is None)
        self._producer = self._fresh_producer()

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Drop what lies before an offset, by partition: the log then starts there, as after retention."""
        _wait(self.admin.delete_records([TopicPartition(topic, p, o) for p, o in before.items()]))

    def produce(self, topic: str, records: Iterable[tuple[Any, ...]]) -> list[tuple[int, int]]:
        """Produce, wait until all is acknowledged, and give the (partition, offset) of each record."""
        return send(self._producer, topic, records)

    def transaction(
        self, topic: str, records: Iterable[tuple[Any, ...]], *, commit: bool = True
    ) -> list[tuple[int, int]]:
        """Produce in one transaction, which is committed or aborted; aborted records take offsets too, and so
        does the mark of its end, which is there when this returns."""
        producer = self.open_transaction()
        placed = send(producer, topic, records)
        if commit:
            producer.commit_transaction(REQUEST_SECONDS)
        else:
            producer.abort_transaction(REQUEST_SECONDS)
        self.until_marked(topic, placed)
        return placed

    def until_marked(self, topic: str, placed: Iterable[tuple[int, int]]) -> None:
        """Until the end of the transaction that wrote these is marked in their partitions: a broker tells the
        producer a moment before. Nobody else may write to them meanwhile."""
        last: dict[int, int] = {}
        for partition, offset in placed:
            last[partition] = max(offset, last.get(partition, 0))
        self._until(lambda: all(self.end(topic, p) >= offset + 2 for p, offset in last.items()))

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset that the next record of a partition gets."""
        at = TopicPartition(topic, partition)
        wanted = {at: cast("OffsetSpec", OffsetSpec.latest())}
        futures = self.admin.list_offsets(wanted, request_timeout=REQUEST_SECONDS)
        return int(futures[at].result(REQUEST_SECONDS).offset)

    def open_transaction(self) -> Producer:
        """A producer with a transaction open, for the test to end; `send` writes into it."""
        producer = Producer(self.client(**{"transactional.id": uuid.uuid4().hex, "linger.ms": 5}))
        producer.init_transactions(REQUEST_SECONDS)
        producer.begin_transaction()
        return producer

    def read(
        self, topic: str, partition: int = 0, first: int = OFFSET_BEGINNING, **settings: Any
    ) -> list[Delivered]:
        """All messages of a partition that are there now, or those from offset `first` on; with
        `isolation.level` read_committed, those that a committed reader may see. None if there is no such
        topic."""
        wanted = {"group.id": "read", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        consumer = Consumer(self.client(**{**wanted, **settings}))
        consumer.assign([TopicPartition(topic, partition, first)])
        out: list[Delivered] = []
        try:
            while True:
                message = consumer.poll(REQUEST_SECONDS)
                assert message is not None, "the broker does not answer"
                error = message.error()
                if error is None:
                    out.append(message)
                elif error.code() in _END:
                    return out
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()

    def kill(self) -> None:
        """kill -9."""
        self.broker.kill()

    def stop(self) -> None:
        self.broker.stop()

    def start(self) -> None:
        """Start it again if it is down."""
        if not self.broker.running:
            self.broker.start()

    def restart(self) -> None:
        """An orderly stop and a start, on the same port."""
        self.stop()
        self.start()

    def _fresh_producer(self) -> Producer:
        """A producer remembers for minutes how many partitions a topic had."""
        return Producer(self.client(**{"linger.ms": 5, "acks": "all", "enable.idempotence": True}))

    def _leaders(self, topic: str) -> int | None:
        """How many partitions can be written to; None if there is no such topic."""
        found = self.admin.list_topics(topic, timeout=REQUEST_SECONDS).topics[topic]
        if found.error is not None:
            return None
        return sum(p.leader >= 0 for p in found.partitions.values())

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + REQUEST_SECONDS
        while not done():
            assert time.monotonic() < deadline, "the broker does not get there"
            time.sleep(0.01)


def send(producer: Producer, topic: str, records: Iterable[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """Produce with any producer; the (partition, offset) of each record, in the order given."""
    placed: dict[int, tuple[int, int]] = {}
    failed: list[KafkaError] = []

    def deliver(number: int) -> Any:
        def delivered(error: KafkaError | None, message: Delivered) -> None:
            if error is not None:
                failed.append(error)
            else:
                placed[number] = (message.partition() or 0, message.offset() or 0)

        return delivered

    count = 0
    for count, given in enumerate(records, 1):
        record = Record(*given)
        options: dict[str, Any] = {"on_delivery": deliver(count)}
        if record.headers is not None:
            options["headers"] = list(record.headers)
        if record.timestamp is not None:
            options["timestamp"] = record.timestamp
        if record.partition is not None:
            options["partition"] = record.partition
        while True:
            try:
                producer.produce(topic, key=record.key, value=record.value, **options)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(REQUEST_SECONDS)
    if failed:
        raise KafkaException(failed[0])
    assert left == 0 and len(placed) == count, f"{left} of {count} records were not acknowledged"
    return [placed[number] for number in range(1, count + 1)]


def _wait(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(REQUEST_SECONDS)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    broker = Broker(tmp_path_factory.mktemp("kafka"), secure=True)
    try:
        broker.start()
        yield Kafka(broker)
    finally:
        broker.stop()


@pytest.fixture(autouse=True)
def _all_run(request: pytest.FixtureRequest) -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """A test that took something down and failed is not the next one's trouble. No busy broker is given up:
    a test of how that is done sets the limit itself."""
    for name in BUNDLES:
        if name in request.fixturenames:
            request.getfixturevalue(name).start()
    with pytest.MonkeyPatch.context() as patch:
        if "kafka" in request.fixturenames:
            patch.setattr(source, "LOOK_SECONDS", REQUEST_SECONDS)
            patch.setattr(metadata, "CREATE_SECONDS", REQUEST_SECONDS)
            patch.setattr(consume, "STALL_SECONDS", REQUEST_SECONDS)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before -m looks at the markers: who uses one of the fixtures is marked so."""
    for item in items:
        if BUNDLES.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The downloads, once it is known which tests run."""
    if session.config.option.collectonly:
        return
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for name in BUNDLES.keys() & used:
        for bundle in BUNDLES[name]:
            if not jars.fetched(bundle):
                print(f"\ndownloading {bundle.name}, once", file=sys.__stderr__, flush=True)
                jars.fetch(bundle)
