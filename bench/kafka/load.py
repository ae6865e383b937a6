"""The load: keyed JSON messages of one size, produced fast, and what they add up to.

A message is a function of its key and its number, so that a result can be checked in whole without keeping
what was produced: `Fold` remembers the number of each key's last message, and `fields` says what that
message said. Shared by all parts of `bench_kafka`; every peer's result is checked here, and ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 3
MESSAGE_BYTES = 188
TOMBSTONES = 0.01
# Messages that are made and handed to the client at once; and how many of its own may wait in it.
BATCH = 50_000
QUEUE = 400_000
REQUEST_SECONDS = 60.0
# What fills a message up to its size.
_NOTE = "a note of some length that tells nothing but takes its place in the message, as notes do, " * 3
# What a message says, in this order.
SCHEMA: dict[str, type[pl.DataType]] = {
    "id": pl.Int64,
    "name": pl.String,
    "amount": pl.Float64,
    "state": pl.Int64,
    "at": pl.Int64,
    "n": pl.Int64,
    "note": pl.String,
}


class Wrong(Exception):
    """A result that does not equal the fold."""


@dataclass(frozen=True, slots=True)
class Load:
    """`messages` over `keys` keys, which are `stride` apart. With `once` each key comes exactly once, in a
    random order; else keys are drawn at random, and some messages are tombstones. Numbers begin with `first`,
    so that loads on one topic differ."""

    messages: int
    keys: int
    stride: int = 1
    first: int = 0
    once: bool = False
    seed: int = 1

    def batches(self) -> Iterator[pl.DataFrame]:
        """`id`, `n` and `gone` of the messages, in the order of their production; the same every time."""
        rng = np.random.default_rng(self.seed)
        shuffled = rng.permutation(self.keys) if self.once else None
        for start in range(0, self.messages, BATCH):
            count = min(BATCH, self.messages - start)
            if shuffled is None:
                keys, gone = rng.integers(0, self.keys, count), rng.random(count) < TOMBSTONES
            else:
                keys, gone = shuffled[start : start + count], np.zeros(count, dtype=bool)
            ids = keys.astype(np.int64) * self.stride
            yield pl.DataFrame({"id": ids, "n": np.arange(count) + start + self.first, "gone": gone})


def fields() -> list[pl.Expr]:
    """What the message of `id` and `n` says; all but the note, which fills the rest."""
    key, n = pl.col("id"), pl.col("n")
    return [
        key,
        pl.format("name {}", key * 31 % 1000).alias("name"),
        ((n * 7919 % 100_000) / 4).alias("amount"),
        (n % 5).alias("state"),
        (n + 1_700_000_000_000).alias("at"),
        n,
    ]


def filled(template: str, *values: pl.Expr) -> pl.Expr:
    """The text with a value in place of each %s. pl.format takes the braces of JSON for names."""
    texts = [pl.lit(text) for text in template.split("%s")]
    parts = [part for pair in zip(texts, values, strict=False) for part in pair]
    return pl.concat_str(*parts, *texts[len(values) :])


def _with_note(frame: pl.DataFrame) -> pl.DataFrame:
    """`json`, the message up to its note, and the note."""
    parts: list[pl.Expr] = [
        pl.lit('{"id":'), pl.col("id"), pl.lit(',"name":"'), pl.col("name"), pl.lit('","amount":'),
        pl.col("amount"), pl.lit(',"state":'), pl.col("state"), pl.lit(',"at":'), pl.col("at"),
        pl.lit(',"n":'), pl.col("n"), pl.lit(',"note":"'),
    ]  # fmt: skip
    json = pl.concat_str(parts)
    room = MESSAGE_BYTES - pl.col("json").str.len_bytes() - 2
    return frame.with_columns(json=json).with_columns(note=pl.lit(_NOTE).str.slice(0, room))


def row_texts(numbers: pl.DataFrame) -> pl.Series:
    """The message of each `id` and `n` as JSON."""
    return (
        _with_note(numbers.select(*fields())).select(pl.concat_str("json", "note", pl.lit('"}'))).to_series()
    )


def messages(batch: pl.DataFrame) -> pl.DataFrame:
    """`key` and `value` (null for a tombstone) of a batch."""
    whole = _with_note(batch.select(*fields(), "gone"))
    value = pl.when("gone").then(None).otherwise(pl.concat_str("json", "note", pl.lit('"}')))
    return whole.select(key=pl.col("id").cast(pl.String), value=value, id="id")


class AnyLoad(Protocol):
    """What is produced, in the order of its production: `id`, `n` and `gone`, and what its messages need."""

    @property
    def messages(self) -> int: ...

    def batches(self) -> Iterator[pl.DataFrame]: ...


class Fold:
    """The last message of each key below `limit`."""

    def __init__(self, limit: int) -> None:
        # Its number; -1 where the key is not there.
        self._last = np.full(limit, -1, dtype=np.int64)

    def apply(self, load: AnyLoad) -> Fold:
        for batch in load.batches():
            numbers = batch["n"].to_numpy().copy()
            numbers[batch["gone"].to_numpy()] = -1
            # Where a key comes twice numpy keeps what was assigned last.
            self._last[batch["id"].to_numpy()] = numbers
        return self

    def __len__(self) -> int:
        return int((self._last >= 0).sum())

    def check(self, result: Iterable[pl.DataFrame]) -> None:
        """`result`, in pieces, has `key` and the fields of `SCHEMA`, in any order of rows; raises `Wrong`."""
        seen = np.zeros(len(self._last), dtype=bool)
        rows = 0
        for piece in result:
            self._check(piece)
            seen[piece["id"].to_numpy()] = True
            rows += len(piece)
        if rows != len(self) or seen.sum() != rows:
            raise Wrong(f"{rows:,} rows of {seen.sum():,} keys instead of {len(self):,}")

    def _check(self, piece: pl.DataFrame) -> None:
        ids = piece["id"].to_numpy()
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self._last)):
            raise Wrong("a key that was never produced")
        late = self._last[ids] != piece["n"].to_numpy()
        if late.any():
            raise Wrong(f"{late.sum():,} keys without their last message; one of them is {ids[late][0]}")
        # The number is the right one: now all that hangs on it.
        expected = _with_note(piece.select("id", "n").select(*fields()))
        for name in (*SCHEMA, "key"):
            wanted = expected["id"].cast(pl.String) if name == "key" else expected[name]
            if not wanted.equals(piece[name]):
                raise Wrong(f"wrong values of {name}")


def create_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Returns when it can be written to. What it holds stays until the broker's folder goes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # The load must not expire under a long run.
    new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[topic].result(REQUEST_SECONDS)
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            ends(bootstrap, topic, partitions)
            return
        except KafkaException:
            # The partitions have no leaders yet.
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def ends(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> list[int]:
    """The last stable offset of each partition: control records of transactions take offsets too."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    try:
        found = [
            consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=REQUEST_SECONDS)
            for p in range(partitions)
        ]
        assert all(found), "the broker did not tell the ends of the topic"
        return [pair[1] for pair in found if pair]
    finally:
        consumer.close()


