"""A collection at a time as a Spark relation.

`run` calls `prepare` for each input, off the event loop. The relation's rows are exactly the multiset of the
collection at the snapshot's time, plus the transaction's own updates. Consolidating every row would cost
twelve times the scan, so it is done only where necessary:

1. A small collection is summed on the driver with Arrow and passed to Spark as rows.
2. In a large collection, the parts that hold only +1 at or before the time are used as they are ("clean"). In
   practice the other parts are few and small, because of compaction. Their updates are read and summed on the
   driver. Positive sums are additional rows. Negative sums, the retractions, must meet their rows in the
   clean parts:
3. `retraction_matches` searches the clean parts for rows that may be retracted, and returns their positions.
   These rows are summed with the retractions. The relation is then the clean parts without those positions,
   plus the result of the sum. A false match passes through the sum unchanged. So the `probe` affects time but
   not correctness: if it missed a retracted row, the result would be an error, never a wrong answer.
4. If there are too many retractions or matches for the driver, Spark sums everything.

All this uses only the columns that the query needs: projecting a multiset and summing commute. If these are
so few that half the collection matches (a status, a country), more columns are summed and dropped at the end.
A negative count is found where counts are summed, and raises `NegativeMultiplicity`. Live error rows raise
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
from tidemill.query.probe import Probe
from tidemill.query.relation import NO_COLUMN, PreparedRelation, jdf_of
from tidemill.query.retraction_matches import find
from tidemill.query.row_filter import MAX_BITMAP_BYTES, Hidden
from tidemill.query.scan import scan
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, HIDDEN_ROW, TIME_COLUMN, shard_schema
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

    # Summed on the driver: few enough to be passed to Spark as literal rows.
    small_rows: int = 64 * 1024
    # In memory: the sum becomes one partition, one task's result.
    small_memory: int = 32 << 20
    # Updates of unclean parts that the driver reads, ...
    driver_rows: int = 2_000_000
    # ... the same in Parquet, ...
    driver_bytes: int = 48 << 20
    # ... and in memory, held several times while they are summed. (Similar long rows take fifty times the
    # space that they have in Parquet.) The rest is one task's result for Spark, which loses results of a
    # gigabyte.
    driver_memory: int = 128 << 20
    # Retractions that `retraction_matches` searches for; with more, consolidating everything on Spark is as
    # cheap.
    retractions: int = 1_000_000
    # Rows that may be retracted, held and summed by the driver.
    found_bytes: int = 64 << 20
    # What a job may return to the driver for the sum.
    sum_bytes: int = 512 << 20
    # See `row_filter`.
    bitmap_bytes: int = MAX_BITMAP_BYTES
    # Rows of the driver's sum that are repeated there; above, Spark does it.
    expand_rows: int = 2_000_000


LIMITS = Limits()

# If a smaller share of the retractions than this is distinct in the columns that the query needs, these are
# too few to distinguish rows. With n retractions of as many equally likely values, 98% distinct ones mean
# that 4% of all rows match one.
_DISTINCT = 0.98
# Columns that are read in addition then.
_MORE_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Input:
    """A relation that a query reads: a shard's snapshot (the caller keeps it open until the result is read),
    the physical columns that the query needs (None = all; the relation has them in this order), and the
    transaction's own updates (at least those columns under physical names, and `mz_diff`)."""

    snapshot: Snapshot
    columns: Sequence[str] | None = None
    extra: pa.Table | None = None
    limits: Limits = LIMITS


@dataclass(frozen=True, slots=True)
class ConstantInput:
    """A relation that is already in memory, such as a system relation: its rows in storage forms (at least
    one column)."""

    table: pa.Table


def prepare(host: SparkHost, given: Input | ConstantInput, job: Job) -> PreparedRelation:
    """Read what the driver reads; may run Spark jobs under `job`. Raises `SourceError`,
    `NegativeMultiplicity`, `DataCorrupted`."""
    if isinstance(given, ConstantInput):
        return PreparedRelation(given.table.schema.names, host.scratch, table=given.table)
    return _Preparation(host, given, job).prepare()


