"""The half of a PostgreSQL source that tasks run: ranges of transactions from the spool, and the snapshot.

Positions below `base` are the snapshot's. A snapshot has numbered ranges of tables: position n stands for
range n, and the last positions for nothing. If the snapshot is later than `base` (the first one was lost in a
crash, or a table was added), position `base - 1` stands for the changes between the two, taken back: the rows
of the later snapshot with them are exactly the rows at `base`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemill.sources.contract import SourceBatch, SourcePiece
from tidemill.sources.postgres.definition import ReplicatedTable
from tidemill.sources.postgres.failures import NotYet
from tidemill.sources.postgres.lsn import lsn_text
from tidemill.sources.postgres.row_changes import ChangeDecoder, error_row
from tidemill.sources.postgres.segment import read_chunks, read_relations, read_state
from tidemill.sources.postgres.snapshot import SnapshotPlan
from tidemill.sources.postgres.snapshot_progress import note_range
from tidemill.sources.postgres.values import batch_schema

# A range is given to tasks when it has been received. Only the changes that a snapshot takes back may still
# be under way.
WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SpooledPiece(SourcePiece):
    """The messages with the numbers [first, last) of the range [whole[0], whole[1]), of which the piece is a
    share."""

    whole: tuple[int, int] = (0, 0)
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """How the tables were at `lsn`. Those that cannot be read any more have a text in `faults`, by output."""

    plan: SnapshotPlan
    lsn: int
    faults: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class PostgresReader:
    """`tables` are all outputs; only those of `wanted` are read. `snapshot` is None if no range begins below
    `base`."""

    options: Mapping[str, Any]
    tables: tuple[ReplicatedTable, ...]
    wanted: frozenset[int]
    folder: str
    base: int
    snapshot: ReadSnapshot | None

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        if isinstance(piece, SpooledPiece):
            yield from self._stream(*piece.whole, numbers=(piece.first, piece.last))
            return
        if piece.lower < self.base:
            yield from self._snapshot(piece.lower, min(piece.upper, self.base))
        if piece.upper > self.base:
            yield from self._stream(max(piece.lower, self.base), piece.upper)

    def _snapshot(self, lower: int, upper: int) -> Iterator[SourceBatch]:
        snapshot = self.snapshot
        if snapshot is None:
            raise NotYet("the snapshot of PostgreSQL is not there")
        if lower == 0:
            for output, text in snapshot.faults.items():
                yield SourceBatch(output, error_row(self.tables[output], text), 1, 0)
        first, last = lower, min(upper, snapshot.plan.count)
        if first < last:
            done = partial(note_range, self.folder, snapshot.plan)
            yield from snapshot.plan.read(self.options, self.tables, first, last, done)
        if upper == self.base and snapshot.lsn > self.base:
            yield from self._stream(self.base, snapshot.lsn, sign=-1)

    def _stream(
        self, lower: int, upper: int, *, numbers: tuple[int, int] | None = None, sign: int = 1
    ) -> Iterator[SourceBatch]:
        folder = Path(self.folder)
        for _ in self._waited(folder, upper):
            yield self._nothing()
        # Nothing is known of tables that a snapshot could not read.
        faulty = () if sign > 0 or self.snapshot is None else self.snapshot.faults
        tables = {n: t for n, t in enumerate(self.tables) if n in self.wanted and n not in faulty}
        decoder = ChangeDecoder(tables, read_relations(folder), sign)
        for chunk in read_chunks(folder, lower, upper, numbers):
            yield from decoder.batches(chunk)

    def _waited(self, folder: Path, upper: int) -> Iterator[None]:
        deadline = time.monotonic() + WAIT_SECONDS
        while (state := read_state(folder)) is None or state[1] < upper:
            if time.monotonic() > deadline:
                raise NotYet(
                    "transactions are not received yet",
                    detail=f"Those up to {lsn_text(upper)} are needed.",
                )
            time.sleep(_POLL_SECONDS)
            yield None

    def _nothing(self) -> SourceBatch:
        index = min(self.wanted, default=0)
        schema = batch_schema(self.tables[index])
        empty = [pa.array([], field.type) for field in schema]
        return SourceBatch(index, pa.RecordBatch.from_arrays(empty, schema=schema), 0, 0)
