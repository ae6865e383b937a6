"""A server whose executors are processes beside it: they are killed, tasks are run twice, states are deleted,
and nothing of that can be seen in what the sources hold.

`make test` kills a few times, `make chaos` for a quarter of an hour.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import (
    DAWDLE,
    check_reads,
    create_sources,
    executors,
    judge,
    kill9,
    orphans,
    until,
    wait_for_ticks,
    wait_until_running,
)

from support.server import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.timeout(3600)]

MASTER = "local-cluster[2,1,1024]"
# Three JVMs start, on two cores.
READY_SECONDS = 400.0
CHAOS_ROUNDS = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    arguments = ["--spark-master", MASTER, "--scratch-dir", str(tmp_path / "scratch")]
    server = ServerProcess(tmp_path / "data", DAWDLE, arguments)
    try:
        server.start()
        server.wait_ready(READY_SECONDS)
        yield server
    finally:
        server.close()


def kill_in_the_middle(server: ServerProcess) -> None:
    """When a task has written parts of which the driver does not know, and will not."""
    until(lambda: _killed_at_work(server), "no task was caught at work")


def _killed_at_work(server: ServerProcess) -> bool:
    """Whether anything of what was there at the kill is nobody's after another tick: a driver may have been
    told of it just before."""
    until(lambda: bool(orphans(server.data_dir)), "no task wrote anything")
    for pid in executors(server.pid):
        kill9(pid)
    left = set(orphans(server.data_dir))
    wait_for_ticks(server, 1)
    return bool(left & set(orphans(server.data_dir)))


def forget_states(tmp_path: Path) -> int:
    """Delete the upsert states, of which tasks may be writing some."""
    folders = list((tmp_path / "scratch").glob("state-*"))
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return len(folders)


def all_there(server: ServerProcess) -> bool:
    return len(executors(server.pid)) == 2


def end(server: ServerProcess, at_least: int) -> None:
    """Stop it and judge what it left."""
    assert server.terminate() == 0
    events = judge(server.data_dir)
    assert events["numbers"] >= at_least, events
    assert min(events.values()) > 100, events


def test_executors_that_die_leave_no_trace(server: ServerProcess, tmp_path: Path) -> None:
    until(lambda: all_there(server), "there are not two executors")
    create_sources(server)
    seen = check_reads(server)
    kill_in_the_middle(server)
    wait_for_ticks(server, 2)
    first, *_ = executors(server.pid)
    kill9(first)
    # The states of the one that is left are gone too: they are read again from the collections.
    assert forget_states(tmp_path), "there were none"
    wait_for_ticks(server, 1)
    assert check_reads(server) > seen
    kill_in_the_middle(server)
    until(lambda: all_there(server), "executors do not come back")
    wait_for_ticks(server, 2)
    seen = check_reads(server)
    wait_until_running(server)
    end(server, seen)
    assert orphans(server.data_dir), "what the dead ones wrote was taken"


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_executors_die_again_and_again(server: ServerProcess, tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("TIDEMILL_TEST_SEED", "executors"))
    create_sources(server)
    seen, slowest = 0, 0.0
    for _ in range(CHAOS_ROUNDS):
        time.sleep(rng.random() * 2)
        alive = executors(server.pid)
        for pid in rng.sample(alive, rng.randint(min(1, len(alive)), len(alive))):
            kill9(pid)
        if rng.random() < 0.3:
            forget_states(tmp_path)
        if rng.random() < 0.7:
            slowest = max(slowest, wait_for_ticks(server, 1))
        if rng.random() < 0.2:
            now = check_reads(server)
            assert now >= seen
            seen = now
    wait_for_ticks(server, 2)
    print(f"the longest wait for a tick of every source was {slowest:.1f} s")
    end(server, seen)


@pytest.mark.chaos
def test_an_executor_that_hangs(server: ServerProcess) -> None:
    """It says nothing and ends nothing: its jobs are given up, the others go on, and after a minute it is
    taken for lost."""
    create_sources(server)
    stopped, _ = executors(server.pid)
    os.kill(stopped, signal.SIGSTOP)
    try:
        seconds = wait_for_ticks(server, 5)
        print(f"five ticks beside it took {seconds:.1f} s")
        until(
            lambda: not Path(f"/proc/{stopped}").exists() or len(executors(server.pid)) > 2,
            "it is not missed",
        )
    finally:
        if Path(f"/proc/{stopped}").exists():
            os.kill(stopped, signal.SIGCONT)
    wait_for_ticks(server, 2)
    end(server, check_reads(server))
