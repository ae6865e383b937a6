"""A sink with ENVELOPE UPSERT under kill -9 of the server at every step of a transaction, while its table
changes: a reader of committed messages has each change of the table once, and no other. `make chaos` goes on
for many rounds.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING
from proof_sinks import table_shard, updates_of

from support.kafka import Kafka
from support.server import ServerProcess

STEPS = ("sink.transaction_sent", "sink.transaction_ready", "sink.stated")
COMMITTED: dict[str, Any] = {"isolation.level": "read_committed"}
PARTITIONS = 2
KEYS = 40
SECONDS = 300.0


class Changer:
    """Changes rows of the table, by key, until it is stopped or the server dies. Without `mixed` rows come
    only, which needs no Spark."""

    def __init__(self, *, mixed: bool) -> None:
        self.acknowledged = 0
        self._mixed = mixed
        self._intents = KEYS
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rng = random.Random(1)

    def start(self, dsn: str) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(dsn,), daemon=True)
        self._thread.start()

    def _run(self, dsn: str) -> None:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as c:
            while not self._stop.wait(0.02):
                self._intents += 1
                if self._mixed:
                    n = self._rng.randrange(KEYS)
                    change = f"DELETE FROM t WHERE n = {n}"
                    if self._rng.random() < 0.7:
                        change = f"UPDATE t SET x = {self._intents} WHERE n = {n}"
                    c.execute(change.encode())
                c.execute(f"INSERT INTO t VALUES ({self._intents}, {self._intents})".encode())
                self.acknowledged += 1

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class World:
    def __init__(self, server: ServerProcess, kafka: Kafka, *, mixed: bool) -> None:
        self.server = server
        self.kafka = kafka
        self.topic = f"keyed-{time.time_ns()}"
        self.changer = Changer(mixed=mixed)

    def create(self) -> None:
        self.server.start()
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            c.execute(b"CREATE TABLE t (n int NOT NULL, x int)")
            values = ", ".join(f"({n}, -1)" for n in range(KEYS // 2))
            c.execute(f"INSERT INTO t VALUES {values}".encode())
            c.execute(f"CREATE CONNECTION k TO KAFKA (BROKER '{self.kafka.bootstrap}')".encode())
            c.execute(
                f"CREATE SINK s FROM t INTO KAFKA CONNECTION k (TOPIC '{self.topic}', "
                f"PARTITION COUNT {PARTITIONS}, PROGRESS TOPIC '{self.topic}-p') "
                "KEY (n) FORMAT JSON ENVELOPE UPSERT".encode()
            )

    def life(self, failpoint: str | None) -> None:
        """One life that ends at the failpoint, or after a while."""
        self.server.env["TIDEMILL_FAILPOINTS"] = failpoint or ""
        self.server.start()
        self.changer.start(self.server.sql_dsn)
        if failpoint is None:
            wanted = self.changer.acknowledged + 30
            self.until(lambda: self.changer.acknowledged >= wanted)
            self.server.kill9()
        else:
            self.server.wait_exit(SECONDS)
        self.changer.stop()
        self.check()

    def quiet(self) -> None:
        """A life that nothing disturbs: all that was acknowledged gets there."""
        self.server.env.pop("TIDEMILL_FAILPOINTS", None)
        self.server.start()
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            c.execute(b"INSERT INTO t VALUES (-1, -1)")
        self.until(lambda: -1 in self.rows())
        assert self.server.terminate() == 0
        self.check()
        table: Counter[tuple[int, int]] = Counter()
        for r in updates_of(table_shard(self.server.data_dir)):
            table[r["n"], r["x"]] += r["mz_diff"]
        assert self.rows() == {n: x for (n, x), count in table.items() if count}

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, self.server.log[-2000:]
            time.sleep(0.2)

    def said(self) -> dict[tuple[int, int], int | None]:
        """By key and time; each comes once, and a key's in the order of time."""
        found: dict[tuple[int, int], int | None] = {}
        for partition in range(PARTITIONS):
            last: dict[int, int] = {}
            for m in self.kafka.read(self.topic, partition, OFFSET_BEGINNING, **COMMITTED):
                key, value = m.key(), m.value()
                n, at = json.loads(key or b"")["n"], m.timestamp()[1]
                assert at > last.get(n, 0), f"key {n} at {at} after {last.get(n)}"
                last[n] = at
                found[n, at] = None if value is None else json.loads(value)["x"]
        return found

    def rows(self) -> dict[int, int]:
        """What a reader has now."""
        found: dict[int, int | None] = {}
        for (n, _), x in sorted(self.said().items(), key=lambda e: e[0][1]):
            found[n] = x
        return {n: x for n, x in found.items() if x is not None}

    def check(self) -> None:
        """The topic against the table's files, up to the time of the committed progress."""
        said = self.kafka.read(f"{self.topic}-p", 0, OFFSET_BEGINNING, **COMMITTED)
        uppers = [json.loads(m.value() or b"")["upper"] for m in said]
        upper = next((u for u in reversed(uppers) if u is not None), 0)
        assert [u for u in uppers if u is not None] == sorted(u for u in uppers if u is not None)
        found = self.said()
        assert all(at < upper for _, at in found)
        begin = min((at for _, at in found), default=0)
        changes: dict[tuple[int, int], int | None] = {}
        initial: dict[int, int] = {}
        for r in sorted(updates_of(table_shard(self.server.data_dir)), key=lambda r: r["mz_timestamp"]):
            at, n, x, diff = r["mz_timestamp"], r["n"], r["x"], r["mz_diff"]
            if at <= begin:
                initial[n] = initial.get(n, 0) + diff
                if diff > 0:
                    changes[n, begin] = x
            elif at < upper:
                if diff > 0:
                    changes[n, at] = x
                else:
                    changes.setdefault((n, at), None)
        wanted = {c: x for c, x in changes.items() if c[1] > begin or initial[c[0]]}
        assert found == (wanted if found else {})


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, kafka: Kafka) -> Generator[World]:
    mixed = bool(request.node.get_closest_marker("chaos"))
    server = ServerProcess(tmp_path / "data")
    server.spark = mixed
    made = World(server, kafka, mixed=mixed)
    try:
        yield made
    finally:
        made.changer.stop()
        server.close()


@pytest.mark.server
def test_a_keyed_sink_is_killed_and_goes_on(world: World) -> None:
    world.server.env["TIDEMILL_FAILPOINTS"] = "sink.transaction_sent=kill"
    with contextlib.suppress(psycopg.Error):
        world.create()  # the sink is made, and then it may die before it says so
    world.server.wait_exit(SECONDS)
    world.check()
    world.life("sink.transaction_ready=kill@4")
    world.life("sink.stated=kill@6")
    world.quiet()


@pytest.mark.chaos
@pytest.mark.server
@pytest.mark.timeout(4 * 3600)
def test_a_keyed_sink_is_killed_many_times(world: World, kafka: Kafka) -> None:
    rng = random.Random(1)
    world.create()
    world.server.kill9()
    for n in range(200):
        step = rng.choice((None, *STEPS))
        world.life(None if step is None else f"{step}=kill@{rng.randrange(1, 40)}")
        if n % 10 == 9:
            kafka.kill()
            kafka.start()
    world.quiet()
