"""A server with its executors in a Spark standalone cluster and its data in an object store: nothing that the
two share but the network. A worker is killed and comes back; sources tick, and queries are answered, all the
while.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_world import (
    DAWDLE,
    NAMES,
    check_reads,
    connect,
    create_sources,
    executors,
    judge,
    kill9,
    orphans,
    stalled,
    until,
    wait_for_ticks,
    wait_until_running,
)
from standalone import Standalone

from support.s3 import S3Server
from support.server import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.s3, pytest.mark.timeout(3600)]

# A master, two workers, two executors and the driver start, on two cores.
READY_SECONDS = 400.0
# A task that takes longer than the others of its stage is run again on another machine, at once.
SETTINGS = (
    "spark.driver.host=127.0.0.1",
    "spark.speculation=true",
    "spark.speculation.interval=20ms",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.quantile=0.5",
    "spark.speculation.minTaskRuntime=50ms",
    "spark.speculation.task.duration.threshold=500ms",
    "spark.speculation.efficiency.enabled=false",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path / "spark", DAWDLE)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def server(cluster: Standalone, s3_server: S3Server) -> Iterator[ServerProcess]:
    """Not started."""
    options = s3_server.options
    environment = {
        "TIDEMILL_S3_ENDPOINT": options["endpoint"],
        "TIDEMILL_S3_ACCESS_KEY_ID": options["access_key_id"],
        "TIDEMILL_S3_SECRET_ACCESS_KEY": options["secret_access_key"],
        "TIDEMILL_S3_ALLOW_HTTP": "true",
    }
    arguments = ["--spark-master", cluster.master]
    for setting in SETTINGS:
        arguments += ["--spark-conf", setting]
    server = ServerProcess(s3_server.fresh_url(), environment, arguments)
    try:
        yield server
    finally:
        server.close()


def states(cluster: Standalone, worker: int) -> list[Path]:
    """The upsert states that the worker's executors keep."""
    # Not by a glob, which fails where a folder goes away meanwhile.
    folders = os.walk(cluster.temporary(worker))
    return [Path(name, f) for name, _, files in folders for f in files if _is_state(name, f)]


def _is_state(folder: str, file: str) -> bool:
    return "/tidemill-state-" in folder and file.endswith(".state")


def lasting_orphans(server: ServerProcess, s3_server: S3Server) -> bool:
    """A part that no log entry names, even after everybody has ticked again."""
    before = set(orphans(server.data_dir, s3_server.options))
    if not before:
        return False
    wait_for_ticks(server, 2)
    return bool(before & set(orphans(server.data_dir, s3_server.options)))


def test_a_cluster_with_the_data_in_an_object_store(
    server: ServerProcess, cluster: Standalone, s3_server: S3Server
) -> None:
    cluster.start(workers=2)
    server.start()
    server.wait_ready(READY_SECONDS)
    create_sources(server)
    with connect(server) as c:
        # More than the server would read by itself.
        c.execute("CREATE SOURCE many FROM LOAD GENERATOR COUNTER (TICK INTERVAL '1us', UP TO 100000)")
        until(lambda: c.execute("SELECT count(*) FROM many").fetchall() == [(100_000,)], "not all came")
        assert c.execute("SELECT sum(counter) FROM many").fetchall() == [(5_000_050_000,)]
    seen = check_reads(server)
    until(lambda: all(states(cluster, n) for n in (0, 1)), "the states are not on both machines")
    # Who dawdled was run again elsewhere: both have written, one is heard.
    until(lambda: lasting_orphans(server, s3_server), "no task was run twice")

    # One machine goes: the other does everything, with the states that it has or has not.
    cluster.kill_worker(0)
    wait_for_ticks(server, 2)

    # It comes back empty.
    shutil.rmtree(cluster.temporary(0))
    cluster.start_worker(0)
    until(lambda: len(executors(cluster.worker(0))) == 1, "the cluster gives no new executor")
    until(lambda: bool(states(cluster, 0)), "the new executor gets nothing to do")
    kill9(executors(cluster.worker(1))[0])
    wait_for_ticks(server, 2)
    seen, before = check_reads(server), seen
    assert seen > before
    wait_until_running(server)

    assert server.terminate() == 0
    events = judge(server.data_dir, s3_server.options)
    assert events["numbers"] >= seen
    assert events["many"] == 100_000


@pytest.mark.chaos
def test_a_cluster_that_comes_late_and_goes(server: ServerProcess, cluster: Standalone) -> None:
    server.start()
    # Spark asks the master for a minute before it gives up; then it is started anew.
    until(lambda: "is not there" in server.log, "nobody misses the cluster")
    cluster.start(workers=0)
    until(lambda: "there has been no executor of Spark from" in server.log, "nobody misses the workers")
    cluster.start_worker(0)
    server.wait_ready(READY_SECONDS)
    create_sources(server)

    # Without workers jobs wait, and are given up.
    cluster.kill_worker(0)
    until(lambda: stalled(server) == set(NAMES), "nobody misses the executors")
    cluster.start_worker(1)
    wait_for_ticks(server, 2)
    wait_until_running(server)

    # A master is for new executors: those that are there go on without it.
    cluster.kill_master()
    wait_for_ticks(server, 10)
    seen = check_reads(server)

    # One that forgot us cannot give executors any more: then all begins anew.
    cluster.start(workers=0)
    kill9(executors(cluster.worker(1))[0])
    wait_for_ticks(server, 2)
    assert check_reads(server) > seen
    assert server.terminate() == 0
