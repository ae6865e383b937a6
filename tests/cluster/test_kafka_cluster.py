"""A Kafka source whose readers and states live in executors beside the server: tasks change executors, which
are killed one after the other and lose their states, and at every closed time the collection is the fold of
the topic up to the binding. `make chaos` goes on for longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from cluster_world import executors, kill9, until
from test_local_cluster import MASTER, READY_SECONDS, all_there, forget_states

from proof.proof_kafka import Judge, Ledger
from support.kafka import Kafka
from support.server import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.timeout(3600)]

PARTITIONS = 3
# How often both executors are killed, one after the other.
CHAOS_ROUNDS = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    arguments = ["--spark-master", MASTER, "--scratch-dir", str(tmp_path / "scratch")]
    server = ServerProcess(tmp_path / "data", args=arguments)
    try:
        server.start()
        server.wait_ready(READY_SECONDS)
        yield server
    finally:
        server.close()


@pytest.fixture
def ledger(kafka: Kafka) -> Iterator[Ledger]:
    ledger = Ledger(kafka, kafka.create_topic(partitions=PARTITIONS), PARTITIONS, seed=5)
    yield ledger
    ledger.stop()


def create(server: ServerProcess, ledger: Ledger) -> tuple[str, str]:
    """The source `s`; its shards."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE CONNECTION k TO KAFKA (BROKER '{ledger.kafka.bootstrap}')".encode())
        c.execute(
            f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{ledger.topic}') "
            "KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT".encode()
        )
    (remap,) = [p.name for p in (Path(server.data_dir) / "shards").iterdir() if p.name.endswith("-remap")]
    return remap.removesuffix("-remap"), remap


def committed(server: ServerProcess) -> int:
    """Records that are in the collection; told from memory, without Spark."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        query = "SELECT offset_committed::text FROM mz_internal.mz_source_statistics"
        ((found,),) = c.execute(query).fetchall()
    return int(found or 0)


def goes_on(server: ServerProcess) -> None:
    before = committed(server)
    until(lambda: committed(server) > before + 50, f"the source stands still\n{server.log[-3000:]}")


@pytest.mark.parametrize("rounds", [1, pytest.param(CHAOS_ROUNDS, marks=pytest.mark.chaos)])
def test_upserts_stay_right_when_tasks_change_executors(
    server: ServerProcess, ledger: Ledger, tmp_path: Path, rounds: int
) -> None:
    shards = create(server, ledger)
    ledger.start()
    goes_on(server)
    judge = Judge(server.data_dir, ledger)
    for _ in range(rounds):
        for number in range(2):
            until(lambda: all_there(server), "there are not two executors")
            # The one that is left has not got the other's states; the one that comes has none at all.
            kill9(executors(server.pid)[number])
            if number:
                forget_states(tmp_path)
            goes_on(server)
    ledger.stop()
    judge.check(*shards)
    total = sum(len(ledger.kafka.read(ledger.topic, p)) for p in range(PARTITIONS))
    until(lambda: committed(server) == total, f"not all of {total} records came\n{server.log[-3000:]}")
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        (row,) = c.execute("SELECT count(*), count(DISTINCT key) FROM s").fetchall()
    assert row[0] == row[1] > 0
    assert server.terminate() == 0
    assert judge.check(*shards) == total > 100
