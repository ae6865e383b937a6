"""The snapshot of a stored relation as the rows of a subscription.

Called by the engine on worker threads. The server alone reads and shapes a small snapshot, at once. For a
large one, only some ranges are in memory at a time:

- Without an order, the rows are returned as they are stored in the parts (`query.part_rows`). Rows that may
  occur more than once (`query.duplicate_rows`) are held back and sent last, each with its count.
- In an order, or by key, Spark partitions them into ranges (`query.ranged`), and each is shaped separately.
  The same is done without an order when too many rows are repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemill.persist.snapshot import Snapshot
from tidemill.query.duplicate_rows import Repeats, find_repeats
from tidemill.query.job import Job
from tidemill.query.multiset import add_up, check_counts, check_errors
from tidemill.query.part_rows import PartRows
from tidemill.query.ranged import ranged
from tidemill.query.read import LIMITS as READ_LIMITS
from tidemill.query.read import Input, Limits, prepare
from tidemill.query.run import ResultStream, run
from tidemill.query.spark import SparkHost
from tidemill.subscribe.gather import Gathering, by_range, once, stamp
from tidemill.subscribe.ranges import needs_counts, range_keys
from tidemill.subscribe.spec import OutputShape, Spec
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.spark import quote_identifier

# No other query has a view of this name while the names are resolved.
_VIEW = "mz_snapshot"


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Where the ways of reading part. Tests lower them to force each way."""

    # Read whole, without Spark: so many updates are summed and shaped within a second or two, ...
    small_rows: int = 1 << 20
    # ... and take this much memory, several times meanwhile.
    small_memory: int = 96 << 20
    # Rows that may be there more than once, kept until the end; and their size in memory.
    kept_rows: int = 250_000
    kept_memory: int = 96 << 20
    # The part of a large snapshot that the server itself reads.
    read: Limits = READ_LIMITS

    def small(self, snapshot: Snapshot) -> bool:
        return snapshot.rows <= self.small_rows and snapshot.weight <= self.small_memory


LIMITS = SnapshotLimits()


class SnapshotRows:
    """One snapshot, which it closes. Used by worker threads, one at a time; `cancel` and `close` by any."""

    def __init__(
        self,
        host: SparkHost,
        snapshot: Snapshot,
        names: list[str],
        spec: Spec,
        job: Job,
        limits: SnapshotLimits = LIMITS,
    ) -> None:
        """`names`: the physical ones of the spec's columns. Blocks until rows are available without a further
        wait; closes the snapshot if it fails. Raises as `query.run` does."""
        self._spec = spec
        self._job = job
        self._snapshot = snapshot
        self._names = names
        self._limits = limits
        # The current input; None for a small one.
        self._stream: ResultStream | PartRows | None = None
        try:
            # A relation without columns is one row, however often.
            if limits.small(snapshot) or not names:
                self._batches = iter([self._whole()])
                snapshot.close()
            else:
                self._batches = self._large(host)
        except BaseException:
            snapshot.close()
            raise

    def next(self) -> pa.RecordBatch | None:
        """Rows of the snapshot's time, in the order that the spec promises; None at the end."""
        self._job.check()
        return next(self._batches, None)

    def cancel(self) -> None:
        if isinstance(self._stream, ResultStream):
            self._stream.cancel()
        else:
            self._job.cancel()

    def close(self) -> None:
        """Idempotent."""
        if self._stream is not None:
            self._stream.close()
        self._snapshot.close()

    def _whole(self) -> pa.RecordBatch:
        table = check_errors(add_up([self._snapshot.read(self._names)]), self._snapshot)
        check_counts(table, self._names)
        return stamp(table.select([*self._names, DIFF_COLUMN]), self._spec, self._snapshot.as_of)

    def _large(self, host: SparkHost) -> Iterator[pa.RecordBatch]:
        snapshot, limits, columns = self._snapshot, self._limits, self._spec.columns
        given = Input(snapshot, self._names, limits=limits.read)
        if self._spec.output is OutputShape.PLAIN:
            per_row = max(1, snapshot.weight // snapshot.rows)
            repeats = find_repeats(
                snapshot,
                self._names,
                threads=host.cores,
                limit=min(limits.kept_rows, limits.kept_memory // per_row),
                check=self._job.check,
            )
            if repeats is not None:
                return self._as_they_come(self._rows(host, given), repeats)
        keys = range_keys(self._spec, self._names)
        counted = needs_counts(self._spec)
        self._stream = ranged(host, given, columns, keys, job=self._job, counted=counted)
        return by_range(self._stream, self._names, self._spec, snapshot.as_of)

    def _rows(self, host: SparkHost, given: Input) -> Iterator[pa.RecordBatch]:
        """The relation's columns and `mz_diff`; equal rows may repeat."""
        prepared = prepare(host, given, self._job)
        if not prepared.sum_all:
            self._stream = PartRows(prepared, self._job.check)
            return self._stream
        names = ", ".join(map(quote_identifier, self._names))
        text = f"SELECT {names} FROM {_VIEW}"
        self._stream = run(host, text, {_VIEW: prepared}, self._spec.columns, job=self._job)
        return (once(pa.RecordBatch.from_arrays(batch.columns, self._names)) for batch in self._stream)

    def _as_they_come(self, batches: Iterator[pa.RecordBatch], repeats: Repeats) -> Iterator[pa.RecordBatch]:
        kept = Gathering(self._spec, self._snapshot.as_of)
        for rows in batches:
            mask = repeats.mask(rows)
            if mask is not None:
                kept.add(rows.filter(pa.array(mask)))
                rows = rows.filter(pa.array(~mask))
            if rows.num_rows:
                yield stamp(pa.Table.from_batches([rows]), self._spec, self._snapshot.as_of)
        last = kept.take()
        if last is not None:
            yield last
