"""A collection at a time as a Spark relation.

`run` calls `prepare` for each input, off the event loop. The relation's rows are exactly the multiset of the
collection at the snapshot's time, plus the transaction's own updates. Consolidating every row would cost
twelve times the scan, so it is done only where it must be:

1. A small collection is summed on the driver with Arrow and handed to Spark as rows.
2. Of a large one, the parts that hold only +1 at or before the time are rows as they stand ("clean"). The
   others are few and small in practice (compaction sees to it): their updates are read and summed on the
   driver. What stays positive is just more rows. What stays negative, the retractions, must meet its rows in
   the clean parts:
3. One job counts the clean rows whose hash a Bloom filter of the retractions' hashes knows, by row, and
   brings the counts to the driver, where they are summed with the retractions. The relation is then the clean
   rows that the filter does not know, and what the sum left. A row that only looks like a retraction goes
   through the sum and comes out unharmed: time depends on hash and filter, correctness does not (a retraction
   that they failed to bring together with its row would be an error, never a wrong answer).
4. Where the retractions are too many for the driver, Spark sums everything.

All this is done on the columns that the query needs: projecting a multiset and summing commute. A negative
count is found where counts are summed, and raises `NegativeMultiplicity`; live error rows raise
`SourceError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal, LimitExceeded
from tidemill.query import multiset
from tidemill.query.bloom import build, might_contain
from tidemill.query.hashing import STANDARD, RowHash
from tidemill.query.relation import (
    NO_COLUMN,
    Prepared,
    jdf_of,
    positives,
    projected,
    union,
)
from tidemill.query.scan import scan
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.kernels import pc
from tidemill.types.names import physical_names
from tidemill.types.spark import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.persist.part import Part
    from tidemill.persist.snapshot import Snapshot
    from tidemill.query.job import Job
    from tidemill.query.spark import SparkHost


@dataclass(frozen=True, slots=True)
class Limits:
    """Where the ways of reading part. Tests lower them to force each way."""

    # Summed on the driver: few enough to be handed to Spark as literal rows.
    small_rows: int = 64 * 1024
    # Of Parquet; some five times that in memory.
    small_bytes: int = 8 << 20
    # Updates of unclean parts that the driver reads: at 100 bytes a row 200 MB while the read lasts.
    driver_rows: int = 2_000_000
    # Retractions whose hashes go to every task (4 MB); with more, summing everything on Spark costs no more.
    retractions: int = 1_000_000
    # Rows that may be retracted, brought to the driver one by one; above, Spark counts them first.
    matched_bytes: int = 64 << 20
    # What a job may bring to the driver for the sum.
    sum_bytes: int = 512 << 20
    # Rows of the driver's sum that are repeated there; above, Spark does it.
    expand_rows: int = 2_000_000


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Input:
    """A relation that a query reads: a shard's snapshot (the caller keeps it open until the result is read),
    the physical columns that the query needs (None = all; the relation has them in this order), and the
    transaction's own updates (at least those columns under physical names, and `mz_diff`)."""

    snapshot: Snapshot
    columns: Sequence[str] | None = None
    extra: pa.Table | None = None
    limits: Limits = LIMITS
    hashing: RowHash = STANDARD


@dataclass(frozen=True, slots=True)
class Constant:
    """A relation that is at hand already, such as a system relation: its rows in storage forms (at least one
    column)."""

    table: pa.Table


def prepare(host: SparkHost, given: Input | Constant, job: Job) -> Prepared:
    """Read what the driver reads; may run Spark jobs under `job`. Raises `SourceError`,
    `NegativeMultiplicity`, `DataCorrupted`."""
    if isinstance(given, Constant):
        return Prepared(given.table.schema.names, host.scratch, table=given.table)
    return _Preparation(host, given, job).prepare()


