"""The first rows of a subscription to a query that is followed on changes alone: its result is not stored.

Called by the engine on worker threads. A result that fits is collected and shaped at once. For a larger one,
only some ranges are in memory at a time: the query runs again, Spark partitions its rows by range
(`query.ranged`), and each range is shaped separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidemill.query.job import Job
from tidemill.query.ranged import query_names, ranged_query, ranges_for
from tidemill.query.read import ConstantInput, Input
from tidemill.query.run import ResultStream, run
from tidemill.query.spark import SparkHost
from tidemill.subscribe.gather import Gathering, by_range, once
from tidemill.subscribe.ranges import needs_counts, range_keys
from tidemill.subscribe.spec import Spec

# The limit for collecting and shaping everything at once, which holds it several times. Larger results are
# partitioned by range, which costs as much again.
WHOLE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A query at a time, in Spark's words. `inputs` are open until `close`; `rows` is how many rows it has at
    most, as far as is known."""

    text: str
    inputs: Mapping[str, Input | ConstantInput]
    rows: int
    close: Callable[[], None]


class QueryRows:
    """Used by worker threads, one at a time; `cancel` and `close` by any."""

    def __init__(
        self,
        host: SparkHost,
        asked: Asked,
        spec: Spec,
        as_of: int,
        job: Job,
        whole_bytes: int = WHOLE_BYTES,
    ) -> None:
        """The spec's columns are the query's, at least one. Blocks until it is known whether the rows fit;
        lets the inputs go if it fails. Raises as `query.run` does."""
        self._host = host
        self._asked = asked
        self._spec = spec
        self._as_of = as_of
        self._job = job
        self._names = query_names(spec.columns)
        self._stream: ResultStream | None = None
        try:
            self._batches = self._begin(whole_bytes)
        except BaseException:
            self.close()
            raise

    def next(self) -> pa.RecordBatch | None:
        """Rows of the time, in the order that the spec promises; None at the end."""
        self._job.check()
        return next(self._batches, None)

    def cancel(self) -> None:
        self._job.cancel()
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Idempotent."""
        if self._stream is not None:
            self._stream.close()
        self._asked.close()

    def _begin(self, whole_bytes: int) -> Iterator[pa.RecordBatch]:
        asked = self._asked
        gathered = Gathering(self._spec, self._as_of)
        rows = size = 0
        # A separate job: giving up half-way stops it alone.
        with run(self._host, asked.text, asked.inputs, self._spec.columns, job=self._job.child()) as stream:
            for batch in stream:
                rows += batch.num_rows
                size += batch.nbytes
                if size > whole_bytes:
                    return self._dealt(size / max(1, rows))
                gathered.add(once(pa.RecordBatch.from_arrays(batch.columns, self._names)))
        asked.close()
        whole = gathered.take()
        return iter([] if whole is None else [whole])

    def _dealt(self, width: float) -> Iterator[pa.RecordBatch]:
        asked, spec = self._asked, self._spec
        self._stream = ranged_query(
            self._host,
            asked.text,
            asked.inputs,
            spec.columns,
            range_keys(spec, self._names),
            ranges=ranges_for(asked.rows, int(asked.rows * width)),
            job=self._job,
            counted=needs_counts(spec),
        )
        yield from by_range(self._stream, self._names, spec, self._as_of)
