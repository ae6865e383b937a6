"""Evaluation of a stage of a query over the touched keys of its inputs, on Spark.

Called by followers of queries that are local to keys. The tables are versions of the inputs
(`version_rows`), in which each row stands once with its count. Copies are made here, because a plan counts
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.errors import LimitExceeded
from tidemill.query.job import Job
from tidemill.query.local import to_jdf
from tidemill.query.read import LIMITS
from tidemill.query.run import ResultStream
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.columns import contiguous

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# What a stage may give for one set of keys.
MAX_RESULT_BYTES = 512 << 20
# Rows of which a projection is evaluated during planning, without generated code.
FOLDED_ROWS = 20_000


def evaluate_keys(
    host: SparkHost, text: str, tables: Mapping[str, pa.Table], schema: pa.Schema, *, row_by_row: bool = False
) -> pa.Table:
    """The rows of the query over the tables (by the names that it uses; `mz_diff` last, as the count of each
    row). `row_by_row`: it is filters and projections. Blocks. Raises what `query.run` raises."""
    job = Job(host, "changes")
    views = {name: _repeated(table) for name, table in tables.items()}
    folded = row_by_row and max(t.num_rows for t in views.values()) <= FOLDED_ROWS
    small = max(t.num_rows for t in views.values()) <= LIMITS.small_rows
    with job.running(), host.lease(small=small) as slot:
        made: list[str] = []
        try:
            for name, table in views.items():
                to_jdf(slot, table, host.scratch, folded=folded).createOrReplaceTempView(name)
                made.append(name)
            frame = slot.jsession.sql(text)
        finally:
            for name in made:
                slot.jsession.catalog().dropTempView(name)
        batches: list[pa.RecordBatch] = []
        size = 0
        with ResultStream(host, job, frame, schema) as stream:
            for batch in stream:
                size += batch.nbytes
                if size > MAX_RESULT_BYTES:
                    raise LimitExceeded(
                        f"the changes of the query exceed {MAX_RESULT_BYTES >> 20} MB at once",
                        sqlstate="54000",
                    )
                batches.append(batch)
        return pa.Table.from_batches(batches, schema=schema)


def _repeated(table: pa.Table) -> pa.Table:
    """Each row as often as its count says."""
    counts = contiguous(table.column(DIFF_COLUMN)).to_numpy()
    rows = table.drop_columns([DIFF_COLUMN])
    if len(counts) and counts.max() > 1:
        return rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return rows
