"""Warm-up for ticks: starts workers and loads the libraries of tasks.

The Spark host calls it before it reports that it is ready. Workers are kept between ticks and forked from a
process that has loaded their libraries (`worker_daemon`), but the first runs of a job are several times
slower than later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.query.job import Job

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

ROUNDS = 4
# The module that Spark uses to fork its workers.
WORKERS = {"spark.python.daemon.module": "tidemill.ingest.worker_daemon"}


def warm_up(host: SparkHost) -> None:
    """Run a job of two stages with one task per core, several times."""
    ways = host.cores
    for _ in range(ROUNDS):
        with Job(host, "warm up").running() as session:
            tasks = session.sparkContext.parallelize(range(ways), ways)
            tasks.mapPartitions(_touch).partitionBy(ways, _itself).mapPartitions(_touch).collect()


def _touch(items: Iterator[object]) -> Iterator[tuple[int, int]]:
    """Load what a task needs, and use its slow parts once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidemill.ingest import keyed

    rows = pa.table({"k": pa.array([1, 2, 3], pa.int64())})
    keyed.partition_by_key(rows, [0])
    pq.write_table(rows, pa.BufferOutputStream(), compression="zstd")
    for number, _ in enumerate(items):
        yield number, 0


def _itself(way: int) -> int:
    return way
