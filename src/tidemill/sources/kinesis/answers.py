"""Answers of GetRecords as columns. Called by the receiver on the driver and by readers in the tasks."""

from __future__ import annotations

import io
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from tidemill.sources.contract import UpstreamError

# The most records of one answer, the service's limit.
MAX_RECORDS = 10_000

SEQUENCE, KEY, DATA, ARRIVED = "sequence", "key", "data", "arrived"
# Sequence numbers are text of digits: 56 of them, and no type of numbers has so many. `arrived` is in
# milliseconds since 1970.
SCHEMA = pa.schema(
    [
        pa.field(SEQUENCE, pa.string()),
        pa.field(KEY, pa.binary()),
        pa.field(DATA, pa.binary()),
        pa.field(ARRIVED, pa.int64()),
    ]
)
_RECORD = pl.Struct(
    {
        "SequenceNumber": pl.String,
        "PartitionKey": pl.String,
        "Data": pl.String,
        "ApproximateArrivalTimestamp": pl.Float64,
    }
)
_ANSWER = {"Records": pl.List(_RECORD), "NextShardIterator": pl.String, "MillisBehindLatest": pl.Int64}


@dataclass(frozen=True, slots=True)
class Answer:
    """Without `next`, the shard is closed and this was its end."""

    records: pa.RecordBatch
    next: str | None
    behind_ms: int


def parse(raw: bytes) -> Answer:
    try:
        found = pl.read_json(io.BytesIO(raw), schema=_ANSWER)
        rows = found.select(pl.col("Records").explode()).unnest("Records")
        rows = rows.select(
            pl.col("SequenceNumber").alias(SEQUENCE),
            pl.col("PartitionKey").cast(pl.Binary).alias(KEY),
            pl.col("Data").str.decode("base64").alias(DATA),
            (pl.col("ApproximateArrivalTimestamp") * 1000).round().cast(pl.Int64).alias(ARRIVED),
        ).filter(pl.col(SEQUENCE).is_not_null())
        table = rows.to_arrow().cast(SCHEMA).combine_chunks()
        behind = found.item(0, "MillisBehindLatest")
        batches = table.to_batches()
        records = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=SCHEMA)
        return Answer(records, found.item(0, "NextShardIterator"), int(behind or 0))
    except (pl.exceptions.PolarsError, pa.ArrowException, ValueError, IndexError) as e:
        error = UpstreamError("an answer of Kinesis cannot be read", detail=str(e)[:300])
        error.transient = True
        raise error from e


def last_sequence(records: pa.RecordBatch) -> str:
    return str(records.column(SEQUENCE)[-1].as_py())
