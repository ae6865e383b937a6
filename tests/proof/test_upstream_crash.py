"""Folders, buckets, Kinesis and PubNub under kill -9 of the server at every step of the tick, killed workers,
and restarts of the upstream: at every closed time each table has exactly the rows of what was put and is
bound, and closed times never change. `make chaos` tries each pair of a kind and a step.

Kafka has this in `test_kafka_crash`, PostgreSQL in `test_postgres_ledger`, the load generators in
`test_tick_crash`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from proof_upstreams import Bucket, Channels, Folder, Stream, ToldBucket, Upstream, UpstreamJudge

from support.kinesis import Kinesis
from support.s3 import S3Server
from support.server import ServerProcess

pytestmark = pytest.mark.server

# The steps of a tick at which the server is killed; those of tasks kill a worker, again and again.
SERVER_STEPS = (
    "tick.before_bind",
    "tick.bind_put",
    "tick.bound",
    "tick.before_commit",
    "tick.committed",
    "tick.between_commits",
)
WORKER_STEPS = ("tick.task.read", "tick.task.written", "persist.part.written")
LIFE_SECONDS = 400.0
WORKER_LIFE_SECONDS = 20.0
# Between two puts into all upstreams.
PAUSE_SECONDS = 0.1


class World:
    """A server over upstreams that are filled all the time."""

    def __init__(self, server: ServerProcess, upstreams: Sequence[Upstream]) -> None:
        self.server = server
        self.upstreams = upstreams
        self.judge = UpstreamJudge(server.data_dir, upstreams=upstreams)
        self._rng = Random(os.environ.get("TIDEMILL_TEST_SEED", "upstreams"))
        self._lock = threading.Lock()

    def create(self) -> None:
        self.server.spark = False
        self.server.start()
        with psycopg.connect(self.server.sql_dsn, autocommit=True) as c:
            for upstream in self.upstreams:
                for statement in upstream.statements():
                    c.execute(statement.encode())
        self.server.kill9()
        self.server.spark = True

    @contextmanager
    def filled(self) -> Generator[None]:
        """While the block runs."""
        ended = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                while not ended.wait(PAUSE_SECONDS):
                    with self._lock:
                        for upstream in self.upstreams:
                            upstream.put(self._rng)
            except BaseException as e:
                failed.append(e)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failed:
            raise failed[0]

    def life(self, step: str, hit: int, *, restart: bool) -> None:
        """One life of the server that ends at the step, and is judged."""
        server = self.server
        server.env["TIDEMILL_FAILPOINTS"] = f"{step}=kill@{hit}"
        worker = step in WORKER_STEPS
        with self.filled():
            server.start(wait_sql=False)
            if restart:
                with self._lock:
                    for upstream in self.upstreams:
                        upstream.restart()
            deadline = time.monotonic() + (WORKER_LIFE_SECONDS if worker else LIFE_SECONDS)
            while server.returncode is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert worker or server.returncode is not None, f"the server did not die at {step}"
            server.kill9()
        self.judge.check()

    def quiet(self) -> None:
        """A life that nothing disturbs: everything that was put is there, once."""
        server = self.server
        server.env.pop("TIDEMILL_FAILPOINTS", None)
        for upstream in self.upstreams:
            upstream.settle()
        server.start()
        deadline = time.monotonic() + LIFE_SECONDS
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:

            def until(sql: str, done: Callable[[Any], bool]) -> Any:
                while True:
                    ((found,),) = c.execute(sql.encode()).fetchall()
                    if done(found):
                        return found
                    assert time.monotonic() < deadline, (sql, found)
                    time.sleep(0.2)

            for upstream in self.upstreams:
                for table in upstream.tables.keys() - upstream.keyed:
                    wanted = upstream.counts[table]
                    until(f"SELECT count(*) FROM {upstream.name}_{table}", lambda n, w=wanted: n == w)
            # What has keys has come as far, too.
            last = until(
                "SELECT max(mz_timestamp)::text::bigint FROM mz_internal.mz_source_bindings", is_number
            )
            names = ", ".join(f"'{u.name}_{table}'" for u in self.upstreams for table in u.tables)
            until(
                "SELECT min(write_frontier::text::bigint) FROM mz_internal.mz_frontiers f "
                f"JOIN mz_objects o ON o.id = f.object_id WHERE o.name IN ({names})",
                lambda at: is_number(at) and at > last,
            )
        server.terminate()
        self.judge.check()


def is_number(found: object) -> bool:
    return isinstance(found, int)


@contextmanager
def world_of(tmp_path: Path, upstreams: Sequence[Upstream]) -> Generator[World]:
    server = ServerProcess(tmp_path / "data", args=("--files-root", str(tmp_path / "files")))
    try:
        yield World(server, upstreams)
    finally:
        server.close()
        for upstream in upstreams:
            upstream.close()


@pytest.mark.timeout(3600)
def test_all_of_them_are_killed_and_come_back(tmp_path: Path, s3_server: S3Server, kinesis: Kinesis) -> None:
    upstreams = [Folder(tmp_path / "files"), Bucket(s3_server), Stream(kinesis), Channels()]
    with world_of(tmp_path, upstreams) as world:
        world.create()
        world.life("tick.between_commits", 3, restart=True)
        world.quiet()
    for upstream in upstreams:
        assert all(upstream.counts[table] for table in upstream.tables.keys() - upstream.keyed)


KINDS: dict[str, Callable[[Path, pytest.FixtureRequest], Upstream]] = {
    "files": lambda path, request: Folder(path / "files"),
    "s3": lambda path, request: Bucket(request.getfixturevalue("s3_server")),
    "sqs": lambda path, request: ToldBucket(request.getfixturevalue("s3_server"), path / "moto"),
    "kinesis": lambda path, request: Stream(request.getfixturevalue("kinesis")),
    "pubnub": lambda path, request: Channels(),
}


@pytest.mark.chaos
@pytest.mark.parametrize("kind", KINDS)
def test_one_is_killed_at_every_step(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    upstream = KINDS[kind](tmp_path, request)
    rng = Random(os.environ.get("TIDEMILL_TEST_SEED", kind))
    steps = [*SERVER_STEPS, *WORKER_STEPS, *upstream.steps]
    rounds = int(os.environ.get("TIDEMILL_TEST_ROUNDS", "3"))
    with world_of(tmp_path, [upstream]) as world:
        world.create()
        for _ in range(rounds):
            rng.shuffle(steps)
            for step in steps:
                world.life(step, rng.randrange(1, 8), restart=rng.random() < 0.5)
            world.quiet()
