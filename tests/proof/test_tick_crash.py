"""kill -9 of the real server between the steps of the tick, and of its workers in the middle of tasks: each
event's rows are there once, at the first time whose binding covers it, and closed times never change.

Judged after every death from the files alone (`proof_sources`), before anything recovers. `make chaos` goes
200 rounds.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from proof_sources import Judge

from support.server import ServerError, ServerProcess

SOURCES = (
    "CREATE SOURCE numbers FROM LOAD GENERATOR COUNTER (TICK INTERVAL '5ms', MAX CARDINALITY 500)",
    "CREATE SOURCE latest FROM LOAD GENERATOR KEY VALUE (KEYS 40, TICK INTERVAL '5ms', TOMBSTONES '10%')",
    "CREATE SOURCE auction FROM LOAD GENERATOR AUCTION (TICK INTERVAL '20ms') FOR ALL TABLES",
)
# The steps of a tick at which the server is killed. The two of tasks kill a worker instead, again and again.
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


def _live(server: ServerProcess, step: str, hit: int) -> bool:
    """One life; True when the server died at the step. A life whose step kills workers is ended by a
    signal."""
    server.env["TIDEMILL_FAILPOINTS"] = f"{step}=kill@{hit}"
    server.start(wait_sql=False)
    deadline = time.monotonic() + LIFE_SECONDS
    if step in WORKER_STEPS:
        try:
            server.wait_sql()
            _until_ticked(server, deadline, 15)
        except (psycopg.Error, AssertionError, ServerError):
            pass  # the step may kill the server too, at any moment
    while step in SERVER_STEPS and server.returncode is None and time.monotonic() < deadline:
        time.sleep(0.05)
    died = server.returncode is not None
    server.kill9()
    return died


def _until_ticked(server: ServerProcess, deadline: float, more: int) -> None:
    """Until every source has committed so many events more."""
    wanted: dict[str, int] = {}
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        while time.monotonic() < deadline:
            rows = c.execute(
                "SELECT id, offset_committed::text FROM mz_internal.mz_source_statistics"
            ).fetchall()
            now = {str(i): int(n) for i, n in rows if n is not None}
            if len(now) == len(SOURCES):
                wanted = wanted or {i: n + more for i, n in now.items()}
                if all(now[i] >= n for i, n in wanted.items()):
                    return
            time.sleep(0.2)
    raise AssertionError(f"the sources did not come to {wanted}")


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    server.start()
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        for statement in SOURCES:
            c.execute(statement.encode())
    server.kill9()
    yield server
    server.close()


def _rounds(server: ServerProcess, steps: list[tuple[str, int]]) -> dict[str, int]:
    judge = Judge(server.data_dir)
    for step, hit in steps:
        died = _live(server, step, hit)
        assert died or step in WORKER_STEPS, f"the server did not die at {step}"
        judge.check()
    # A life that nothing disturbs: everything goes on from where it was.
    server.env.pop("TIDEMILL_FAILPOINTS")
    server.start(wait_ready=True)
    _until_ticked(server, time.monotonic() + LIFE_SECONDS, 50)
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        (counted,) = c.execute("SELECT count(*), count(DISTINCT counter) FROM numbers").fetchall()
        assert counted[0] == counted[1] == 500
    server.terminate()
    return judge.check()


@pytest.mark.timeout(3600)
def test_killed_between_the_steps(server: ServerProcess) -> None:
    # The other steps are tried with a topic (`test_kafka_crash`), all of them in `make chaos`.
    steps = [("tick.bound", 4), ("tick.before_commit", 5), ("tick.between_commits", 9)]
    done = _rounds(server, steps)
    assert all(records > 100 for records in done.values()), done


@pytest.mark.chaos
def test_killed_many_times(server: ServerProcess) -> None:
    rng = random.Random(os.environ.get("TIDEMILL_TEST_SEED", "tick"))
    steps = [(rng.choice((*SERVER_STEPS, *WORKER_STEPS)), rng.randrange(1, 12)) for _ in range(200)]
    _rounds(server, steps)
