"""A producer with a ledger, and a judge who holds an upsert source's shards against it.

The producer writes down what it means to send and what the broker acknowledged. The judge reads the bindings
and the data from the files alone, reads the topic with a client of its own, and folds it in plain Python: at
every time that is closed, the collection must be the fold up to the binding. It knows nothing of readers,
envelopes and states.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer

from support.kafka import Kafka
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import cumulated, retained
from tidemill.sources.contract import Gauge
from tidemill.types.model import INT4, UINT8, Column

GAUGE = Gauge(Column("offset", UINT8, nullable=False), Column("partition", INT4, nullable=False))
KEYS = 300
# Between two bursts of the producer: some two hundred records a second.
PAUSE_SECONDS = 0.05


@dataclass
class Ledger:
    """Random upserts and deletions over the partitions of a topic, as fast as the pause lets it."""

    kafka: Kafka
    topic: str
    partitions: int
    seed: int
    # (partition, offset) -> what was sent, for what was acknowledged; written by the client's callback.
    acknowledged: dict[tuple[int, int], tuple[str, str | None]] = field(default_factory=dict[Any, Any])
    intents: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        rng = random.Random(f"{self.seed} {self.intents}")
        producer = Producer(self.kafka.client(**{"linger.ms": 5, "enable.idempotence": True}))
        while not self._stop.wait(PAUSE_SECONDS):
            for _ in range(rng.randrange(1, 20)):
                self.intents += 1
                key = f"k{rng.randrange(KEYS)}"
                value = None if rng.random() < 0.1 else f"{key}={self.intents}"
                try:
                    # A key may come through any partition: the greatest (partition, offset) of a time wins.
                    producer.produce(
                        self.topic,
                        key=key,
                        value=value,
                        partition=rng.randrange(self.partitions),
                        on_delivery=self._delivered(key, value),
                    )
                except (BufferError, KafkaException):
                    break
            producer.poll(0)
        producer.flush(120)

    def _delivered(self, key: str, value: str | None) -> Any:
        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged[message.partition(), message.offset()] = (key, value)

        return delivered


@dataclass
class Judge:
    data_dir: str
    ledger: Ledger
    # (time) -> the rows then, once seen: they never change.
    closed: dict[int, Counter[Any]] = field(default_factory=dict[int, Counter[Any]])
    bound: list[Any] = field(default_factory=list[Any])

    def check(self, shard_id: str, remap_id: str) -> int:
        """Compare everything that is closed; returns how many records are in the collection."""
        acknowledged = dict(self.ledger.acknowledged)
        topic = {
            (p, m.offset()): (_text(m.key()), _text(m.value()))
            for p in range(self.ledger.partitions)
            for m in self.ledger.kafka.read(self.ledger.topic, p)
        }
        for at, said in acknowledged.items():
            assert topic.get(at) == said, f"the broker lost or changed {at}"
        blobs = open_blobs(self.data_dir, {})
        bindings = cumulated(retained(Shard.open(blobs, remap_id, epoch=None), GAUGE))
        known = [b for b in self.bound if not bindings or b[0] >= bindings[0][0]]
        assert [b for b in bindings if not known or b[0] <= known[-1][0]] == known or not known
        self.bound = bindings
        shard = Shard.open(blobs, shard_id, epoch=None)
        upper, done = shard.upper or 0, 0
        rows: dict[str, str] = {}
        seen: dict[int, int] = {}
        for time, frontier in bindings:
            if time >= upper:
                break
            for partition in range(self.ledger.partitions):
                for offset in range(seen.get(partition, 0), frontier[partition]):
                    key, value = topic[partition, offset]
                    assert key is not None
                    rows.pop(key, None)
                    if value is not None:
                        rows[key] = value
                seen[partition] = max(seen.get(partition, 0), frontier[partition])
            done = sum(seen.values())
            if time < shard.since:
                continue
            with shard.snapshot(time) as snapshot:
                table = snapshot.read()
            actual: Counter[Any] = Counter()
            for row in table.to_pylist():
                assert row["mz_error"] is None, row
                actual[row["key"], row["text"]] += row["mz_diff"]
            expected = Counter(rows.items())
            assert actual == expected, f"at {time}: {actual - expected} too many, {expected - actual} missing"
            assert self.closed.setdefault(time, actual) == actual, f"{time} has changed"
        return done


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data
