"""KEY VALUE generator: a fixed number of keys, with values of a fixed size, as upserts.

The first SNAPSHOT ROUNDS x KEYS events are due at once and go through the keys in order; every later event
takes a random key. It exercises the upsert state: number of keys, value size, rate of change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.sources.contract import OutputDefinition, SourceBatch, SourcePiece
from tidemill.sources.generators.draws import below, draws, stream
from tidemill.sources.generators.load import (
    EventPace,
    GeneratorKind,
    GeneratorSource,
    batch_schema,
    uint8_column,
    windows,
)
from tidemill.sources.generators.options import (
    MAX_EVENTS,
    PARTS_PER_PERCENT,
    SEED,
    UP_TO,
    GeneratorOption,
    OptionKind,
    envelope,
    invalid,
    tick_interval,
)
from tidemill.types.model import BYTEA, UINT8, Column, RelationDesc

# A value's most bytes: a batch of one row is then still small.
MAX_VALUE_SIZE = 2**20
# Events of one tick: more would be due within a microsecond than a server writes in a minute.
MAX_BATCH_SIZE = 100_000_000

# The streams that are drawn from; a value takes as many draws as it has words of eight bytes.
_KEY, _VALUE, _TOMBSTONE = 1, 2, 3

_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class KeyValueReader:
    """`snapshot` is the number of events that go through the keys in order. `tombstones` are parts per
    million of the events after them; only with `upsert`."""

    seed: int
    keys: int
    value_size: int
    snapshot: int = 0
    partitions: int | None = None
    upsert: bool = True
    tombstones: int = 0

    @property
    def output(self) -> OutputDefinition:
        columns = [Column("key", UINT8, nullable=False), Column("value", BYTEA, nullable=False)]
        if self.partitions is not None:
            columns.insert(0, Column("partition", UINT8, nullable=False))
        return OutputDefinition("key_value", RelationDesc(tuple(columns)), ("key",) if self.upsert else None)

    @property
    def row_bytes(self) -> int:
        return _KEY_BYTES + self.value_size

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        schema = batch_schema(self.output)
        for first, end in windows(piece, row_bytes=self.row_bytes):
            rows = pa.RecordBatch.from_arrays(self._columns(first, end), schema=schema)
            yield SourceBatch(0, rows, end - first, (end - first) * self.row_bytes)

    def _columns(self, first: int, end: int) -> list[pa.Array]:
        events = np.arange(first, end, dtype=np.uint64)
        keys = self._keys(events)
        deleted = self._deleted(events)
        columns = [uint8_column(keys), self._values(first, end, deleted)]
        if self.partitions is not None:
            columns.insert(0, uint8_column(below(keys, self.partitions)))
        if self.upsert:
            columns += [pa.array(events.view(np.int64)), pa.array(deleted)]
        return columns

    def _keys(self, events: np.ndarray) -> np.ndarray:
        keys = below(draws(stream(self.seed, _KEY), events), self.keys)
        in_order = min(max(self.snapshot - int(events[0]), 0), len(events))
        keys[:in_order] = below(events[:in_order], self.keys)
        return keys

    def _deleted(self, events: np.ndarray) -> np.ndarray:
        if not self.tombstones:
            return np.zeros(len(events), np.bool_)
        parts = below(draws(stream(self.seed, _TOMBSTONE), events), 100 * PARTS_PER_PERCENT)
        return (parts < np.uint64(self.tombstones)) & (events >= np.uint64(self.snapshot))

    def _values(self, first: int, end: int, deleted: np.ndarray) -> pa.Array:
        """The words of all values are one stretch of a stream. A tombstone has the empty value: the column is
        NOT NULL, and the value is not read."""
        words = -(-self.value_size // 8)
        numbers = np.arange((end - first) * words, dtype=np.uint64)
        numbers += np.uint64(first * words % 2**64)
        drawn = draws(stream(self.seed, _VALUE), numbers).astype("<u8", copy=False)
        matrix = drawn.view(np.uint8).reshape(end - first, words * 8)[:, : self.value_size]
        lengths = np.full(end - first, self.value_size, np.int32)
        if self.tombstones:
            matrix = matrix[~deleted]
            lengths[deleted] = 0
        offsets = np.zeros(end - first + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        data = pa.py_buffer(np.ascontiguousarray(matrix))
        return pa.Array.from_buffers(pa.binary(), end - first, [None, pa.py_buffer(offsets), data])


def _open(values: Mapping[str, Any]) -> GeneratorSource:
    upsert = values["envelope"] == "UPSERT"
    if values["tombstones"] and not upsert:
        raise invalid(
            "option TOMBSTONES needs ENVELOPE UPSERT",
            detail="Without it there are no keys, and nothing that a record could delete.",
        )
    snapshot: int = values["snapshot_rounds"] * values["keys"]
    if snapshot > MAX_EVENTS:
        raise invalid(
            f"KEYS times SNAPSHOT ROUNDS must be at most {MAX_EVENTS}", detail=f"They are {snapshot}."
        )
    pace = EventPace(
        values["started"],
        values["tick_interval"],
        batch=values["batch_size"],
        at_once=snapshot,
        up_to=values.get("up_to"),
    )
    reader = KeyValueReader(
        seed=values["seed"],
        keys=values["keys"],
        value_size=values["value_size"],
        snapshot=snapshot,
        partitions=values.get("partitions"),
        upsert=upsert,
        tombstones=values["tombstones"],
    )
    return GeneratorSource(pace, (reader.output,), reader, reader.row_bytes)


KEY_VALUE = GeneratorKind(
    "KEY VALUE",
    (
        GeneratorOption("KEYS", OptionKind.INTEGER, required=True, least=1),
        GeneratorOption("VALUE SIZE", OptionKind.INTEGER, 16, most=MAX_VALUE_SIZE),
        tick_interval(1_000_000),
        GeneratorOption("BATCH SIZE", OptionKind.INTEGER, 1, least=1, most=MAX_BATCH_SIZE),
        GeneratorOption("SNAPSHOT ROUNDS", OptionKind.INTEGER, 0),
        GeneratorOption("PARTITIONS", OptionKind.INTEGER, least=1),
        GeneratorOption("TOMBSTONES", OptionKind.PERCENT, 0),
        UP_TO,
        SEED,
        envelope("UPSERT", "NONE"),
    ),
    _open,
)