class _Preparation:
    """One `prepare`, its input unpacked."""

    def __init__(self, host: SparkHost, given: Input, job: Job) -> None:
        self.host = host
        self.job = job
        self.snapshot = given.snapshot
        self.limits = given.limits
        names = physical_names(given.snapshot.desc) if given.columns is None else given.columns
        self.columns = list(names)
        self.schema = shard_schema(given.snapshot.desc)
        # The transaction's own, if it has any.
        self.extra = given.extra if given.extra is not None and given.extra.num_rows else None

    def prepare(self) -> PreparedRelation:
        self.job.check()
        snapshot, limits = self.snapshot, self.limits
        if snapshot.rows <= limits.small_rows and snapshot.weight <= limits.small_memory:
            return self._small()
        if not self.columns:
            return self._count_only()
        return self._large()

    # -- on the driver ---------------------------------------------------------------------------------

    def _small(self) -> PreparedRelation:
        table = self.snapshot.read(self.columns)
        if self.extra is not None:
            table = multiset.add_up([self._updates(table), self._updates(self.extra)])
        if self.extra is not None or self.snapshot.needs_consolidation:
            table = multiset.check_errors(table, self.snapshot)
            multiset.check_counts(table, self.columns)
        if not self.columns:
            return self._only(multiset.total(table))
        if self._many(table):
            return PreparedRelation(self.columns, self.host.scratch, table=self._rows(table), counted=True)
        return PreparedRelation(self.columns, self.host.scratch, table=multiset.expand(table, self.columns))

    def _only(self, count: int) -> PreparedRelation:
        """A number of rows, of which no column is needed."""
        if count > self.limits.small_rows:
            return PreparedRelation([NO_COLUMN], self.host.scratch, count=count)
        rows = pa.table({NO_COLUMN: pa.array(np.zeros(count, np.int8))})
        return PreparedRelation([NO_COLUMN], self.host.scratch, table=rows)

    def _many(self, table: pa.Table) -> bool:
        """Whether repeating the rows on the driver would make too many of them."""
        return multiset.total(table) > max(self.limits.expand_rows, table.num_rows)

    def _rows(self, table: pa.Table) -> pa.Table:
        return table.select([*self.columns, DIFF_COLUMN])

    # -- large -----------------------------------------------------------------------------------------

    def _large(self) -> PreparedRelation:
        clean, light, heavy = self._sort_parts()
        scanned = [*clean, *heavy]
        if sum(part.retractions for part in heavy) > self.limits.retractions:
            return self._sum_all()
        keys = self.columns
        updates = self._gathered(light, heavy, keys)
        if updates is None:
            return self._relation(None, scanned)
        negative = _negative(updates)
        if not negative.num_rows:
            return self._relation(updates, scanned)
        if not scanned:
            # Nothing is left to meet them: this raises.
            multiset.check_counts(updates, keys)
        more = self._more_columns()
        if more and negative.num_rows < -multiset.total(negative) * _DISTINCT:
            keys = [*keys, *more]
            updates = self._gathered(light, heavy, keys)
            if updates is None:
                raise Internal("updates have gone")
            negative = _negative(updates)
        if negative.num_rows > self.limits.retractions:
            return self._sum_all()
        found = find(
            self.snapshot,
            scanned,
            Probe(negative, keys),
            keys,
            threads=self.host.cores,
            limit=self.limits.found_bytes,
            check=self.job.check,
        )
        if found is None:
            return self._sum_all()
        updates = multiset.add_up([updates.select(found.rows.schema.names), found.rows])
        multiset.check_counts(updates, keys)
        prepared = self._relation(updates, scanned)
        prepared.hidden = Hidden(found.places, self.limits.bitmap_bytes)
        return prepared

    def _gathered(self, light: list[Part], heavy: list[Part], keys: list[str]) -> pa.Table | None:
        """The updates that the driver sums (of parts that Spark reads only the retractions), each row once,
        over the columns `keys`; None if there are none. Raises live errors."""
        tables = [self._updates(self.snapshot.read_part(part, keys), keys) for part in light]
        if any(part.retractions for part in heavy):
            tables.append(self._heavy_retractions([p for p in heavy if p.retractions], keys))
        self._add_heavy_errors(tables, heavy, keys)
        if self.extra is not None:
            tables.append(self._updates(self.extra, keys))
        return multiset.check_errors(multiset.add_up(tables), self.snapshot) if tables else None

    def _more_columns(self) -> list[str]:
        """Columns that the query does not need and that may distinguish rows, numbers first."""
        known = self.schema.names if self.extra is None else self.extra.schema.names
        others = [n for n in physical_names(self.snapshot.desc) if n in known and n not in self.columns]
        types = {name: self.schema.field(name).type for name in others}
        numbers = [n for n in others if pa.types.is_primitive(types[n]) and types[n].bit_width >= 64]
        texts = [n for n in others if pa.types.is_string(types[n]) or pa.types.is_binary(types[n])]
        return [*numbers, *texts][:_MORE_COLUMNS]

    def _sort_parts(self) -> tuple[list[Part], list[Part], list[Part]]:
        """(clean, light, heavy): rows used unchanged; parts that the driver reads whole; parts that Spark
        reads with filters."""
        clean: list[Part] = []
        rest: list[Part] = []
        for part in self.snapshot.parts:
            (clean if part.all_inserts and part.max_time <= self.snapshot.as_of else rest).append(part)
        rest.sort(key=lambda part: (part.rows, part.path))
        light: list[Part] = []
        rows, size = self.limits.driver_rows, self.limits.driver_bytes
        many = sum(part.rows for part in rest) > self.limits.small_rows
        if many or sum(part.weight for part in rest) > self.limits.driver_memory:
            rows = min(rows, int(self.limits.driver_memory / self._width(rest[0])))
        while rest and rest[0].rows <= rows and rest[0].bytes <= size:
            rows -= rest[0].rows
            size -= rest[0].bytes
            light.append(rest.pop(0))
        return clean, light, rest

    def _width(self, part: Part) -> float:
        """Bytes that a row takes in memory, by the example of a part."""
        return max(1.0, self.snapshot.read_part(part, self.columns).nbytes / max(1, part.rows))

    def _relation(self, table: pa.Table | None, parts: list[Part]) -> PreparedRelation:
        counted = table is not None and self._many(table)
        if table is not None:
            table = self._rows(table) if counted else multiset.expand(table, self.columns)
        return PreparedRelation(
            self.columns,
            self.host.scratch,
            table=table,
            counted=counted,
            snapshot=self.snapshot,
            parts=parts,
        )

    def _heavy_retractions(self, parts: Sequence[Part], keys: list[str]) -> pa.Table:
        names = [*keys, DIFF_COLUMN, ERROR_COLUMN]
        with self.job.running() as session:
            rows = scan(session, self.snapshot, parts, [*names, TIME_COLUMN])
            rows = rows.where(
                f"{DIFF_COLUMN} < 0 AND {TIME_COLUMN} <= {self.snapshot.as_of}L AND {ERROR_COLUMN} IS NULL"
            )
            found = self._fetch(rows.select(*map(quote_identifier, names)), names)
        if found is None:
            raise LimitExceeded(
                f"the retractions of the collection exceed {self.limits.sum_bytes >> 20} MB",
                hint="read at a later time, or let compaction finish",
                sqlstate="53000",
            )
        return found

    def _add_heavy_errors(
        self, tables: list[pa.Table], heavy: Sequence[Part], keys: list[str] | None = None
    ) -> None:
        """Errors of parts that Spark reads, summed there: all with the same text are one."""
        from pyspark.sql import functions as F

        parts = [part for part in heavy if part.errors]
        if not parts:
            return
        with self.job.running() as session:
            rows = scan(session, self.snapshot, parts, [TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN])
            rows = rows.where(f"{TIME_COLUMN} <= {self.snapshot.as_of}L AND {ERROR_COLUMN} != '{HIDDEN_ROW}'")
            summed = (
                rows.groupBy(ERROR_COLUMN)
                .agg(F.sum(DIFF_COLUMN).alias(DIFF_COLUMN))
                .where(f"{DIFF_COLUMN} != 0")
            )
            found = self._fetch(summed.select(DIFF_COLUMN, ERROR_COLUMN), [DIFF_COLUMN, ERROR_COLUMN])
        if found is None:
            raise multiset.SourceError("the collection holds more errors than can be shown")
        if found.num_rows:
            tables.append(self._updates(found, keys))

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

    def _sum_all(self) -> PreparedRelation:
        """Everything summed by Spark, after a look at the errors."""
        tables: list[pa.Table] = []
        self._add_heavy_errors(tables, self.snapshot.parts)
        if self.extra is not None:
            tables.append(self._updates(self.extra))
        if tables:
            multiset.check_errors(multiset.add_up(tables), self.snapshot)
        return PreparedRelation(
            self.columns,
            self.host.scratch,
            table=None if self.extra is None else self._rows(self.extra),
            snapshot=self.snapshot,
            parts=list(self.snapshot.parts),
            sum_all=True,
        )

    def _count_only(self) -> PreparedRelation:
        """No column is needed: the number of rows, from the log's entries where they suffice."""
        tables: list[pa.Table] = []
        self._add_heavy_errors(tables, self.snapshot.parts)
        if self.extra is not None:
            tables.append(self._updates(self.extra))
        count = 0
        if tables:
            count = multiset.total(multiset.check_errors(multiset.add_up(tables), self.snapshot))
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
            # One row, independent of the limits.
            found = self._fetch(rows.agg(F.sum(DIFF_COLUMN).alias(DIFF_COLUMN)), [DIFF_COLUMN], 1 << 20)
        if found is None or found.num_rows != 1:
            raise Internal("a sum is not one row")
        return found.column(0)[0].as_py() or 0

    def _updates(self, table: pa.Table, keys: list[str] | None = None) -> pa.Table:
        """The table as the driver sums it: `keys` (by default the query's columns), diff, error; missing
        columns are null."""
        names = [*(self.columns if keys is None else keys), DIFF_COLUMN, ERROR_COLUMN]
        arrays = [
            table.column(name)
            if name in table.schema.names
            else pa.chunked_array([pa.nulls(table.num_rows, self.schema.field(name).type)])
            for name in names
        ]
        fields = [self.schema.field(name).with_nullable(True) for name in names]
        return pa.table(arrays, schema=pa.schema(fields))


def _negative(updates: pa.Table) -> pa.Table:
    return updates.filter(pc.less(updates.column(DIFF_COLUMN), 0))
