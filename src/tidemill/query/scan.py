"""Parts as a Spark DataFrame.

Called by `read` with parts that are too large for the driver. The JVM of the pip package has no S3
filesystem. So tasks read parts on s3:// with Arrow, while Spark's own Parquet reader reads local parts,
vectorised and with column pruning. Both promise the shard's schema for the requested columns (a column that
is newer than the part is null). Both raise an error that names the part when one is missing or damaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.errors import DataCorrupted, Internal
from tidemill.query.row_filter import Hidden, alike, hide
from tidemill.query.tasks import map_in_arrow
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.names import physical_names
from tidemill.types.spark import quote_identifier, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.persist.part import Part
    from tidemill.persist.snapshot import Snapshot
    from tidemill.types.model import RelationDesc

# Rows per batch that a task passes to the JVM.
TASK_BATCH_ROWS = 65_536
_SHARD_TYPES = {TIME_COLUMN: "BIGINT", DIFF_COLUMN: "BIGINT", ERROR_COLUMN: "STRING"}


def scan(
    session: Any,
    snapshot: Snapshot,
    parts: Sequence[Part],
    columns: Sequence[str],
    hidden: Hidden | None = None,
) -> DataFrame:
    """The parts' updates, projected to `columns` (physical names, or the shard's time, diff and error),
    without those that are `hidden`."""
    if not parts:
        raise Internal("there are no parts to scan")
    ddl = scan_ddl(snapshot.desc, columns)
    hidden = Hidden() if hidden is None else hidden
    if "://" in snapshot.locate(parts[0]):
        return _scan_in_tasks(session, snapshot, parts, columns, ddl, hidden)

    def files(some: Sequence[Part]) -> DataFrame:
        paths = [(snapshot.locate(part), part) for part in some]
        for path, part in paths:
            _check_file(path, part)
        return session.read.schema(ddl).parquet(*(_uri(path) for path, _ in paths))

    whole = [part for part in parts if part.path not in hidden.places]
    frames = [files(whole)] if whole else []
    for some in alike(part for part in parts if part.path in hidden.places):
        frames.append(hide(files(some), some, hidden))
    return reduce(lambda a, b: a.union(b), frames)


def scan_ddl(desc: RelationDesc, columns: Sequence[str]) -> str:
    types = dict(zip(physical_names(desc), map(spark_type, desc.types), strict=True)) | _SHARD_TYPES
    return ", ".join(f"{quote_identifier(name)} {types[name]}" for name in columns)


def _check_file(path: str, part: Part) -> None:
    """Check early what Spark would report late and verbosely. Damage inside a part is found by its checksums
    when it is read."""
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        raise DataCorrupted(
            f'part "{path}" is missing', hint="The data directory is damaged: restore the file."
        ) from None
    except OSError as e:
        raise DataCorrupted(f'part "{path}" cannot be read', detail=e.strerror) from e
    if size != part.bytes:
        raise DataCorrupted(
            f'part "{path}" is corrupt',
            detail=f"It has {size} bytes, the log says {part.bytes}.",
            hint="The data directory is damaged: restore the file.",
        )


def _uri(path: str) -> str:
    """A local path for Spark, which would take glob signs in a bare one (a data directory may be called
    `a[1]`) for a pattern."""
    escaped = "".join("\\" + ch if ch in "{}[]*?\\" else ch for ch in path)
    return "file://" + escaped


def _scan_in_tasks(
    session: Any,
    snapshot: Snapshot,
    parts: Sequence[Part],
    columns: Sequence[str],
    ddl: str,
    hidden: Hidden,
) -> DataFrame:
    # The store travels to the tasks with its settings; it is made to be pickled.
    reader = snapshot._reader  # pyright: ignore[reportPrivateUsage]
    blobs, shard_id, desc = reader.blobs, reader.shard_id, snapshot.desc
    listed = list(parts)
    wanted = list(columns)
    gone = hidden.places

    def read(indexes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tidemill.persist.part import read_part

        schema = shard_schema(desc)
        target = pa.schema([schema.field(name).with_nullable(True) for name in wanted])
        own = [name for name in wanted if name not in _SHARD_TYPES]
        for batch in indexes:
            for index in batch.column(0).to_pylist():
                part = listed[index]
                table = read_part(blobs, shard_id, part, desc, own).select(wanted).cast(target)
                if part.path in gone:
                    stays = np.ones(part.rows, np.bool_)
                    stays[gone[part.path]] = False
                    table = table.filter(pa.array(stays))
                yield from table.to_batches(max_chunksize=TASK_BATCH_ROWS)

    # One task per part: parts are of some tens of megabytes by compaction.
    indexes = session.range(0, len(listed), 1, len(listed))
    return map_in_arrow(indexes, read, ddl)
