"""Units as Spark jobs.

One job of one stage carries all plain units it is given; keyed ones take a second stage behind a shuffle by
key bucket. Tasks write parts and return facts, small pickled values; rows never pass through the driver. A
task that is retried or run twice writes other files, of which the driver learns one set.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidemill.errors import QueryCanceled, TidemillError
from tidemill.ingest import task
from tidemill.ingest.lanes import Share, shares
from tidemill.ingest.runner import JobFailed
from tidemill.ingest.unit import Facts, Unit
from tidemill.query.job import Job
from tidemill.query.settings import cores
from tidemill.query.spark import SparkHost


class SparkRunner:
    """`runner.Runner` on the server's Spark session. Thread-safe: jobs of several threads run at once."""

    def __init__(self, host: SparkHost) -> None:
        self._host = host
        self._cores = cores(host.master)

    @property
    def ready(self) -> bool:
        return self._host.ready

    @property
    def cores(self) -> int:
        return self._cores

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[Facts]:
        job = Job(self._host, f"tick: {len(units)} sources", pool=lane)
        late = threading.Timer(seconds, job.cancel)
        late.daemon = True
        late.start()
        try:
            return self._run(units, job)
        except QueryCanceled:
            raise JobFailed(f"the job did not end within {seconds:g} s") from None
        except TidemillError as e:
            raise JobFailed(f"the job failed: {e.primary}", detail=e.detail, hint=e.hint) from e
        finally:
            late.cancel()

    def _run(self, units: Sequence[Unit], job: Job) -> list[Facts]:
        facts = [Facts() for _ in units]
        payloads = [_pack(units, share) for share in shares(units, self._cores)]
        with job.running() as session:
            tasks = session.sparkContext.parallelize(payloads, len(payloads))
            for index, found in tasks.mapPartitions(_ingest).collect():
                facts[index].add(found)
        return facts


def _pack(units: Sequence[Unit], share: Sequence[Share]) -> bytes:
    """One task's units, each with the pieces that are its own. Pickled here, once: Spark would pickle them in
    batches of its own choosing."""
    return pickle.dumps([(index, replace(units[index], pieces=pieces)) for index, pieces in share])


def _ingest(payloads: Iterator[bytes]) -> Iterator[tuple[int, Facts]]:
    for payload in payloads:
        units: list[tuple[int, Unit]] = pickle.loads(payload)
        for index, unit in units:
            yield index, task.ingest(unit, unit.pieces)
