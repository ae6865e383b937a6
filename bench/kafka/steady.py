"""A producer at a steady rate, in a process of its own, which tells when it produced what.

`python -m bench.kafka.steady BOOTSTRAP TOPICS RATE EVERY SECONDS KEYS FIRST OUT`: to each of the topics
(separated by commas) RATE messages a second, in portions every EVERY seconds, over keys below KEYS;
numbers begin with FIRST. OUT becomes a Parquet file with a row for each portion and partition: topic,
partition, first offset, count, and `at`, the seconds since 1970 at which the portion was handed to the
client. The offsets are known beforehand, as nobody else writes to the topics.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from confluent_kafka import Producer

from bench.kafka.load import PARTITIONS, Load, ends, messages

FLUSH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Steady:
    """What to produce. A load of its own seed: the same messages every time."""

    bootstrap: str
    topics: tuple[str, ...]
    rate: int
    every: float
    seconds: float
    keys: int
    first: int

    @property
    def load(self) -> Load:
        """What each topic gets."""
        return Load(int(self.rate * self.seconds), self.keys, first=self.first, seed=self.first + 2)

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        given = [
            self.bootstrap,
            ",".join(self.topics),
            self.rate,
            self.every,
            self.seconds,
            self.keys,
            self.first,
        ]
        return subprocess.Popen([sys.executable, "-m", "bench.kafka.steady", *map(str, given), str(out)])

    def run(self) -> pl.DataFrame:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 2, "acks": "all"})
        portion = max(1, round(self.rate * self.every))
        records = _records(self.load, portion)
        offsets = {topic: ends(self.bootstrap, topic) for topic in self.topics}
        rows: list[tuple[str, int, int, int, float]] = []
        began = time.monotonic()
        for number, parts in enumerate(records):
            time.sleep(max(0.0, began + number * self.every - time.monotonic()))
            for topic in self.topics:
                at = time.time()
                for partition, part in enumerate(parts):
                    producer.produce_batch(topic, part, partition=partition)
                    rows.append((topic, partition, offsets[topic][partition], len(part), at))
                    offsets[topic][partition] += len(part)
            producer.poll(0)
        producer.flush(FLUSH_SECONDS)
        for topic, expected in offsets.items():
            if ends(self.bootstrap, topic) != expected:
                raise SystemExit(f"not all messages arrived in {topic}")
        return pl.DataFrame(rows, schema=["topic", "partition", "first", "count", "at"], orient="row")


def _records(load: Load, portion: int) -> list[list[list[dict[str, Any]]]]:
    """By portion and partition."""
    made = pl.concat([messages(batch) for batch in load.batches()])
    made = made.with_columns(partition=pl.col("id") % PARTITIONS, portion=np.arange(len(made)) // portion)
    found: list[list[list[dict[str, Any]]]] = []
    for one in made.partition_by("portion", maintain_order=True):
        found.append(
            [
                one.filter(pl.col("partition") == p).select("key", "value").to_dicts()
                for p in range(PARTITIONS)
            ]
        )
    return found


def main(
    bootstrap: str, topics: str, rate: str, every: str, seconds: str, keys: str, first: str, out: str
) -> None:
    steady = Steady(
        bootstrap, tuple(topics.split(",")), int(rate), float(every), float(seconds), int(keys), int(first)
    )
    steady.run().write_parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
