"""A small sound source of two partitions, and the same source broken in one named way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.sources.contract import (
    MAX_BATCH_ROWS,
    OFFSET_COLUMN,
    TOMBSTONE_COLUMN,
    Gauge,
    OutputDefinition,
    ReadLimits,
    SourceBatch,
    SourcePiece,
    SourceReader,
    UpstreamSource,
)
from tidemill.sources.offsets import Offsets
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

RECORDS = {"a": 60, "b": 25}
GAUGE = Gauge(Column("offset", INT8, nullable=False), Column("partition", TEXT, nullable=False))
DESC = RelationDesc((Column("n", INT8, nullable=False),))
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field(OFFSET_COLUMN, pa.int64(), nullable=False),
        pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False),
    ]
)

_reads = 0


@dataclass(frozen=True)
class PlantedReader:
    bug: str
    # More than a reader should carry, where that is the bug.
    luggage: bytes = b""

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        global _reads
        _reads += 1
        lower, upper = piece.lower, piece.upper
        if self.bug == "drops the last of two":
            upper = max(lower + 1, upper - 1)
        if self.bug == "begins one too early":
            lower = max(0, lower - 1)
        batches = self._batches(lower, upper, piece.records)
        # Everything at once, or one after the other.
        yield from list(batches) if self.bug == "collects" else batches

    def _batches(self, lower: int, upper: int, records: int) -> Iterator[SourceBatch]:
        size = MAX_BATCH_ROWS if self.bug != "large batches" else upper - lower
        for first in range(lower, upper, size):
            end = min(upper, first + size)
            rows = self._rows(np.arange(first, end, dtype=np.int64), lower)
            yield SourceBatch(
                0, rows, records if self.bug == "counts twice" else end - first, 8 * (end - first)
            )
            if self.bug == "empty batches":
                yield SourceBatch(0, rows.slice(0, 0), 0, 0)
            if self.bug == "counts twice":
                yield SourceBatch(0, rows, records, 0)

    def _rows(self, offsets: np.ndarray, lower: int) -> pa.RecordBatch:
        values = offsets * 10
        if self.bug == "counts from the piece":
            values = values - lower
        if self.bug == "remembers":
            values = values + _reads
        if self.bug == "hashes text":
            values = values + hash("text") % 1000
        columns: list[pa.Array] = [pa.array(values), pa.array(offsets), pa.array(offsets % 7 == 6)]
        schema = SCHEMA
        if self.bug == "another type":
            schema = SCHEMA.set(0, pa.field("n", pa.int32(), nullable=False))
            columns[0] = pa.array(values.astype(np.int32))
        if self.bug == "no tombstones":
            columns, schema = columns[:2], schema.remove(2)
        if self.bug == "nulls":
            columns[0] = pa.array(values, mask=offsets % 3 == 0)
        if self.bug == "out of order":
            columns[1] = pa.array(offsets[::-1].copy())
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class PlantedSource(UpstreamSource):
    gauge = GAUGE

    def __init__(self, bug: str = "", records: dict[str, int] | None = None) -> None:
        self.outputs = (
            OutputDefinition("numbers", DESC, ("m",) if bug == "a key that is no column" else ("n",)),
        )
        self._bug = bug
        self._records = records or RECORDS

    def frontier(self, now: int) -> Offsets:
        share = 3 - now if self._bug == "goes back" else now
        return Offsets({p: n * share // 3 for p, n in self._records.items()})

    def reader(self) -> SourceReader:
        return PlantedReader(self._bug, bytes(100_000) if self._bug == "heavy" else b"")

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        pieces = super().split(lower, upper, ways)
        if self._bug == "splits with a gap" and len(pieces) > 1:
            return pieces[1:]
        if self._bug == "splits one by one":
            return [SourcePiece(p.partition, n, n + 1) for p in pieces for n in range(p.lower, p.upper)]
        return pieces

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        cut = super().cut(lower, upper, limits)
        if self._bug == "stands still" and cut != upper:
            return lower
        return upper if self._bug == "ignores limits" else cut
