"""Part: one Parquet file of updates, durable when written, visible only once a log entry names it.

Shards and Spark tasks call `write_part`, which needs only picklable values. Snapshots, listens and compaction
call `read_part`. Tables hold the columns of the relation under their physical names, in order, then
`mz_timestamp`, `mz_diff` and `mz_error` (`types.arrow.shard_schema`). Pages carry checksums, so a flipped bit
raises an error.
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill import failpoints
from tidemill.caches import cached
from tidemill.errors import DataCorrupted, Internal
from tidemill.persist.blob import BlobFailed, BlobMissing, Blobs
from tidemill.persist.outcome import CommitFailed
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.model import RelationDesc

FP_PART_WRITTEN = failpoints.register("persist.part.written", "a part is durable, no log entry names it yet")

# A job's id is the name of a folder, and is part of Delta's paths, which are URLs, without escapes.
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

# A part's checksum covers its end up to this length: all of a small file; of a large one the footer, which no
# page checksum covers and whose damage could pass for a column that was added later.
CRC_BYTES = 1 << 20

# Rows of a row group: large enough to compress well, and so many that they take about so much memory: a task
# reads a whole one, and gives as much as its result, of which Spark holds some copies.
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 16 << 20

# Minimum memory per row where a part does not record it: similar rows may take a few bytes each in Parquet,
# and fifty times that in Arrow.
LEAST_ROW_BYTES = 64


@dataclass(frozen=True, slots=True)
class Part:
    """The log's description of one part, complete or absent: plain numbers, so it can be stored as JSON.
    `path` is relative to the folder of the shard. Times and diffs are inclusive bounds; `retractions` counts
    updates of negative diff, `errors` those with an error; `memory` is the size of the rows in Arrow's form
    (0: written before this was recorded)."""

    path: str
    rows: int
    bytes: int
    min_time: int
    max_time: int
    min_diff: int
    max_diff: int
    retractions: int
    errors: int
    crc: int  # of the file's last CRC_BYTES
    memory: int = 0

    @property
    def job(self) -> str:
        return self.path.split("/", 2)[1]

    @property
    def weight(self) -> int:
        """The size for memory planning: merging needs about four times as many bytes."""
        return self.memory or max(self.bytes, self.rows * LEAST_ROW_BYTES)

    @property
    def all_inserts(self) -> bool:
        """Every update is a +1 and not an error: its rows are rows of the collection."""
        return self.min_diff == 1 == self.max_diff and self.errors == 0


def group_rows(rows: int, memory: int) -> int:
    """How many of the rows, which take `memory` together, make a row group."""
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES * rows // max(1, memory)))


def part_path(shard_id: str, part: Part) -> str:
    """The part's path in the store."""
    return f"shards/{shard_id}/{part.path}"


def write_part(blobs: Blobs, shard_id: str, desc: RelationDesc, table: pa.Table, job: str) -> Part:
    """Write the updates durably. Invisible until `Shard.compare_and_append` takes the part; an error
    column may be left out. The table's columns must be those of `desc` in order under their physical
    names, of the storage types."""
    if _JOB.fullmatch(job) is None:
        raise Internal(f"{job!r} is no job id")
    table = conform(table, desc)
    if table.num_rows == 0:
        raise Internal("a part needs at least one update")
    path = f"parts/{job}/{uuid.uuid4()}.parquet"
    data = _encode(table)
    part = _describe(path, table, data)
    try:
        blobs.put(f"shards/{shard_id}/{path}", data)
    except BlobFailed as error:
        raise CommitFailed.because(shard_id, error) from error
    failpoints.hit(FP_PART_WRITTEN)
    return part


@cached(1024)
def part_schema(desc: RelationDesc) -> pa.Schema:
    """`types.arrow.shard_schema`, made once per relation: every part that is written or read asks for it."""
    return shard_schema(desc)


def conform(table: pa.Table, desc: RelationDesc) -> pa.Table:
    """The table in exactly the shard's schema; raises when it is not one of its updates."""
    schema = part_schema(desc)
    if table.schema.equals(schema):
        _check_not_null(table)
        return table
    if ERROR_COLUMN not in table.schema.names:
        table = table.append_column(ERROR_COLUMN, pa.nulls(table.num_rows, pa.string()))
    if table.schema.names != schema.names or table.schema.types != schema.types:
        raise Internal(
            "the updates do not have the columns of their shard",
            detail=f"Got {_show(table.schema)}; expected {_show(schema)}.",
        )
    _check_not_null(table)
    return pa.Table.from_arrays(table.columns, schema=schema)


def read_part(
    blobs: Blobs,
    shard_id: str,
    part: Part,
    desc: RelationDesc,
    columns: Sequence[str] | None = None,
    times: tuple[int | None, int | None] = (None, None),
) -> pa.Table:
    """The part's updates with `times[0] <= time < times[1]`, in the schema of the shard or its projection to
    `columns` (physical names; time, diff and error are always included). Columns that were added after the
    part was written are null. Raises `DataCorrupted` when the file is missing or differs from the log's
    description."""
    schema = project(part_schema(desc), columns)
    return clip(_read_file(blobs, shard_id, part, schema), part, times)


def project(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The shard's schema cut down to `columns`, in that order, with time, diff and error behind."""
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in (*columns, TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN)])


