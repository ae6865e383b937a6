"""Partitioning of updates by the hash of (data, time), so that repetitions meet in one bucket.

The reading half of a unit calls `Spread` with each batch. Slices are sent through Spark's shuffle as bytes.
`gather` combines the slices of a bucket in the order of (partition, offset), independent of how the range was
cut. So the same records give the same rows, with the same origins, on every read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from tidemill.catalog.sidecars import DIFF, OFFSET, PARTITION, data_names, time_names
from tidemill.cdcv2.times import Frontier
from tidemill.envelope.keys import HASH_COLUMN, KeyShape, key_hash
from tidemill.ingest.exchange import BUCKETS, COMPRESS_BYTES, bucket_of, split
from tidemill.ingest.recovery.values import FoundUpdates, Recover, beyond, times_of
from tidemill.sources.contract import OFFSET_COLUMN, STREAM_TIME_COLUMN, SourceBatch
from tidemill.sources.offsets import PartitionKey
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.columns import contiguous

# Updates of one partition that are partitioned together: fewer and larger slices for the shuffle.
EXCHANGE_ROWS = 262_144

# Receives a bucket and a slice of it.
Send = Callable[[int, bytes], None]


def shape_of(recover: Recover) -> KeyShape:
    """The stash as keyed state: the data and time of an update are its key."""
    times = time_names(recover.stream.kind)
    return KeyShape.of(recover.desc, [*data_names(_width(recover)), *times])


def _width(recover: Recover) -> int:
    """The number of data columns."""
    return len(recover.desc.columns) - len(time_names(recover.stream.kind)) - 3


def components(table: pa.Table | pa.RecordBatch, kind: int) -> list[np.ndarray]:
    """The times of stashed rows, column by column."""
    found: list[np.ndarray] = []
    for name in time_names(kind):
        column = table.column(name)
        found.append((column if isinstance(column, pa.Array) else contiguous(column)).to_numpy())
    return found


class Spread:
    """Updates of one piece for one target. `found` receives everything that is not an update."""

    def __init__(self, recover: Recover, partition: PartitionKey, send: Send, found: FoundUpdates) -> None:
        self._recover = recover
        self._partition = "" if partition is None else str(partition)
        self._send = send
        self._found = found
        self._key = range(_width(recover) + max(recover.stream.kind, 1))
        self._names = [*data_names(_width(recover)), *time_names(recover.stream.kind), DIFF, OFFSET]
        self._held: list[pa.Table] = []
        self._rows = 0

    def add(self, batch: SourceBatch) -> None:
        for stated in batch.stated:
            self._found.stated.append(((self._partition, stated.offset), stated.said))
        if not batch.rows.num_rows:
            return
        offsets = batch.rows.column(OFFSET_COLUMN).to_numpy()
        self._found.cover(self._partition, int(offsets[0]), int(offsets[-1]))
        rows = self._wanted(batch.rows)
        if rows is not None:
            self._held.append(rows)
            self._rows += rows.num_rows
            if self._rows >= EXCHANGE_ROWS:
                self.flush()

    def _wanted(self, rows: pa.RecordBatch) -> pa.Table | None:
        """The new updates, in the columns of the stash."""
        recover = self._recover
        times = rows.column(STREAM_TIME_COLUMN)
        if recover.stream.kind:
            flat = times.flatten().to_numpy().reshape(-1, recover.stream.kind)
            parts = [np.ascontiguousarray(column) for column in flat.T]
        else:
            parts = [times.to_numpy()]
        width = _width(recover)
        columns = [
            *rows.columns[:width],
            *map(pa.array, parts),
            rows.column(DIFF_COLUMN),
            rows.column(OFFSET_COLUMN),
        ]
        table = pa.table(columns, names=self._names)
        wanted = wanted_times(parts, recover.reported, recover)
        if not wanted.any():
            return None
        return table if wanted.all() else table.filter(pa.array(wanted))

    def flush(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._held).combine_chunks()
        self._held, self._rows = [], 0
        hashes = key_hash(table, self._key)
        table = table.append_column(HASH_COLUMN, pa.array(hashes))
        for bucket, rows in split(table, bucket_of(hashes), BUCKETS).items():
            self._send(bucket, _encode(rows, self._partition))


def wanted_times(parts: list[np.ndarray], reported: Frontier, recover: Recover) -> np.ndarray:
    """Which updates are new: beyond the frontier, and not at a time that is withheld permanently."""
    wanted = beyond(reported, parts)
    if recover.poisoned and wanted.any():
        wanted &= np.fromiter((t not in recover.poisoned for t in times_of(parts)), np.bool_, len(wanted))
    return wanted


def _encode(table: pa.Table, partition: str) -> bytes:
    first = int(table.column(OFFSET)[0].as_py())
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({b"place": json.dumps([partition, first]).encode()})
    codec = "lz4" if table.nbytes >= COMPRESS_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def gather(slices: Iterable[bytes], shape: KeyShape) -> tuple[pa.RecordBatch, np.ndarray]:
    """The updates of one bucket, in the stash's columns, and their hashes; in the order of (partition,
    offset)."""
    decoded: list[tuple[tuple[str, int], pa.Table]] = []
    for data in slices:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        partition, first = json.loads(table.schema.metadata[b"place"])
        decoded.append(((partition, first), table.replace_schema_metadata(None)))
    decoded.sort(key=lambda item: item[0])
    tables: list[pa.Table] = []
    for (partition, _), table in decoded:
        tables.append(table.append_column(PARTITION, pa.repeat(pa.scalar(partition), table.num_rows)))
    joined = pa.concat_tables(tables).combine_chunks()
    columns = [contiguous(joined.column(f.name)).cast(f.type) for f in shape.schema]
    batch = pa.RecordBatch.from_arrays(columns, schema=shape.schema)
    return batch, contiguous(joined.column(HASH_COLUMN)).to_numpy()
