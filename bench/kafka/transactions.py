"""TRANSACTION METADATA beside ENVELOPE DEBEZIUM without it: the same changes of one table, in transactions of
several sizes.

The transaction topic is read as well, and of each change the block twice: once for the cuts, once with its
row. Both read one topic, in turns, and both results are checked against the fold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import polars as pl
from confluent_kafka import Producer

from bench.kafka.changes import FIRST_LSN, FIRST_TXID, FORMATS, Changes, messages
from bench.kafka.load import QUEUE, Fold, Load, create_topic, filled, produce
from bench.kafka.ours import ours
from bench.report import Figure

SIZES = (1, 10, 10_000)
TABLE = "public.rows"
# Announced transactions that are handed to the client at once.
STRIDE = 50_000


@dataclass(frozen=True, slots=True)
class Announced:
    """BEGIN and END of every transaction of `size` changes."""

    changes: int
    size: int

    def batches(self) -> Iterator[list[dict[str, str]]]:
        count = -(-self.changes // self.size)
        for start in range(0, count, STRIDE):
            numbers = pl.select(t=pl.int_range(start, min(start + STRIDE, count)))
            first = pl.col("t") * self.size
            changes = pl.min_horizontal(self.size, self.changes - first)
            txid, lsn = first + FIRST_TXID, first * 100 + FIRST_LSN
            end = (first + self.size) * 100 + FIRST_LSN - 50
            begins = filled(
                '{"status":"BEGIN","id":"%s:%s","event_count":null,"data_collections":null,"ts_ms":1}',
                txid,
                lsn,
            )
            ended = filled(
                '{"status":"END","id":"%s:%s","event_count":%s,"data_collections":[{"data_collection":"'
                + TABLE
                + '","event_count":%s}],"ts_ms":1}',
                txid,
                end,
                changes,
                changes,
            )
            lists = numbers.select(value=pl.concat_list(begins, ended)).explode("value")
            yield lists.select(key=pl.lit("{}"), value="value").to_dicts()


def _announce(bootstrap: str, topic: str, announced: Announced) -> None:
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap,
        "linger.ms": 20,
        "enable.idempotence": "true",
        "queue.buffering.max.messages": 2 * QUEUE,
    }
    producer = Producer(settings)
    for batch in announced.batches():
        producer.produce_batch(topic, batch, partition=0)
        while len(producer) > QUEUE:
            producer.poll(0.05)
    producer.flush(600)


def _once(bootstrap: str, topic: str, size: int, fold: Fold, *, whole: bool) -> float:
    """Seconds from CREATE SOURCE until all can be read; the result is checked."""
    with ours(bootstrap) as one:
        envelope = "DEBEZIUM"
        began = time.monotonic()
        if whole:
            one.create("tx", f"{topic}-tx", "FORMAT JSON", envelope="NONE")
            envelope = f"DEBEZIUM (TRANSACTION METADATA (SOURCE tx, COLLECTION '{TABLE}'))"
        one.create("s", topic, FORMATS, envelope=envelope)
        one.caught_up("s", topic)
        seconds = time.monotonic() - began
        fold.check(one.rows("s", key="data->>'id'"))
        return seconds


def measure(bootstrap: str, *, quick: bool) -> list[Figure]:
    load = Load(50_000, 12_500) if quick else Load(1_000_000, 250_000)
    changes = Changes(load)
    fold = Fold(load.keys * load.stride).apply(changes)
    figures: list[Figure] = []
    for size in SIZES:
        topic = f"transactions-{size}"
        create_topic(bootstrap, topic)
        create_topic(bootstrap, f"{topic}-tx", partitions=1)
        produce(bootstrap, topic, changes, partial(messages, size=size))
        _announce(bootstrap, f"{topic}-tx", Announced(changes.messages, size))
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(1 if quick else 2):
            for whole, seconds in found.items():
                seconds.append(_once(bootstrap, topic, size, fold, whole=whole))
                rate = changes.messages / seconds[-1]
                print(
                    f"  transactions of {size:,}: {'whole' if whole else 'classic'} {rate:,.0f} msg/s",
                    flush=True,
                )
        ratio = statistics.median(found[False]) / statistics.median(found[True])
        rate = changes.messages / statistics.median(found[True])
        figures.append(
            Figure(
                f"transactions of {size:,} rows: {rate:,.0f} msg/s, against DEBEZIUM alone",
                f"{ratio:.2f}x",
                ">= 0.7x",
                ratio >= 0.7,
            )
        )
    return figures
