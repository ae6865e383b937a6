"""A sink under kill -9 of the server at every step of a round, while its table is written: the library
recovers the table's history from what is there, at every time, and nothing contradicts it. `make chaos`
goes on for many rounds.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import psycopg
import pytest
from proof_sinks import Ledger, Row, table_shard, updates_of

from support.kafka import Kafka
from support.server import ServerProcess
from tidemill.cdcv2 import Message, Recovery
from tidemill.cdcv2.untyped import from_json

STEPS = ("sink.snapshot_sent", "sink.settled", "sink.stated")
PARTITIONS = 2
SECONDS = 300.0


class World:
    def __init__(self, server: ServerProcess, said: Callable[[], list[Message]], into: str) -> None:
        self.server = server
        self.said = said
        self.into = into
        self.ledger = Ledger()
        # How far readers have come.
        self.upper = 0

    def create(self, *before: str) -> None:
        """The table and, in one go with the first kill, its sink."""
        self.server.start()
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            for statement in ("CREATE TABLE t (n int NOT NULL, x text)", *before):
                c.execute(statement.encode())
            values = ", ".join(f"({-n}, 'first')" for n in range(1, 50))
            c.execute(f"INSERT INTO t VALUES {values}, (-1, 'first')".encode())
            c.execute(f"CREATE SINK s FROM t INTO {self.into} ENVELOPE MATERIALIZE".encode())
            c.execute(f"CREATE SINK beside FROM t INTO {self.into} ENVELOPE MATERIALIZE".encode())

    def life(self, failpoint: str | None) -> None:
        """One life that ends at the failpoint, or after a while."""
        server = self.server
        server.env["TIDEMILL_FAILPOINTS"] = failpoint or ""
        server.start()
        self.ledger.start(server.sql_dsn)
        if failpoint is None:
            wanted = len(self.ledger.acknowledged) + 30
            self.until(lambda: len(self.ledger.acknowledged) >= wanted)
            server.kill9()
        else:
            server.wait_exit(SECONDS)
        self.ledger.stop()
        self.upper = self.check()

    def quiet(self) -> None:
        """A life that nothing disturbs: all that was acknowledged gets there."""
        self.server.env.pop("TIDEMILL_FAILPOINTS", None)
        self.server.start()
        self.until(lambda: set(self.ledger.acknowledged) <= {n for n, _ in self.rows()})
        assert self.server.terminate() == 0
        self.check()
        counts = self.rows()
        assert all(counts[n, "x"] == 2 for n in self.ledger.acknowledged)
        assert counts[-1, "first"] == 2 and counts[-2, "first"] == 1

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, self.server.log[-2000:]
            time.sleep(0.2)

    def rows(self) -> Counter[Row]:
        """What a reader has now."""
        found: Counter[Row] = Counter()
        for (row, _), diff in self.recovered()[0].items():
            found[row] += diff
        return found

    def recovered(self) -> tuple[Counter[tuple[Row, int]], int]:
        """Each update once, and up to where. Raises Contradiction."""
        recovery = Recovery()
        found: Counter[tuple[Row, int]] = Counter()
        messages = self.said()
        random.Random(len(messages)).shuffle(messages)
        for message in messages:
            for updates, _ in recovery.push(message):
                for data, at, diff in updates:
                    row = json.loads(str(data))
                    key = ((row["n"], row["x"]), int(str(at)))
                    assert key not in found
                    found[key] = diff
        (upper,) = recovery.frontier
        assert isinstance(upper, int)
        return found, upper

    def check(self) -> int:
        """The stream against the table's files, at every time that both have; returns how far readers are."""
        found, upper = self.recovered()
        if not found:
            return upper
        begin = min(at for _, at in found)
        shard = table_shard(self.server.data_dir)
        both = min(upper, shard.upper or 0)
        expected: Counter[tuple[Row, int]] = Counter()
        for r in updates_of(shard):
            if r["mz_timestamp"] < both:
                expected[(r["n"], r["x"]), max(begin, r["mz_timestamp"])] += r["mz_diff"]
        mine = {key: diff for key, diff in found.items() if key[1] < both}
        assert mine == {key: diff for key, diff in expected.items() if diff}
        return upper


@pytest.fixture
def topic(tmp_path: Path, kafka: Kafka) -> Generator[World]:
    server = ServerProcess(tmp_path / "data")
    server.spark = False
    name = f"sink-{time.time_ns()}"

    def said() -> list[Message]:
        found: list[Message] = []
        for partition in range(PARTITIONS):
            for m in kafka.read(name, partition):
                value = m.value()
                assert isinstance(value, bytes)
                found.append(from_json(value, f"{partition}/{m.offset()}"))
        return found

    options = f"(TOPIC '{name}', PARTITION COUNT {PARTITIONS})"
    world = World(server, said, f"KAFKA CONNECTION k {options} FORMAT JSON")
    try:
        yield world
    finally:
        world.ledger.stop()
        server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Generator[World]:
    server = ServerProcess(tmp_path / "data", args=("--files-root", str(tmp_path / "files")))
    server.spark = False

    def said() -> list[Message]:
        paths = [p for p in (tmp_path / "files" / "out").iterdir() if not p.name.startswith(".")]
        return [from_json(line, p.name) for p in paths for line in p.read_bytes().splitlines()]

    world = World(server, said, "FILES 'out' FORMAT JSON")
    try:
        yield world
    finally:
        world.ledger.stop()
        server.close()


def connection(kafka: Kafka) -> str:
    return f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')"


@pytest.mark.server
def test_a_sink_into_a_topic_is_killed_and_goes_on(topic: World, kafka: Kafka) -> None:
    topic.server.env["TIDEMILL_FAILPOINTS"] = "sink.snapshot_sent=kill"
    with contextlib.suppress(psycopg.Error):
        topic.create(connection(kafka))  # the sink is made, and then it may die before it says so
    topic.server.wait_exit(SECONDS)
    topic.life("sink.settled=kill@6")
    topic.life("sink.stated=kill@9")
    topic.life(None)
    topic.quiet()


@pytest.mark.server
def test_a_sink_into_files_is_killed_and_goes_on(folder: World) -> None:
    folder.create()
    folder.server.kill9()
    folder.life("sink.file_written=kill@3")
    folder.life("sink.settled=kill@4")
    folder.quiet()


@pytest.mark.chaos
@pytest.mark.server
def test_a_sink_is_killed_many_times(topic: World, kafka: Kafka) -> None:
    rng = random.Random(1)
    topic.create(connection(kafka))
    topic.server.kill9()
    for n in range(60):
        step = rng.choice((None, *STEPS[1:]))
        topic.life(None if step is None else f"{step}=kill@{rng.randrange(1, 40)}")
        if n % 10 == 9:
            kafka.kill()
            kafka.start()
    topic.quiet()
