"""The exchange of records by key, from the tasks that read them to the tasks that hold their keys' rows.

A task cuts each batch of an upsert target into key buckets (`partition_by_key`) and gives Spark one value per
bucket, an Arrow stream (`encode`). Spark only moves bytes. The task that gets a bucket restores the order of
the records (`gather`). One key may arrive through several partitions of the upstream, so all records pass the
exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import HASH_COLUMN, key_hash
from tidemill.sources.contract import TRUNCATE_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.kernels import pc

# Buckets per collection. Part of the format, because state is stored and parts are clustered by bucket. Every
# bucket costs a tick one to two milliseconds of a core, even with few records. More buckets allow more tasks
# to share a catch-up (eight process about five million rows a second, more than one source can be read at),
# and shorten the longest merge (with ten million rows, a bucket has a file of 110 MB: a quarter of a second
# of a core, outside the tick).
BUCKETS = 8

# Slices of at least this size are compressed for the shuffle: text shrinks to a quarter at a gigabyte a
# second, and Spark copies each byte about six times between worker, heap and disk. Smaller slices mostly stay
# in their task.
COMPRESS_BYTES = 256 << 10

# (rank of the partition, first offset): the position of a slice in its unit.
Order = tuple[int, int]


def bucket_of(hashes: np.ndarray, buckets: int = BUCKETS) -> np.ndarray:
    """The bucket of each key hash, as uint16: the hashes' highest bits, so that a bucket is a range of
    hashes."""
    return ((hashes >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.uint16)


def partition_by_key(
    rows: pa.RecordBatch | pa.Table, key: Sequence[int], buckets: int = BUCKETS
) -> dict[int, pa.Table]:
    """The rows of each bucket that has any, in order, with `mz_key_hash` added. `key` are positions of
    columns. A record that empties the relation is sent to every bucket."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    hashes = key_hash(table, key)
    bucket = bucket_of(hashes, buckets)
    table = table.append_column(HASH_COLUMN, pa.array(hashes))
    if TRUNCATE_COLUMN in table.schema.names:
        every = truncates(table)
        chosen = {b: ((bucket == b) | every).nonzero()[0] for b in range(buckets)}
        return {b: table.take(pa.array(at)) for b, at in chosen.items() if len(at)}
    return split(table, bucket, buckets)


def truncates(table: pa.Table) -> np.ndarray:
    """The records that empty the relation. Only for tables that have the column."""
    return pc.fill_null(contiguous(table.column(TRUNCATE_COLUMN)), False).to_numpy(zero_copy_only=False)


def split(table: pa.Table, bucket: np.ndarray, buckets: int = BUCKETS) -> dict[int, pa.Table]:
    """The table's rows by bucket, in order, as slices of one copy."""
    counts = np.bincount(bucket, minlength=buckets)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return {int(present[0]): table}
    ordered = table.take(pa.array(np.argsort(bucket, kind="stable")))
    ends = np.cumsum(counts)
    return {int(b): ordered.slice(int(ends[b] - counts[b]), int(counts[b])) for b in present}


def encode(table: pa.Table, order: Order) -> bytes:
    """A slice as one value for the shuffle."""
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({b"order": f"{order[0]} {order[1]}".encode()})
    codec = "lz4" if table.nbytes >= COMPRESS_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode(data: bytes) -> tuple[Order, pa.Table]:
    """The argument of `encode`. The columns are not copied from `data`, unless they were compressed."""
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    rank, offset = table.schema.metadata[b"order"].split()
    return (int(rank), int(offset)), table.replace_schema_metadata(None)


def gather(slices: Iterable[bytes]) -> pa.Table:
    """The records of one bucket of a target, in the order of (partition, offset)."""
    decoded = sorted((decode(data) for data in slices), key=lambda item: item[0])
    # Optional columns exist only in slices that need them.
    return pa.concat_tables([table for _, table in decoded], promote_options="default")
