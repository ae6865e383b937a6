"""What every source must pass: the obligations of `sources.contract`, one check each.

A test module makes a `Subject` (how to open the source, and times at which to look at it) and runs every
check of `CHECKS` on it. Checks know nothing of the kind of source, but that what lies below the frontier of
`Subject.looks` is small enough to be read many times over. `test_sources_planted.py` breaks a source in each
of these ways, and sees it caught.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tidemill.sources.contract import (
    MAX_BATCH_ROWS,
    OFFSET_COLUMN,
    STREAM_TIME_COLUMN,
    TOMBSTONE_COLUMN,
    TRUNCATE_COLUMN,
    UNAVAILABLE_COLUMN,
    OutputDefinition,
    ReadLimits,
    SourceBatch,
    SourcePiece,
    SourceReader,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, hidden_fields, storage_schema
from tidemill.types.kernels import pc

# What may stand behind a relation's columns, in this order, and which of it not in every batch.
BEHIND = {
    STREAM_TIME_COLUMN: pa.field(STREAM_TIME_COLUMN, pa.int64(), nullable=False),
    DIFF_COLUMN: pa.field(DIFF_COLUMN, pa.int64(), nullable=False),
    ERROR_COLUMN: pa.field(ERROR_COLUMN, pa.string()),
    OFFSET_COLUMN: pa.field(OFFSET_COLUMN, pa.int64(), nullable=False),
    TOMBSTONE_COLUMN: pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False),
    UNAVAILABLE_COLUMN: pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.field("element", pa.int32()))),
    TRUNCATE_COLUMN: pa.field(TRUNCATE_COLUMN, pa.bool_(), nullable=False),
}
SOMETIMES = {ERROR_COLUMN, UNAVAILABLE_COLUMN, TRUNCATE_COLUMN}

# A reader travels with every unit of work, every tick.
MAX_READER_BYTES = 64 * 1024
# A frontier is told at once; so much is for the machine.
STILL_SECONDS = 60
# A batch, what it is made from, and some more, whatever the range.
MAX_READING_BYTES = 64 * 2**20

EXAMPLES = 25
_SETTINGS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
)


@dataclass(frozen=True)
class Subject:
    """A source to be held to the contract. `looks` are times, rising, at which its frontier is asked for;
    what is below the last one is read over and over. `large` is a range of as many records as can be had
    cheaply, for the check of memory; None is all that is below the frontier. A `remote` one may be silent for
    a while, and tells so by batches of no rows. Positions of a `sparse` one do not count its records. A
    `whole` one binds a partition at once. Rows of an `unordered` one are the same when they are added up,
    however they were read. `examples` are as many as its speed allows."""

    name: str
    open: Callable[[], UpstreamSource]
    looks: tuple[int, ...]
    large: SourcePiece | None = None
    remote: bool = False
    sparse: bool = False
    whole: bool = False
    unordered: bool = False
    examples: int = EXAMPLES

    @property
    def settings(self) -> settings:
        return settings(_SETTINGS, max_examples=self.examples)


# By output and partition: the rows, in order.
Rows = dict[tuple[int, PartitionKey], pa.Table]


def rows_of(
    subject: Subject,
    source: UpstreamSource,
    pieces: Sequence[SourcePiece],
    reader: SourceReader | None = None,
) -> Rows:
    """What the pieces give, those of a partition one after the other as they stand in the list."""
    found: dict[tuple[int, PartitionKey], list[pa.RecordBatch]] = {}
    for piece in pieces:
        for batch in (reader or source.reader()).read(piece):
            if batch.rows.num_rows:
                found.setdefault((batch.output, piece.partition), []).append(batch.rows)
    return compared(subject, found)


def compared(subject: Subject, found: Mapping[tuple[int, PartitionKey], list[pa.RecordBatch]]) -> Rows:
    """The rows in the form in which those of two reads must be equal."""
    tables = {place: one_table(batches) for place, batches in found.items()}
    if not subject.unordered:
        return tables
    added = {place: added_up(table) for place, table in tables.items()}
    return {place: table for place, table in added.items() if table.num_rows}


def one_table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """A column that a batch need not have is there if it has a value."""
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    empty = [n for n in SOMETIMES & set(table.column_names) if table.column(n).null_count == table.num_rows]
    return table.drop_columns(empty)


def added_up(table: pa.Table) -> pa.Table:
    """Each row once, with its count, in an order of its own; without those that are not there."""
    names = [name for name in table.column_names if name != DIFF_COLUMN]
    counted = table.group_by(names, use_threads=False).aggregate([(DIFF_COLUMN, "sum")])
    counted = counted.filter(pc.not_equal(counted.column(f"{DIFF_COLUMN}_sum"), 0))
    return counted.sort_by([(name, "ascending") for name in names])


def whole(lower: Offsets, upper: Offsets) -> list[SourcePiece]:
    """The range as one piece per partition."""
    return [SourcePiece(p, lower[p], lower[p] + n) for p, n in upper.increments(lower).items()]


def between(data: st.DataObject, lower: Offsets, upper: Offsets) -> Offsets:
    """Any frontier between the two."""
    return lower.plus({p: data.draw(st.integers(0, n)) for p, n in upper.increments(lower).items()})


def opened(subject: Subject) -> tuple[UpstreamSource, Offsets]:
    """The source and its last frontier, which must leave something to read."""
    source = subject.open()
    upper = source.frontier(subject.looks[-1])
    assert upper.records_since(source.start) > 0, f"{subject.name} has nothing to read"
    return source, upper


def frontier_only_advances(subject: Subject) -> None:
    source = subject.open()
    last = source.start
    for now in subject.looks:
        began = time.monotonic()
        frontier = source.frontier(now)
        assert time.monotonic() - began < STILL_SECONDS
        assert last <= frontier, f"the frontier went back from {last} to {frontier}"
        assert frontier <= source.frontier(now)
        last = frontier
    again = subject.open().frontier(subject.looks[-1])
    assert last <= again, "opened again, the source stands behind where it stood"


def description_is_of_the_definition(subject: Subject) -> None:
    one, other = subject.open(), subject.open()
    assert one.outputs == other.outputs and one.gauge == other.gauge and one.start == other.start
    names = [output.name for output in one.outputs]
    assert names and len(set(names)) == len(names)
    for output in one.outputs:
        columns = [*output.desc.names, *(column.name for column in output.desc.hidden)]
        assert len(set(columns)) == len(columns)
        assert output.key is None or (output.key and set(output.key) <= set(columns))
        assert set(output.order) <= set(columns)


def any_cut_gives_the_same_rows(subject: Subject) -> None:
    source, upper = opened(subject)
    reader = source.reader()
    at_once = rows_of(subject, source, whole(source.start, upper), reader)

    @subject.settings
    @given(st.data())
    def run(data: st.DataObject) -> None:
        frontiers = [source.start]
        for _ in range(data.draw(st.integers(0, 4))):
            frontiers.append(between(data, frontiers[-1], upper))
        frontiers.append(upper)
        pieces = [p for a, b in itertools.pairwise(frontiers) for p in whole(a, b)]
        assert rows_of(subject, source, pieces, reader) == at_once

    run()


def any_piece_can_be_read_again(subject: Subject) -> None:
    """In any order, by another reader, by another source that was opened later."""
    source, upper = opened(subject)
    first = source.reader()

    @subject.settings
    @given(st.data())
    def run(data: st.DataObject) -> None:
        a = between(data, source.start, upper)
        b = between(data, a, upper)
        wanted = rows_of(subject, source, whole(a, b), first)
        rows_of(subject, source, whole(source.start, a), first)
        assert rows_of(subject, source, whole(a, b), first) == wanted
        assert rows_of(subject, source, whole(a, b)) == wanted
        fresh = subject.open()
        assert rows_of(subject, fresh, whole(a, b)) == wanted
        fresh.close()

    run()


def an_abandoned_read_leaves_no_trace(subject: Subject) -> None:
    source, upper = opened(subject)
    pieces = whole(source.start, upper)
    wanted = rows_of(subject, source, pieces)
    reader = source.reader()
    for piece in pieces:
        next(iter(reader.read(piece)))
    assert rows_of(subject, source, pieces, reader) == wanted


def reader_travels(subject: Subject) -> None:
    """Pickled, and read from by a process that has opened nothing."""
    source, upper = opened(subject)
    pieces = source.split(source.start, upper, 3)
    packed = pickle.dumps(source.reader())
    assert len(packed) <= MAX_READER_BYTES
    wanted = rows_of(subject, source, pieces)
    assert rows_of(subject, source, pieces, pickle.loads(packed)) == wanted
    # Another hash of text shows who relies on it.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "4711"}
    there = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE],
        input=pickle.dumps((packed, pieces)),
        capture_output=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert there.returncode == 0, there.stderr.decode()
    found: dict[tuple[int, PartitionKey], list[pa.RecordBatch]] = pickle.loads(there.stdout)
    assert compared(subject, found) == wanted


_ELSEWHERE = """
import pickle, sys
packed, pieces = pickle.load(sys.stdin.buffer)
reader = pickle.loads(packed)
found = {}
for piece in pieces:
    for batch in reader.read(piece):
        if batch.rows.num_rows:
            found.setdefault((batch.output, piece.partition), []).append(batch.rows)
