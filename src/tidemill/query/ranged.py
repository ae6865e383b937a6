"""A collection or a result in ranges: its rows, range-partitioned by their sort keys.

For callers that need a large result in order, or its equal rows together, and can process it range by range.
Spark computes the ranges and moves the rows (on disk, if there are many). Equal rows are never in two ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemill.query.job import Job
from tidemill.query.read import ConstantInput, Input, prepare
from tidemill.query.relation import frame_of, jdf_of
from tidemill.query.result_size import Growth
from tidemill.query.run import ResultStream, planned
from tidemill.types.arrow import DIFF_COLUMN, arrow_schema
from tidemill.types.model import Column, RelationDesc
from tidemill.types.spark import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.persist.snapshot import Snapshot
    from tidemill.query.spark import SparkHost

# The number of a row's range, in the last column of the result.
RANGE_COLUMN = "mz_range"
# The average size of a range: it is collected on the driver, which holds several at once.
RANGE_ROWS = 128 * 1024
RANGE_BYTES = 16 << 20
# Files of a shuffle grow with the square of it.
MAX_RANGES = 1_000


@dataclass(frozen=True, slots=True)
class RangeKey:
    """One expression (Spark SQL, over physical names) that the rows are ordered by."""

    sql: str
    descending: bool = False
    nulls_first: bool = False


def ranged(
    host: SparkHost,
    given: Input,
    columns: Sequence[Column],
    keys: Sequence[RangeKey],
    *,
    job: Job,
    counted: bool = False,
) -> ResultStream:
    """The rows with `mz_diff` and the number of their range. Ranges are in order; the rows within one are
    not. A row is repeated for each copy, with diff 1; with `counted` it appears once, with its count, which
    keys may name. Blocks until all rows are partitioned. Raises as `run` does."""
    ranges = ranges_of(given.snapshot)
    host.metrics.add(queries=1)
    prepared = prepare(host, given, job)
    with job.running(), host.lease(small=False) as slot:
        frame = frame_of(slot, prepared.dataframe(slot))
        return _dealt(host, job, frame, columns, keys, ranges, counted)


def ranged_query(
    host: SparkHost,
    sql_text: str,
    inputs: Mapping[str, Input | ConstantInput],
    columns: Sequence[Column],
    keys: Sequence[RangeKey],
    *,
    ranges: int,
    job: Job,
    counted: bool = False,
) -> ResultStream:
    """Like `ranged`, for a query's rows. The keys name its columns c0, c1, ... (`query_names`)."""
    with planned(host, sql_text, inputs, job) as (slot, jdf):
        frame = frame_of(slot, jdf).toDF(*query_names(columns))
        return _dealt(
            host, job, frame, columns, keys, ranges, counted, spooled=slot.growth is not Growth.NONE
        )


def query_names(columns: Sequence[Column]) -> list[str]:
    return [f"c{i}" for i in range(len(columns))]


def ranges_of(snapshot: Snapshot) -> int:
    """The number of ranges for a collection, from the size of its rows in memory. (Similar long rows take
    fifty times the space that they have in Parquet.)"""
    return ranges_for(snapshot.rows, snapshot.weight)


def ranges_for(rows: int, size: int) -> int:
    """How many ranges so many rows, of so many bytes in memory, are dealt out into."""
    return max(2, min(MAX_RANGES, max(rows // RANGE_ROWS, size // RANGE_BYTES)))


def _dealt(
    host: SparkHost,
    job: Job,
    frame: DataFrame,
    columns: Sequence[Column],
    keys: Sequence[RangeKey],
    ranges: int,
    counted: bool,
    *,
    spooled: bool = False,
) -> ResultStream:
    from pyspark.sql import functions as F

    names = [quote_identifier(name) for name in frame.columns]
    if counted:
        frame = frame.groupBy(*names).agg(F.count(F.lit(1)).alias(DIFF_COLUMN))
    order = [_sort_column(F.expr(key.sql), key) for key in keys]
    frame = frame.repartitionByRange(ranges, *order)
    diff = F.col(DIFF_COLUMN) if counted else F.lit(1).cast("bigint").alias(DIFF_COLUMN)
    frame = frame.select(*names, diff, F.spark_partition_id().alias(RANGE_COLUMN))
    schema = arrow_schema(RelationDesc(tuple(columns)))
    for name, t in ((DIFF_COLUMN, pa.int64()), (RANGE_COLUMN, pa.int32())):
        schema = schema.append(pa.field(name, t))
    return ResultStream(host, job, jdf_of(frame), schema, spooled=spooled)


def _sort_column(column: Any, key: RangeKey) -> Any:
    direction = "desc" if key.descending else "asc"
    return getattr(column, f"{direction}_nulls_{'first' if key.nulls_first else 'last'}")()
