"""From a commit in PostgreSQL to the row in Tidemill, through a real Debezium: how long it takes, and how
much of it is Debezium's.

A change has arrived when the broker appended it (its timestamp), and is there as in `bench.kafka.fresh`:
from the first binding that covers its offset on, once the source's frontier is past it. There is one clock,
the machine's.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.kafka.changes import index_bytes, sidecar_bytes
from bench.kafka.fresh import POLL_SECONDS, WARM_SECONDS
from bench.kafka.load import REQUEST_SECONDS
from bench.kafka.ours import ours
from bench.report import Figure, p50_p99, percentile
from tidemill.dev.connect import Connect, debezium
from tidemill.dev.postgres import Postgres

PREFIX, TABLE = "up", "rows"
TOPIC = f"{PREFIX}.public.{TABLE}"
ROWS = 10_000
FORMATS = "KEY FORMAT JSON VALUE FORMAT JSON"
SETTINGS = {
    # The time at which the broker has a message, not the one at which it was made.
    "topic.creation.default.message.timestamp.type": "LogAppendTime",
    "provide.transaction.metadata": "false",
}
READ_SECONDS = 60.0
SAMPLE_SECONDS = 15.0


@contextmanager
def upstream(bootstrap: str) -> Generator[Postgres]:
    """A table of `ROWS` rows, and a connector that has taken its snapshot."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-upstream-")))
        postgres, connect = Postgres(folder / "postgres"), Connect(folder / "connect", bootstrap)
        stack.callback(postgres.stop)
        postgres.start()
        with psycopg.connect(postgres.dsn, autocommit=True) as sql:
            sql.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY, n bigint NOT NULL, note text)".encode())
            sql.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL".encode())
            fill = f"INSERT INTO {TABLE} SELECT i, -1, repeat('x', 100) FROM generate_series(1, {ROWS}) i"
            sql.execute(fill.encode())
        stack.callback(connect.stop)
        connect.start()
        connect.create(PREFIX, debezium(PREFIX, postgres, [f"public.{TABLE}"]) | SETTINGS)
        while _end(bootstrap) < ROWS:
            time.sleep(POLL_SECONDS)
        yield postgres


def _end(bootstrap: str) -> int:
    """Of the topic's one partition; 0 while there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    try:
        found = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=REQUEST_SECONDS)
        return int(found[1])
    except KafkaException:
        return 0
    finally:
        consumer.close()


class Writer(threading.Thread):
    """Commits `rate` updates a second, each of one row; `committed` has the time behind each."""

    def __init__(self, postgres: Postgres, rate: int, seconds: float) -> None:
        super().__init__(name="bench-writer", daemon=True)
        self._postgres = postgres
        self._every = 1 / rate
        self.committed = np.zeros(int(rate * seconds))
        self.failed: psycopg.Error | None = None

    def run(self) -> None:
        statement = f"UPDATE {TABLE} SET n = %s WHERE id = %s".encode()
        try:
            with psycopg.connect(self._postgres.dsn, autocommit=True) as sql:
                began = time.monotonic()
                for n in range(len(self.committed)):
                    time.sleep(max(0.0, began + n * self._every - time.monotonic()))
                    sql.execute(statement, (n, n % ROWS + 1))
                    self.committed[n] = time.time()
        except psycopg.Error as e:
            self.failed = e


def _arrived(bootstrap: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each commit: the offset of its change, and when the broker had it."""
    offsets, times = np.full(count, -1, np.int64), np.zeros(count)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, ROWS)])
        deadline = time.monotonic() + READ_SECONDS
        while (offsets < 0).any():
            if time.monotonic() > deadline:
                raise SystemExit("changes are missing in the topic")
            for message in consumer.consume(10_000, 1.0):
                n = int(json.loads(message.value() or b"")["after"]["n"])
                offsets[n], times[n] = message.offset() or 0, message.timestamp()[1] / 1000
    finally:
        consumer.close()
    return offsets, times


def measure(bootstrap: str, *, quick: bool) -> list[Figure]:
    rate, seconds = (50, 10.0) if quick else (200, 90.0)
    with upstream(bootstrap) as postgres, ours(bootstrap) as one:
        one.create("s", TOPIC, FORMATS, envelope="DEBEZIUM")
        one.until("s", ROWS)
        writer = Writer(postgres, rate, seconds + WARM_SECONDS)
        seen: list[tuple[float, int]] = [(0.0, 0)]
        sizes: list[str] = []
        began = time.time()
        writer.start()
        ended = None
        while ended is None or seen[-1][1] <= ended + 2000:
            frontier = one.frontiers(["s"])["s"]
            if frontier > seen[-1][1]:
                seen.append((time.time(), frontier))
            if time.time() > began + len(sizes) * SAMPLE_SECONDS:
                sizes.append(f"{index_bytes(one) + sidecar_bytes(one):,}")
            if ended is None and not writer.is_alive() and _end(bootstrap) >= ROWS + len(writer.committed):
                ended = time.time() * 1000
            if writer.failed is not None:
                raise writer.failed
            time.sleep(POLL_SECONDS)
        offsets, arrived = _arrived(bootstrap, len(writer.committed))
        bound = one.bindings("s").sort("time")
        ((rows, total),) = one.execute("SELECT count(*), sum((data->>'n')::bigint) FROM s")
    with_n = np.full(ROWS, -1)
    with_n[np.arange(len(writer.committed)) % ROWS] = np.arange(len(writer.committed))
    if (int(rows), int(total)) != (ROWS, int(with_n.sum())):
        raise SystemExit(f"the relation has {rows} rows whose sum is {total}, not {ROWS} and {with_n.sum()}")
    times = bound["time"].to_numpy()[np.searchsorted(bound["value"].to_numpy(), offsets, side="right")]
    frontiers = np.array([frontier for _, frontier in seen])
    visible = np.array([at for at, _ in seen])[np.searchsorted(frontiers, times, side="right")]
    late = writer.committed > writer.committed[0] + WARM_SECONDS
    whole = (visible - writer.committed)[late].tolist()
    theirs = (arrived - writer.committed)[late].tolist()
    own = (visible - arrived)[late].tolist()
    p99 = percentile(whole, 99)
    what = f"commit in PostgreSQL to visible, {rate} commits/s, ticks of 1s, {seconds:.0f} s"
    return [
        Figure(what, p50_p99(whole), "p99 <= 3 s", p99 <= 3.0),
        Figure("... of it from the commit to the broker (Debezium)", p50_p99(theirs), ""),
        Figure("... and from the broker to visible", p50_p99(own), ""),
        Figure(
            f"... state beside the rows, bytes on the disk every {SAMPLE_SECONDS:.0f} s", "; ".join(sizes), ""
        ),
    ]
