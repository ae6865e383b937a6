"""A Kafka source under kill -9 of the server at every step of the tick, broker restarts, deletion of its
upsert state and killed workers: at every closed time the collection is the fold of the topic up to the
binding, and closed times never change. `make chaos` goes 200 rounds."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from proof_kafka import Judge, Ledger

from support.kafka import Kafka
from support.server import ServerProcess

STEPS = (
    "tick.before_bind",
    "tick.bind_put",
    "tick.bound",
    "tick.before_commit",
    "tick.committed",
)
TROUBLES = ("none", "cache", "broker")
WORKER_STEPS = ("tick.task.read", "tick.task.written", "persist.part.written")
PARTITIONS = 3
LIFE_SECONDS = 400.0


class World:
    def __init__(self, server: ServerProcess, kafka: Kafka, scratch: Path, seed: int) -> None:
        self.server = server
        self.kafka = kafka
        self.scratch = scratch
        self.ledger = Ledger(kafka, kafka.create_topic(partitions=PARTITIONS), PARTITIONS, seed)
        self.judge = Judge(server.data_dir, self.ledger)
        self.shards = ("", "")

    def create(self) -> None:
        self.server.start()
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            c.execute(f"CREATE CONNECTION k TO KAFKA (BROKER '{self.kafka.bootstrap}')".encode())
            c.execute(
                f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{self.ledger.topic}') "
                "KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT".encode()
            )
        found = sorted(p.name for p in (Path(self.server.data_dir) / "shards").iterdir())
        (remap,) = [n for n in found if n.endswith("-remap")]
        self.shards = (remap.removesuffix("-remap"), remap)

    def life(self, step: str, hit: int, trouble: str) -> None:
        """One life that ends at the step, with some trouble in the middle."""
        server = self.server
        server.env["TIDEMILL_FAILPOINTS"] = f"{step}=kill@{hit}"
        server.start(wait_sql=False)
        if trouble == "cache":
            time.sleep(1)
            shutil.rmtree(self.scratch, ignore_errors=True)
        elif trouble == "broker":
            self.kafka.kill()
            self.kafka.start()
        deadline = time.monotonic() + (20 if step in WORKER_STEPS else LIFE_SECONDS)
        while server.returncode is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert step in WORKER_STEPS or server.returncode is not None, f"the server did not die at {step}"
        server.kill9()
        self.ledger.stop()
        self.check()
        self.ledger.start()

    def check(self) -> int:
        return self.judge.check(*self.shards)

    def quiet(self) -> None:
        """A life that nothing disturbs: it comes to the end of the topic."""
        self.ledger.stop()
        self.server.env.pop("TIDEMILL_FAILPOINTS", None)
        self.server.start(wait_ready=True)
        deadline = time.monotonic() + LIFE_SECONDS
        total = self.judge.read_again()
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            while True:
                (row,) = c.execute('SELECT sum("offset"::bigint)::bigint FROM s_progress').fetchall()
                if row[0] == total:
                    break
                assert time.monotonic() < deadline, f"{row[0]} of {total} records were read"
                time.sleep(0.3)
        self.server.terminate()
        assert self.check() == total


@pytest.fixture
def world(tmp_path: Path, kafka: Kafka) -> Generator[World]:
    server = ServerProcess(tmp_path / "data", args=("--scratch-dir", str(tmp_path / "scratch")))
    world = World(server, kafka, tmp_path / "scratch", int(os.environ.get("TIDEMILL_TEST_SEED", "1")))
    try:
        yield world
    finally:
        world.ledger.stop()
        kafka.start()
        server.close()


@pytest.mark.timeout(3600)
def test_a_kafka_source_is_killed_and_comes_back(world: World) -> None:
    world.create()
    world.ledger.start()
    world.server.kill9()
    world.life("tick.task.written", 5, "none")
    world.life("tick.before_commit", 4, "broker")
    world.life("tick.committed", 3, "cache")
    world.quiet()
    assert world.ledger.intents > 500


@pytest.mark.chaos
def test_a_kafka_source_is_killed_many_times(world: World) -> None:
    rng = random.Random(world.ledger.seed)
    world.create()
    world.ledger.start()
    world.server.kill9()
    for n in range(200):
        step = rng.choice((*STEPS, *WORKER_STEPS))
        world.life(step, rng.randrange(1, 12), rng.choice(TROUBLES))
        if n % 20 == 19:
            world.quiet()
            world.ledger.start()
    world.quiet()