def clip(table: pa.Table, part: Part, times: tuple[int | None, int | None]) -> pa.Table:
    """Only the updates in [times[0], times[1]). The bounds of the part avoid the filter where possible."""
    lower, upper = times
    above = lower is None or part.min_time >= lower
    below = upper is None or part.max_time < upper
    if above and below:
        return table
    at = _numbers(table, TIME_COLUMN)
    mask = np.ones(len(at), dtype=np.bool_)
    if lower is not None:
        mask &= at >= lower
    if upper is not None:
        mask &= at < upper
    return table.filter(pa.array(mask))


def read_groups(
    blobs: Blobs,
    shard_id: str,
    part: Part,
    desc: RelationDesc,
    columns: Sequence[str],
    piece: tuple[int, int] = (0, 1),
) -> Generator[tuple[int, pa.Table]]:
    """A part too large to be held at once, by row groups: (place of the first update in the part, the
    updates), with exactly `columns` (time, diff and error only if they are among them). `piece` (i, n) is
    the i-th of n parts of about the same size, for readers beside one another. Raises as `read_part`."""
    whole = part_schema(desc)
    schema = pa.schema([whole.field(name) for name in columns])
    with _opened(blobs, shard_id, part) as file:
        groups = file.num_row_groups
        present = set(file.schema_arrow.names)
        names = [name for name in schema.names if name in present]
        first, end = (groups * i // piece[1] for i in (piece[0], piece[0] + 1))
        at = sum(file.metadata.row_group(i).num_rows for i in range(first))
        for i in range(first, end):
            # Callers use their own threads.
            table = file.read_row_group(i, columns=names or [DIFF_COLUMN], use_threads=False)
            yield at, fit(table, schema)
            at += file.metadata.row_group(i).num_rows


def _read_file(blobs: Blobs, shard_id: str, part: Part, schema: pa.Schema) -> pa.Table:
    with _opened(blobs, shard_id, part) as file:
        present = set(file.schema_arrow.names)
        return fit(file.read([name for name in schema.names if name in present]), schema)


@contextmanager
def _opened(blobs: Blobs, shard_id: str, part: Part) -> Generator[pq.ParquetFile]:
    """The file of the part, compared with the log's description; its pages are checked when read. Arrow
    errors about damage inside the `with` are raised as `DataCorrupted`."""
    path = part_path(shard_id, part)
    try:
        with blobs.open(path, part.bytes) as source:
            size = source.size()
            if size != part.bytes:
                raise _corrupted(path, f"It has {size} bytes, the log says {part.bytes}.")
            source.seek(max(0, size - CRC_BYTES))
            tail = source.read_buffer()
            if zlib.crc32(tail) != part.crc:
                raise _corrupted(path, "Its checksum does not fit.")
            if tail.size == size:
                source = pa.BufferReader(tail)
            file = pq.ParquetFile(source, page_checksum_verification=True)
            if file.metadata.num_rows != part.rows:
                raise _corrupted(path, f"It has {file.metadata.num_rows} updates, the log says {part.rows}.")
            yield file
    except BlobMissing as error:
        raise DataCorrupted(
            f'part "{path}" is missing', hint="The data directory is damaged: restore the file."
        ) from error
    except (pa.ArrowInvalid, pa.ArrowIOError, pa.ArrowNotImplementedError) as error:
        raise _corrupted(path, str(error)) from error


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's columns in the form of `schema`; missing columns are null. Raises ArrowInvalid for another
    type."""
    present = set(table.schema.names)
    arrays: list[pa.ChunkedArray] = []
    for field in schema:
        if field.name not in present:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        array = table.column(field.name)
        if array.type != field.type:
            raise pa.ArrowInvalid(f'column "{field.name}" is {array.type}, the shard says {field.type}')
        arrays.append(array)
    return pa.table(arrays, schema=schema)


def _encode(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        write_page_checksum=True,
        store_schema=False,
        version="2.6",
    ) as writer:
        writer.write_table(table, row_group_size=group_rows(table.num_rows, table.nbytes))
    return sink.getvalue()


def _describe(path: str, table: pa.Table, data: pa.Buffer) -> Part:
    times = _numbers(table, TIME_COLUMN)
    diffs = _numbers(table, DIFF_COLUMN)
    if times.min() < 0:
        raise Internal(f"an update's time is negative ({times.min()})")
    if not diffs.all():
        raise Internal("an update's diff is zero")
    return Part(
        path=path,
        rows=table.num_rows,
        bytes=data.size,
        min_time=int(times.min()),
        max_time=int(times.max()),
        min_diff=int(diffs.min()),
        max_diff=int(diffs.max()),
        retractions=int((diffs < 0).sum()),
        errors=table.num_rows - table.column(ERROR_COLUMN).null_count,
        crc=zlib.crc32(memoryview(data)[-CRC_BYTES:]),
        memory=table.nbytes,
    )


def _numbers(table: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return table.column(name).to_numpy()


def _check_not_null(table: pa.Table) -> None:
    for name in (TIME_COLUMN, DIFF_COLUMN):
        if table.column(name).null_count:
            raise Internal(f"{name} may not be null")


def _show(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _corrupted(path: str, detail: str) -> DataCorrupted:
    return DataCorrupted(
        f'part "{path}" is corrupt', detail=detail, hint="The data directory is damaged: restore the file."
    )