@dataclass(slots=True)
class Open:
    """A load that is in the topic, but in a transaction that nobody has committed yet."""

    producer: Producer

    def commit(self) -> None:
        """Now all of it is there at once."""
        self.producer.commit_transaction(REQUEST_SECONDS)


def produce(
    bootstrap: str, topic: str, load: AnyLoad, made: Callable[[pl.DataFrame], pl.DataFrame] = messages
) -> None:
    """Produce the whole load and see that it arrived. `made` makes the messages of a batch."""
    before = sum(ends(bootstrap, topic))
    producer = _producer(bootstrap)
    _send(producer, topic, load, made)
    arrived = sum(ends(bootstrap, topic)) - before
    if arrived != load.messages:
        raise Wrong(f"{arrived:,} of {load.messages:,} messages arrived in {topic}")


def produce_open(bootstrap: str, topic: str, load: Load) -> Open:
    """Produce the load in one transaction, for `Open.commit` to show it: so a source that runs gets a backlog
    at one moment."""
    # The broker lets a transaction be open for 15 minutes at most.
    producer = _producer(
        bootstrap, **{"transactional.id": f"bench-{topic}", "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(REQUEST_SECONDS)
    producer.begin_transaction()
    _send(producer, topic, load)
    return Open(producer)


def _producer(bootstrap: str, **more: str | int) -> Producer:
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": "true",
        "linger.ms": 20,
        "batch.size": 1 << 20,
        "queue.buffering.max.messages": 2 * QUEUE,
        "queue.buffering.max.kbytes": 1 << 20,
    }
    return Producer(settings | more)


def _send(
    producer: Producer, topic: str, load: AnyLoad, make: Callable[[pl.DataFrame], pl.DataFrame] = messages
) -> None:
    for batch in load.batches():
        made = make(batch)
        # A key stays in its partition whatever the load, as with any partitioner: else it would have no last
        # message. (A stride that PARTITIONS divides would put all keys into one.)
        for partition in range(PARTITIONS):
            mine = made.filter(pl.col("id") % PARTITIONS == partition)
            records = mine.select("key", "value").to_dicts()
            queued = producer.produce_batch(topic, records, partition=partition)
            if queued != len(records):
                raise Wrong(f"the client took {queued:,} of {len(records):,} messages")
        while len(producer) > QUEUE:
            producer.poll(0.05)
    left = producer.flush(10 * REQUEST_SECONDS)
    if left:
        raise Wrong(f"{left:,} messages were not acknowledged")
