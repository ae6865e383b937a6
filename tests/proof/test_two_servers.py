"""Two servers: one writes a table out to a topic while it is killed, the other reads the topic while it is
killed. At every time of the second its collection is what the first one's was at some time, ever later;
and in the end they are equal.
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

pytestmark = pytest.mark.server

SECONDS = 400.0
WRITER_STEPS = ("sink.settled", "sink.stated")
READER_STEPS = ("tick.bound", "tick.recovery.stashed", "tick.recovery.tallied", "tick.committed")


class World:
    def __init__(self, folder: Path, kafka: Kafka) -> None:
        self.writer = ServerProcess(folder / "a")
        self.writer.spark = False
        self.reader = ServerProcess(folder / "b")
        self.ledger = Ledger()
        self._topic = f"two-{time.time_ns()}"
        self._connection = f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')"

    def create(self) -> None:
        self.writer.start()
        self._run(
            self.writer,
            "CREATE TABLE t (n int NOT NULL, x text)",
            "INSERT INTO t VALUES (0, 'first'), (0, 'first')",
            self._connection,
            f"CREATE SINK s FROM t INTO KAFKA CONNECTION k (TOPIC '{self._topic}', PARTITION COUNT 2) "
            "FORMAT JSON ENVELOPE MATERIALIZE",
        )
        self.ledger.start(self.writer.sql_dsn)
        self.reader.start()
        self._run(
            self.reader,
            self._connection,
            f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{self._topic}') FORMAT JSON "
            "ENVELOPE MATERIALIZE",
        )

    def _run(self, server: ServerProcess, *statements: str) -> None:
        with psycopg.connect(server.sql_dsn, autocommit=True) as c:
            for statement in statements:
                c.execute(statement.encode())

    def kill_writer(self, failpoint: str) -> None:
        """It dies at the failpoint, and is there again, with somebody who writes to it."""
        self.ledger.stop()
        self.writer.kill9()
        self.writer.env["TIDEMILL_FAILPOINTS"] = failpoint
        self.writer.start(wait_sql=False)
        with contextlib.suppress(Exception):
            self.writer.wait_sql(SECONDS)
            self.ledger.start(self.writer.sql_dsn)
        self.writer.wait_exit(SECONDS)
        self.ledger.stop()
        self.writer.env.pop("TIDEMILL_FAILPOINTS")
        self.writer.start()
        self.ledger.start(self.writer.sql_dsn)

    def kill_reader(self, failpoint: str) -> None:
        self.reader.kill9()
        self.reader.env["TIDEMILL_FAILPOINTS"] = failpoint
        self.reader.start(wait_sql=False)
        self.reader.wait_exit(SECONDS)
        self.reader.env.pop("TIDEMILL_FAILPOINTS")
        self.check()
        self.reader.start()

    def quiet(self) -> None:
        """Nothing disturbs them: they become equal."""
        self.ledger.stop()
        acknowledged = set(self.ledger.acknowledged)
        self.until(lambda: acknowledged <= {n for n, _ in self.read()})
        self.writer.terminate()
        self.reader.terminate()
        self.check()
        assert {row for row in self.read() if row[0] in acknowledged} == {(n, "x") for n in acknowledged}

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < deadline, self.reader.log[-3000:]
            time.sleep(0.5)

    def read(self) -> Counter[Row]:
        """What the second one's files hold in the end."""
        found: Counter[Row] = Counter()
        for update in updates_of(table_shard(self.reader.data_dir)):
            found[_row(update["data"])] += update["mz_diff"]
        return found

    def check(self) -> None:
        """Each time of the second one against all times of the first one."""
        written: dict[Row, int] = {}
        copies: Counter[Row] = Counter()
        for update in updates_of(table_shard(self.writer.data_dir)):
            row = (update["n"], update["x"])
            written[row] = update["mz_timestamp"]
            copies[row] += update["mz_diff"]
        shard = table_shard(self.reader.data_dir)
        by_time: dict[int, Counter[Row]] = {}
        for update in updates_of(shard):
            assert update["mz_error"] is None, update
            by_time.setdefault(update["mz_timestamp"], Counter())[_row(update["data"])] += update["mz_diff"]
        held: Counter[Row] = Counter()
        for at in sorted(by_time):
            held.update(by_time[at])
            assert all(held[row] == copies[row] for row in by_time[at]), f"at {at}"
            # Rows are only ever added: what the first one held before some time are all rows written before.
            latest = max(written[row] for row in held)
            assert set(held) == {row for row, t in written.items() if t <= latest}, f"at {at}"


def _row(data: str) -> Row:
    found = json.loads(data)
    return found["n"], found["x"]


@pytest.fixture
def world(tmp_path: Path, kafka: Kafka) -> Generator[World]:
    world = World(tmp_path, kafka)
    try:
        yield world
    finally:
        world.ledger.stop()
        world.writer.close()
        world.reader.close()


@pytest.mark.timeout(1800)
def test_both_are_killed_and_become_equal(world: World) -> None:
    world.create()
    world.kill_writer("sink.settled=kill@4")
    world.kill_reader("tick.recovery.tallied=kill@2")
    world.kill_writer("sink.stated=kill@6")
    world.quiet()


@pytest.mark.chaos
def test_both_are_killed_many_times(world: World) -> None:
    rng = random.Random(1)
    world.create()
    for _ in range(40):
        world.kill_writer(f"{rng.choice(WRITER_STEPS)}=kill@{rng.randrange(1, 20)}")
        world.kill_reader(f"{rng.choice(READER_STEPS)}=kill@{rng.randrange(1, 6)}")
    world.quiet()