class _Preparation:
    """One `prepare`, its input unpacked."""

    def __init__(self, host: SparkHost, given: Input, job: Job) -> None:
        self.host = host
        self.job = job
        self.snapshot = given.snapshot
        self.limits = given.limits
        self.hashing = given.hashing
        names = physical_names(given.snapshot.desc) if given.columns is None else given.columns
        self.columns = list(names)
        self.schema = shard_schema(given.snapshot.desc)
        # Updates as the driver sums them: the columns, diff, error.
        self.update_names = [*self.columns, DIFF_COLUMN, ERROR_COLUMN]
        self.extra = self._updates(given.extra) if given.extra is not None and given.extra.num_rows else None

    def prepare(self) -> Prepared:
        self.job.check()
        snapshot, limits = self.snapshot, self.limits
        if snapshot.rows <= limits.small_rows and snapshot.bytes <= limits.small_bytes:
            return self._small()
        if not self.columns:
            return self._count_only()
        return self._large()

    # -- on the driver ---------------------------------------------------------------------------------

    def _small(self) -> Prepared:
        table = self.snapshot.read(self.columns)
        if self.extra is not None:
            table = multiset.add_up([self._updates(table), self.extra])
        if self.extra is not None or self.snapshot.needs_consolidation:
            table = multiset.check_errors(table)
            multiset.check_counts(table, self.columns)
        if not self.columns:
            return self._only(multiset.total(table))
        if self._many(table):
            return Prepared(self.columns, self.host.scratch, table=self._rows(table), counted=True)
        return Prepared(self.columns, self.host.scratch, table=multiset.expand(table, self.columns))

    def _only(self, count: int) -> Prepared:
        """A number of rows, of which nobody asks for a column."""
        if count > self.limits.small_rows:
            return Prepared([NO_COLUMN], self.host.scratch, count=count)
        rows = pa.table({NO_COLUMN: pa.array(np.zeros(count, np.int8))})
        return Prepared([NO_COLUMN], self.host.scratch, table=rows)

    def _many(self, table: pa.Table) -> bool:
        """Whether repeating the rows on the driver would make too many of them."""
        return multiset.total(table) > max(self.limits.expand_rows, table.num_rows)

    def _rows(self, table: pa.Table) -> pa.Table:
        return table.select([*self.columns, DIFF_COLUMN])

    # -- large -----------------------------------------------------------------------------------------

    def _large(self) -> Prepared:
        clean, light, heavy = self._sort_parts()
        scanned = [*clean, *heavy]
        if sum(part.retractions for part in heavy) > self.limits.retractions:
            return self._sum_all()
        tables = [self._updates(self.snapshot.read_part(part, self.columns)) for part in light]
        if any(part.retractions for part in heavy):
            tables.append(self._heavy_retractions([p for p in heavy if p.retractions]))
        self._add_heavy_errors(tables, heavy)
        if self.extra is not None:
            tables.append(self.extra)
        if not tables:
            return self._relation(None, scanned)
        updates = multiset.add_up(tables)
        updates = multiset.check_errors(updates)
        negative = updates.filter(pc.less(updates.column(DIFF_COLUMN), 0))
        if not negative.num_rows:
            return self._relation(updates, scanned)
        if not scanned:
            # Nothing is left to meet them: this raises.
            multiset.check_counts(updates, self.columns)
        if negative.num_rows > self.limits.retractions:
            return self._sum_all()
        desc = projected(self.snapshot.desc, self.columns)
        hidden = build(np.unique(self.hashing.of_table(negative, desc, self.columns)))
        matched = self._matched(scanned, hidden)
        if matched is None:
            return self._sum_all()
        updates = multiset.add_up([self._rows(updates), matched])
        multiset.check_counts(updates, self.columns)
        prepared = self._relation(updates, scanned)
        prepared.hidden = hidden
        return prepared

    def _sort_parts(self) -> tuple[list[Part], list[Part], list[Part]]:
        """(clean, light, heavy): rows as they stand; what the driver reads whole; what Spark reads with
        filters."""
        clean: list[Part] = []
        rest: list[Part] = []
        for part in self.snapshot.parts:
            (clean if part.all_inserts and part.max_time <= self.snapshot.as_of else rest).append(part)
        rest.sort(key=lambda part: (part.rows, part.path))
        light: list[Part] = []
        budget = self.limits.driver_rows
        while rest and rest[0].rows <= budget:
            budget -= rest[0].rows
            light.append(rest.pop(0))
        return clean, light, rest

    def _relation(self, table: pa.Table | None, parts: list[Part]) -> Prepared:
        counted = table is not None and self._many(table)
        if table is not None:
            table = self._rows(table) if counted else multiset.expand(table, self.columns)
        return Prepared(
            self.columns,
            self.host.scratch,
            table=table,
            counted=counted,
            snapshot=self.snapshot,
            parts=parts,
            hashing=self.hashing,
        )

    def _matched(self, parts: Sequence[Part], hidden: bytes) -> pa.Table | None:
        """How often each row that the filter knows was inserted in `parts`; None when they are too
        many for the driver."""
        from pyspark.sql import functions as F

        with self.job.running() as session:
            expression = self.hashing.sql(projected(self.snapshot.desc, self.columns), self.columns)
            wanted = might_contain(session._jvm, hidden, expression)
            frames: list[DataFrame] = []
            for rows, copies in positives(session, self.snapshot, parts, self.columns):
                found = rows.where(wanted)
                frames.append(found if copies else found.selectExpr("*", f"1L AS {DIFF_COLUMN}"))
            found = union(frames)
            names = [*self.columns, DIFF_COLUMN]
            # As they come, first: mostly they are few, and a shuffle would cost more than the driver's sum.
            matched = self._fetch(found, names, min(self.limits.matched_bytes, self.limits.sum_bytes))
            if matched is not None:
                return matched
            counts = found.groupBy(*map(quote_identifier, self.columns))
            return self._fetch(counts.agg(F.sum(DIFF_COLUMN).alias(DIFF_COLUMN)), names)

    def _heavy_retractions(self, parts: Sequence[Part]) -> pa.Table:
        with self.job.running() as session:
            rows = scan(
                session, self.snapshot, parts, [*self.columns, TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN]
            )
            rows = rows.where(
                f"{DIFF_COLUMN} < 0 AND {TIME_COLUMN} <= {self.snapshot.as_of}L AND {ERROR_COLUMN} IS NULL"
            )
            found = self._fetch(rows.select(*map(quote_identifier, self.update_names)), self.update_names)
        if found is None:
            raise LimitExceeded(
                f"the retractions of the collection exceed {self.limits.sum_bytes >> 20} MB",
                hint="read at a later time, or let compaction finish",
                sqlstate="53000",
            )
        return found

    def _add_heavy_errors(self, tables: list[pa.Table], heavy: Sequence[Part]) -> None:
        """Errors of parts that Spark reads, summed there: all with the same text are one."""
        from pyspark.sql import functions as F

        parts = [part for part in heavy if part.errors]
        if not parts:
            return
        with self.job.running() as session:
            rows = scan(session, self.snapshot, parts, [TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN])
            rows = rows.where(f"{TIME_COLUMN} <= {self.snapshot.as_of}L AND {ERROR_COLUMN} IS NOT NULL")
            summed = (
                rows.groupBy(ERROR_COLUMN)
                .agg(F.sum(DIFF_COLUMN).alias(DIFF_COLUMN))
                .where(f"{DIFF_COLUMN} != 0")
            )
            found = self._fetch(summed.select(DIFF_COLUMN, ERROR_COLUMN), [DIFF_COLUMN, ERROR_COLUMN])
        if found is None:
            raise multiset.SourceError("the collection holds more errors than can be shown")
        if found.num_rows:
            tables.append(self._updates(found))

    def _fetch(self, frame: DataFrame, names: Sequence[str], limit: int | None = None) -> pa.Table | None:
        """The frame's rows on the driver; None when they are more than the limit (by default `sum_bytes`)."""
        from tidemill.query.run import ResultStream

        limit = self.limits.sum_bytes if limit is None else limit
        # Giving up half-way must stop these jobs and not the query's later ones.
        job = self.job.child()
        schema = pa.schema([self.schema.field(name).with_nullable(True) for name in names])
        batches: list[pa.RecordBatch] = []
        size = 0
        with job.running():
            stream = ResultStream(self.host, job, jdf_of(frame), schema)
        with stream:
            for batch in stream:
                size += batch.nbytes
                if size > limit:
                    return None
                batches.append(batch)
        return pa.Table.from_batches(batches, schema=schema)

    def _sum_all(self) -> Prepared:
        """Everything summed by Spark, after a look at the errors."""
        tables: list[pa.Table] = []
        self._add_heavy_errors(tables, self.snapshot.parts)
        if self.extra is not None:
            tables.append(self.extra)
        if tables:
            multiset.check_errors(multiset.add_up(tables))
        return Prepared(
            self.columns,
            self.host.scratch,
            table=None if self.extra is None else self._rows(self.extra),
            snapshot=self.snapshot,
            parts=list(self.snapshot.parts),
            sum_all=True,
        )

    def _count_only(self) -> Prepared:
        """No column is needed: the number of rows, from what the log says of the parts as far as it tells."""
        tables: list[pa.Table] = []
        self._add_heavy_errors(tables, self.snapshot.parts)
        if self.extra is not None:
            tables.append(self.extra)
        count = 0
        if tables:
            count = multiset.total(multiset.check_errors(multiset.add_up(tables)))
        unknown: list[Part] = []
        for part in self.snapshot.parts:
            told = part.min_diff >= -1 and part.max_diff <= 1 and not part.errors
            if told and part.max_time <= self.snapshot.as_of:
                count += part.rows - 2 * part.retractions
            else:
                unknown.append(part)
        if unknown:
            count += self._sum_diffs(unknown)
        if count < 0:
            raise multiset.NegativeMultiplicity(-count, "()")
        return self._only(count)

    def _sum_diffs(self, parts: Sequence[Part]) -> int:
        from pyspark.sql import functions as F

        with self.job.running() as session:
            rows = scan(session, self.snapshot, parts, [TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN])
            rows = rows.where(f"{TIME_COLUMN} <= {self.snapshot.as_of}L AND {ERROR_COLUMN} IS NULL")
            # One row, whatever the limits say.
            found = self._fetch(rows.agg(F.sum(DIFF_COLUMN).alias(DIFF_COLUMN)), [DIFF_COLUMN], 1 << 20)
        if found is None or found.num_rows != 1:
            raise Internal("a sum is not one row")
        return found.column(0)[0].as_py() or 0

    def _updates(self, table: pa.Table) -> pa.Table:
        """The table with exactly `update_names`; what it lacks is null."""
        arrays = [
            table.column(name)
            if name in table.schema.names
            else pa.chunked_array([pa.nulls(table.num_rows, self.schema.field(name).type)])
            for name in self.update_names
        ]
        fields = [self.schema.field(name).with_nullable(True) for name in self.update_names]
        return pa.table(arrays, schema=pa.schema(fields))
