"""A query's result as parts of a shard, written where its rows are computed.

Called for results that may be larger than the server's memory. Spark's tasks write the parts, and only their
descriptions return to the driver. Written parts are invisible until the caller appends them, so a task may be
killed, retried or run twice at once. Parts that are never appended are swept.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.persist.blob import Blobs
from tidemill.persist.part import Part, write_part
from tidemill.query.ranged import query_names
from tidemill.query.relation import frame_of, jdf_of
from tidemill.query.run import ResultStream, planned
from tidemill.query.tasks import map_in_arrow
from tidemill.types.arrow import shard_schema
from tidemill.types.identity import canonical_table, consolidate
from tidemill.types.model import Column, RelationDesc

if TYPE_CHECKING:
    from tidemill.query.job import Job
    from tidemill.query.read import ConstantInput, Input
    from tidemill.query.spark import SparkHost

# A part is written when so much has gathered: it bounds a task's memory, and parts of this size need little
# compaction.
PART_ROWS = 1 << 20
PART_BYTES = 64 << 20

_PART = pa.schema([("part", pa.binary())])


@dataclass(frozen=True, slots=True)
class Destination:
    """The target of the rows, as updates at `time`; `job` names the writer for the sweeper. Sent to the
    tasks."""

    blobs: Blobs
    shard: str
    desc: RelationDesc
    time: int
    job: str


def write_rows(
    host: SparkHost,
    sql_text: str,
    inputs: Mapping[str, Input | ConstantInput],
    columns: Sequence[Column],
    to: Destination,
    *,
    job: Job,
) -> list[Part]:
    """Blocks until all is written. Raises as `run.run` does. `columns` (at least one) are the query's, of the
    types of the destination's."""
    with planned(host, sql_text, inputs, job) as (slot, jdf):
        frame = frame_of(slot, jdf).toDF(*query_names(columns))
        written = map_in_arrow(frame, partial(_write, to), "part BINARY")
        stream = ResultStream(host, job, jdf_of(written), _PART)
    with stream:
        return [pickle.loads(part) for batch in stream for part in batch.column(0).to_pylist()]


def _write(to: Destination, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: the descriptions of the parts written from its rows."""
    gathered: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(_stamped(batch, to))
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= PART_ROWS or size >= PART_BYTES:
            yield _part(gathered, to)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _part(gathered, to)


def _stamped(batch: pa.RecordBatch, to: Destination) -> pa.Table:
    schema = shard_schema(to.desc)
    count = batch.num_rows
    times, ones = (np.full(count, value, np.int64) for value in (to.time, 1))
    columns = [*batch.columns, pa.array(times), pa.array(ones), pa.nulls(count, pa.string())]
    return pa.table([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _part(gathered: list[pa.Table], to: Destination) -> pa.RecordBatch:
    table = consolidate(canonical_table(pa.concat_tables(gathered), to.desc), to.desc)
    part = write_part(to.blobs, to.shard, to.desc, table, to.job)
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(part)], pa.binary())], schema=_PART)
