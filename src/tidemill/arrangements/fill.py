"""Building of arrangements from a collection, and catching up with it.

Memory is bounded by CHUNK_BYTES: rows are sorted in chunks, which wait as runs on disk and are merged at the
end. The collection need not be consolidated.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.arrangements.base import Base
from tidemill.arrangements.contents import Contents, DiskFull, release
from tidemill.arrangements.keys import key_hash
from tidemill.arrangements.summed import merged, sorted_batch, summed
from tidemill.persist.holds import Hold
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import Snapshot
from tidemill.query.multiset import add_up, check_counts, check_errors
from tidemill.runs.run import HashRun, cut, remove, write_run
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.kernels import pc

FP_CHUNK = failpoints.register("arrangements.chunk", "a part of the rows is sorted on disk, nobody knows it")

# Rows that are sorted at once; a few times this is in memory meanwhile.
CHUNK_BYTES = 64 << 20

# A part of a collection that takes more memory is read by row groups.
WHOLE_PART_BYTES = 16 << 20

# With more updates to catch up with, the arrangement is built again: they would all be in memory.
CATCH_UP_ROWS = 2 << 20

# Rows with `mz_diff`, and the hash of each one's key.
Rows: TypeAlias = tuple[pa.Table, np.ndarray]


@dataclass(slots=True)
class Filling:
    """How far an arrangement is built: updates of the collection that are to be read, and that were read."""

    known: int = 0
    read: int = 0


def fill(base: Base, rows: Iterable[Rows], upper: int) -> None:
    """All rows of an empty base, which is then on disk with the contents just before `upper`. Raises
    DiskFull, NegativeMultiplicity, and the errors of `rows`."""
    chunks: list[HashRun] = []
    try:
        last: pa.RecordBatch | None = None
        for table, hashes in _chunks(rows, base.schema):
            if last is not None:
                chunks.append(_chunk(base, last))
            last = summed(sorted_batch(table, hashes, base.stored))
        batches: Iterable[pa.RecordBatch] = () if last is None else cut(last)
        if chunks and last is not None:
            chunks.append(_chunk(base, last))
            del last
            batches = merged(chunks)
        try:
            base.fill(_checked(batches, base.schema), upper)
        except OSError as error:
            raise DiskFull(base.folder, error) from error
    finally:
        for chunk in chunks:
            if chunk.facts is not None:
                remove(os.path.join(base.folder, chunk.facts.name))


def _chunk(base: Base, batch: pa.RecordBatch) -> HashRun:
    try:
        os.makedirs(base.folder, exist_ok=True)
        run = write_run(base.folder, "chunk", base.stored, cut(batch), HashRun)
        failpoints.hit(FP_CHUNK)
    except OSError as error:
        raise DiskFull(base.folder, error) from error
    return HashRun([]) if run is None else run


def _chunks(rows: Iterable[Rows], schema: pa.Schema) -> Iterator[Rows]:
    held: list[Rows] = []
    size = 0
    for table, hashes in rows:
        table = pa.table([table.column(name) for name in schema.names], schema=schema)
        held.append((table, hashes))
        size += table.nbytes
        if size >= CHUNK_BYTES:
            yield _together(held)
            held, size = [], 0
    if held:
        yield _together(held)


def _together(held: Sequence[Rows]) -> Rows:
    return pa.concat_tables([table for table, _ in held]), np.concatenate([hashes for _, hashes in held])


def _checked(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if (batch.column(batch.num_columns - 1).to_numpy() < 0).any():
            rows = pa.Table.from_arrays(batch.columns[1:], schema=schema)
            check_counts(rows, schema.names[:-1])
        yield batch


def rows_of(
    snapshot: Snapshot, columns: Sequence[str], key: Sequence[str], filling: Filling | None
) -> Iterator[Rows]:
    """The collection's rows. Raises its live errors."""
    if filling is not None:
        filling.known = sum(part.rows for part in snapshot.parts)
    for table in _tables(snapshot, snapshot.parts, columns, 0, filling):
        yield table.drop_columns([TIME_COLUMN]), key_hash(table, key)


def catch_up(contents: Contents, snapshot: Snapshot, columns: Sequence[str], key: Sequence[str]) -> bool:
    """Bring the contents just behind the time of the snapshot. False if that is too much. The history from
    `contents.upper` on must be held."""
    lower = contents.upper
    parts = [part for part in snapshot.parts if part.max_time >= lower]
    if sum(part.rows for part in parts) > CATCH_UP_ROWS:
        return False
    tables = list(_tables(snapshot, parts, columns, lower, None))
    if tables:
        table = pa.concat_tables(tables)
        contents.append(table, key_hash(table, key), snapshot.as_of + 1)
    else:
        contents.pass_time(snapshot.as_of + 1)
    return True


def rewind(
    contents: Contents,
    shard: Shard,
    columns: Sequence[str],
    key: Sequence[str],
    at: int,
    holds: Sequence[Hold],
) -> bool:
    """Make the contents from `at` on known again, from the updates since then. `holds` are on the shard, just
    before `at`. False if the updates are too many; then the holds are released."""
    since = contents.since
    with shard.snapshot(since - 1, readable=since) as snapshot:
        parts = [part for part in snapshot.parts if part.max_time >= at]
        if sum(part.rows for part in parts) > CATCH_UP_ROWS:
            release(holds)
            return False
        # (An error of these times is one for those who read them, not for this.)
        tables = list(_tables(snapshot, parts, columns, at, None, errors=False))
    schema = pa.schema([*contents.schema, pa.field(TIME_COLUMN, pa.int64())])
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    return contents.rewind(at, table, key_hash(table, key), since, holds)


def _tables(
    snapshot: Snapshot,
    parts: Sequence[Part],
    columns: Sequence[str],
    lower: int,
    filling: Filling | None,
    *,
    errors: bool = True,
) -> Iterator[pa.Table]:
    """The columns, time and diff of all updates from `lower` on that are not errors. Raises live errors,
    which must have begun at `lower` or later."""
    live: list[pa.Table] = []
    for part in parts:
        for table in _pieces(snapshot, part, columns):
            if filling is not None:
                filling.read += table.num_rows
            if part.min_time < lower or part.max_time > snapshot.as_of:
                times = table.column(TIME_COLUMN).to_numpy()
                table = table.filter(pa.array((times >= lower) & (times <= snapshot.as_of)))
            wrong = table.column(ERROR_COLUMN)
            if wrong.null_count < table.num_rows:
                live.append(table.filter(pc.is_valid(wrong)).select([ERROR_COLUMN, DIFF_COLUMN]))
                table = table.filter(pc.is_null(wrong))
            if table.num_rows:
                yield table.drop_columns([ERROR_COLUMN])
    if live and errors:
        check_errors(add_up(live), snapshot)


def _pieces(snapshot: Snapshot, part: Part, columns: Sequence[str]) -> Iterator[pa.Table]:
    if part.weight <= WHOLE_PART_BYTES:
        yield snapshot.read_part(part, columns)
        return
    for _, table in snapshot.read_groups(part, [*columns, TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN]):
        yield table