sys.stdout.buffer.write(pickle.dumps(found))
"""


def split_covers_exactly(subject: Subject) -> None:
    source, upper = opened(subject)
    assert source.split(upper, upper, 4) == []

    @subject.settings
    @given(st.data(), st.integers(1, 40))
    def run(data: st.DataObject, ways: int) -> None:
        a = between(data, source.start, upper)
        b = between(data, a, upper)
        pieces = source.split(a, b, ways)
        assert all(piece.records > 0 for piece in pieces)
        increments = b.increments(a)
        # Partitions cannot be joined: as many tasks as there are, and about as many as were asked for.
        assert len(pieces) <= max(len(increments) + ways, 2 * ways)
        reached = a.as_dict()
        for piece in pieces:
            assert piece.lower == reached.get(piece.partition, 0), "a gap, an overlap, or not in order"
            reached[piece.partition] = piece.upper
        assert Offsets(reached) == b

    run()


def cut_respects_limits_and_progresses(subject: Subject) -> None:
    source, upper = opened(subject)

    @subject.settings
    @given(st.data(), st.integers(1, 2 * upper.records_since(source.start)))
    def run(data: st.DataObject, records: int) -> None:
        at = between(data, source.start, upper)
        limits = ReadLimits(records=records)
        assert source.cut(upper, upper, limits) == upper
        for _ in range(3):
            if at == upper:
                break
            cut = source.cut(at, upper, limits)
            assert at <= cut <= upper
            assert cut != at, "no progress"
            # At least one record of each partition that moves.
            if subject.whole:
                assert all(cut[p] == upper[p] for p in cut.increments(at))
            elif not subject.sparse:
                assert cut.records_since(at) <= max(records, len(upper.increments(at)))
            at = cut

    run()


def batches_are_as_the_contract_says(subject: Subject) -> None:
    source, upper = opened(subject)
    schemas: dict[int, list[str]] = {}
    for piece in whole(source.start, upper):
        records = 0
        last: dict[int, int] = {}
        for batch in source.reader().read(piece):
            output = source.outputs[batch.output]
            if batch.stated and not batch.rows.num_rows:
                assert output.stream is not None
                records += batch.records
                continue
            if subject.remote and batch.rows.num_rows == 0:
                assert batch.records == batch.bytes == 0
                continue
            check_batch(batch, output, piece)
            # With or without diffs, but not both.
            always = [name for name in batch.rows.schema.names if name not in SOMETIMES]
            assert schemas.setdefault(batch.output, always) == always
            records += batch.records
            if output.key is not None:
                offsets = [last.get(batch.output, piece.lower - 1), *column(batch, OFFSET_COLUMN)]
                assert all(a < b for a, b in itertools.pairwise(offsets)), "records out of order"
                assert subject.sparse or offsets[-1] < piece.upper
                last[batch.output] = offsets[-1]
        # Numbers may be missing upstream; none is counted twice.
        assert subject.sparse or records <= piece.records


def column(batch: SourceBatch, name: str) -> list[int]:
    return batch.rows.column(name).to_pylist()


def check_batch(batch: SourceBatch, output: OutputDefinition, piece: SourcePiece) -> None:
    assert 0 < batch.rows.num_rows <= MAX_BATCH_ROWS
    assert batch.records >= 0
    assert batch.bytes >= 0
    batch.rows.validate(full=True)
    schema = storage_schema(output.desc)
    if output.desc.hidden:
        schema = schema.append(pa.field(ERROR_COLUMN, pa.string()))
        schema = pa.schema([*schema, *hidden_fields(output.desc)])
    given = batch.rows.schema.names[len(schema) :]
    behind = {name: field for name, field in BEHIND.items() if name in given}
    required = [] if output.key is None else [OFFSET_COLUMN, TOMBSTONE_COLUMN]
    if output.stream is not None:
        required = [STREAM_TIME_COLUMN, DIFF_COLUMN, OFFSET_COLUMN]
    allowed = [DIFF_COLUMN, ERROR_COLUMN] if output.key is None else [UNAVAILABLE_COLUMN, TRUNCATE_COLUMN]
    assert given == [name for name in behind if name in required or name in allowed]
    assert set(required) <= set(given)
    schema = pa.schema([*schema, *behind.values()])
    assert batch.rows.schema.names == schema.names and batch.rows.schema.types == schema.types
    if DIFF_COLUMN in given and output.stream is None:
        assert 0 not in column(batch, DIFF_COLUMN)
    rows = pa.Table.from_batches([batch.rows])
    # An error has no values, and nobody looks at those of a deletion.
    if ERROR_COLUMN in rows.column_names:
        rows = rows.filter(pc.is_null(rows.column(ERROR_COLUMN)))
    if TOMBSTONE_COLUMN in rows.column_names:
        rows = rows.filter(pc.invert(rows.column(TOMBSTONE_COLUMN)))
    for field, values in zip(schema, rows.columns, strict=True):
        assert field.nullable or values.null_count == 0, f"{field.name} is NOT NULL"
    for field, values in zip(batch.rows.schema, batch.rows.columns, strict=True):
        assert field.nullable or values.null_count == 0, f"{field.name} is said to have no nulls"


def memory_is_bounded_by_a_batch(subject: Subject) -> None:
    source, upper = opened(subject)
    pieces = whole(source.start, upper) if subject.large is None else [subject.large]
    arrow_before = pa.total_allocated_bytes()
    arrow_most = 0
    tracemalloc.start()
    try:
        for piece in pieces:
            for _ in source.reader().read(piece):
                arrow_most = max(arrow_most, pa.total_allocated_bytes() - arrow_before)
        most = tracemalloc.get_traced_memory()[1] + arrow_most
    finally:
        tracemalloc.stop()
    assert most <= MAX_READING_BYTES, f"reading took {most >> 20} MB"


CHECKS: tuple[Callable[[Subject], None], ...] = (
    frontier_only_advances,
    description_is_of_the_definition,
    any_cut_gives_the_same_rows,
    any_piece_can_be_read_again,
    an_abandoned_read_leaves_no_trace,
    reader_travels,
    split_covers_exactly,
    cut_respects_limits_and_progresses,
    batches_are_as_the_contract_says,
    memory_is_bounded_by_a_batch,
)
