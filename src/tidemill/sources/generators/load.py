"""Common part of all generators: events that fall due by the clock, and the source that counts them.

A generator consists of a `GeneratorKind` (its options and how it is opened), a reader that creates the rows
of a range of event numbers, and a `GeneratorSource` that combines both. Used by the generators and by
`sources.definition`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.sources.contract import (
    EVENTS,
    MAX_BATCH_ROWS,
    OFFSET_COLUMN,
    TOMBSTONE_COLUMN,
    OutputDefinition,
    ReadLimits,
    SourcePiece,
    SourceReader,
    UpstreamSource,
)
from tidemill.sources.generators.options import MAX_EVENTS, GeneratorOption
from tidemill.sources.offsets import Offsets
from tidemill.types import wide
from tidemill.types.arrow import DIFF_COLUMN, storage_schema

# What one binding may cover, where the rows are so large that the limit on records does not bound it: what a
# tick's job can write in about a second.
MAX_BINDING_BYTES = 256 * 2**20
# Limit of a batch with large rows.
MAX_BATCH_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class EventPace:
    """When events fall due: `at_once` of them at `started` (milliseconds), then `batch` more each time that
    another `interval` (microseconds) is over; `up_to` in all."""

    started: int
    interval: int
    batch: int = 1
    at_once: int = 0
    up_to: int | None = None

    def due(self, now: int) -> int:
        """How many events are due at `now` (milliseconds)."""
        if now < self.started:
            return 0
        ticks = (now - self.started) * 1000 // self.interval
        last = MAX_EVENTS if self.up_to is None else self.up_to
        return min(self.at_once + ticks * self.batch, last)


class GeneratorSource(UpstreamSource):
    """A generator as a source. `row_bytes` is about what an event takes at most."""

    gauge = EVENTS

    def __init__(
        self, pace: EventPace, outputs: tuple[OutputDefinition, ...], reader: SourceReader, row_bytes: int
    ) -> None:
        self.outputs = outputs
        self._pace = pace
        self._reader = reader
        self._row_bytes = row_bytes

    def frontier(self, now: int) -> Offsets:
        return Offsets.at(self._pace.due(now))

    def reader(self) -> SourceReader:
        return self._reader

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        records = min(limits.records, max(1, MAX_BINDING_BYTES // self._row_bytes))
        return super().cut(lower, upper, replace(limits, records=records))


@dataclass(frozen=True, slots=True)
class GeneratorKind:
    """A generator as statements know it. `open` takes the fields of the definition, `started` among them,
    and raises InvalidValue where options contradict each other."""

    name: str
    options: tuple[GeneratorOption, ...]
    open: Callable[[Mapping[str, Any]], GeneratorSource]


def windows(piece: SourcePiece, rows_per_event: int = 1, row_bytes: int = 1) -> Iterator[tuple[int, int]]:
    """The piece as ranges of events that each fit into a batch."""
    if piece.partition is not None or not 0 <= piece.lower <= piece.upper <= MAX_EVENTS:
        raise Internal(f"a generator has no events {piece}")
    events = max(1, min(MAX_BATCH_ROWS // rows_per_event, MAX_BATCH_BYTES // row_bytes))
    for first in range(piece.lower, piece.upper, events):
        yield first, min(first + events, piece.upper)


def batch_schema(output: OutputDefinition, *, diffs: bool = False) -> pa.Schema:
    """The columns of a batch: those of the output, then those that the contract adds."""
    schema = storage_schema(output.desc)
    if output.key is not None:
        schema = schema.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
        schema = schema.append(pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False))
    if diffs:
        schema = schema.append(pa.field(DIFF_COLUMN, pa.int64(), nullable=False))
    return schema


def uint8_column(values: np.ndarray) -> pa.Array:
    """Numbers (uint64) in the storage form of SQL's uint8."""
    return wide.decimals(values, np.zeros(len(values), np.int64), None, pa.decimal128(20, 0))
