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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer

from support.kafka import Kafka
from tidemill.persist.blob import open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import cumulated, retained
from tidemill.sources.contract import Gauge
from tidemill.types.model import INT4, UINT8, Column

GAUGE = Gauge(Column("offset", UINT8, nullable=False), Column("partition", INT4, nullable=False))
KEYS = 300
# A key and its value; and as a record of the topic, which may lack either.
Row = tuple[str, str]
Message = tuple[str | None, str | None]
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
    # Partition and what was sent, where the broker had it when the client tried again: it does not say where.
    acknowledged_again: set[tuple[int, str, str | None]] = field(default_factory=set[Any])
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
            if error is None and message.offset() is None:
                self.acknowledged_again.add((message.partition(), key, value))
            elif error is None:
                self.acknowledged[message.partition(), message.offset()] = (key, value)

        return delivered


@dataclass
class Judge:
    """Its rounds stay short in a long history: the topic is read on from where it ended, its fold is kept up
    to the collection's since, which never goes back, and the collection's updates are read once for all times
    that are compared."""

    data_dir: str
    ledger: Ledger
    bound: list[Any] = field(default_factory=list[Any])
    # (partition, offset) -> key and value, of all that was ever seen.
    topic: dict[tuple[int, int], Message] = field(default_factory=dict[Any, Any])
    since: int = 0
    folded: Fold = field(default_factory=lambda: Fold())

    def check(self, shard_id: str, remap_id: str) -> int:
        """Compare everything that is closed; returns how many records are in the collection."""
        self._read_on()
        blobs = open_blobs(self.data_dir, {})
        bindings = cumulated(retained(Shard.open(blobs, remap_id, epoch=None), GAUGE))
        known = [b for b in self.bound if not bindings or b[0] >= bindings[0][0]]
        assert [b for b in bindings if not known or b[0] <= known[-1][0]] == known or not known
        self.bound = bindings
        shard = Shard.open(blobs, shard_id, epoch=None, cache=PartCache())
        upper = shard.upper or 0
        assert shard.since >= self.since, "since went back"
        self.since = shard.since
        updates = _updates(shard, upper)
        fold = self.folded.copy()
        compared = False
        # All that is there at the first time that is compared; then what changes from one to the next.
        expected, actual = Counter(fold.rows.items()), Counter[Row]()
        for time, frontier in bindings:
            if time <= fold.time:
                continue
            if time >= upper:
                break
            ends = [frontier[partition] for partition in range(self.ledger.partitions)]
            expected.update(fold.advance(time, ends, self.topic))
            if time < shard.since:
                self.folded = fold.copy()
                continue
            while updates and updates[-1][0] <= time:
                actual.update(updates.pop()[1])
            if _net(expected) != _net(actual):
                differ = {row: actual[row] - expected[row] for row in {*actual, *expected}}
                raise AssertionError(f"at {time} too many or missing: {_net(differ)}")
            expected, actual = Counter(), Counter()
            compared = True
        assert not (compared and updates), f"updates after the last binding: {updates[0]}"
        return sum(fold.seen.values())

    def _read_on(self) -> None:
        """What came to the topic since; what was acknowledged must be in it."""
        for partition in range(self.ledger.partitions):
            first = sum(at[0] == partition for at in self.topic)
            for m in self.ledger.kafka.read(self.ledger.topic, partition, first):
                offset = m.offset()
                assert offset is not None and offset >= first, "the broker went back"
                self.topic[partition, offset] = (_text(m.key()), _text(m.value()))
        for at, said in self.ledger.acknowledged.items():
            assert self.topic.get(at) == said, f"the broker lost or changed {at}"
        if again := self.ledger.acknowledged_again.copy():
            lost = again - {(partition, *message) for (partition, _), message in self.topic.items()}
            assert not lost, f"the broker lost {lost}"

    def read_again(self) -> int:
        """The whole topic must be what it was; returns how many records it has."""
        before = dict(self.topic)
        self.topic.clear()
        self._read_on()
        assert before.items() <= self.topic.items(), "the broker lost or changed what it had"
        return len(self.topic)


@dataclass
class Fold:
    """The rows that the topic has up to the binding of a time."""

    time: int = -1
    rows: dict[str, str] = field(default_factory=dict[str, str])
    seen: dict[int, int] = field(default_factory=dict[int, int])

    def copy(self) -> Fold:
        return Fold(self.time, dict(self.rows), dict(self.seen))

    def advance(
        self, time: int, frontier: Sequence[int], topic: dict[tuple[int, int], Message]
    ) -> Counter[Row]:
        """To the time's binding; how the number of copies of each row changes."""
        before: dict[str, str | None] = {}
        for partition, end in enumerate(frontier):
            for offset in range(self.seen.get(partition, 0), end):
                key, value = topic[partition, offset]
                assert key is not None
                before.setdefault(key, self.rows.get(key))
                self.rows.pop(key, None)
                if value is not None:
                    self.rows[key] = value
            self.seen[partition] = max(self.seen.get(partition, 0), end)
        self.time = time
        changes: Counter[Row] = Counter()
        for key, old in before.items():
            if old is not None:
                changes[key, old] -= 1
            if key in self.rows:
                changes[key, self.rows[key]] += 1
        return changes


def _updates(shard: Shard, upper: int) -> list[tuple[int, Counter[Row]]]:
    """All updates before `upper`, by time, the latest first."""
    by_time: dict[int, Counter[Row]] = {}
    if upper <= shard.since:
        return []
    with shard.snapshot(upper - 1) as snapshot:
        for part in snapshot.parts:
            for row in snapshot.read_part(part).to_pylist():
                assert row["mz_error"] is None, row
                changes = by_time.setdefault(row["mz_timestamp"], Counter())
                changes[row["key"], row["text"]] += row["mz_diff"]
    return sorted(by_time.items(), key=lambda item: item[0], reverse=True)


def _net(changes: dict[Row, int]) -> dict[Row, int]:
    return {row: count for row, count in changes.items() if count}


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data
