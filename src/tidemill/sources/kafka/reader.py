"""Reader of a Kafka source: the half of the source that is sent to the tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from tidemill.errors import Internal
from tidemill.sources.contract import SourceBatch, SourcePiece
from tidemill.sources.kafka.consume import Range, Wanted, read_range
from tidemill.sources.kafka.messages import RowMaker, TopicMessages
from tidemill.sources.kafka.outputs import Opened, open_outputs
from tidemill.sources.stream_rows import StreamRows

# Sources whose decoders a worker keeps open; schemas and compiled readers are some hundred kilobytes each.
MAX_OPENED = 64


@dataclass(frozen=True, slots=True)
class KafkaReader:
    """`settings` are those of the client, with secrets. `outputs` is the definition's list, as JSON text. For
    the partitions in `begun`, the definition has the start offset; others are read from their first available
    record."""

    settings: dict[str, str | int] = field(repr=False)
    topic: str
    outputs: str = field(repr=False)
    begun: frozenset[int]

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """The rows of every output, lot by lot. The records of a lot and their bytes are counted only once,
        with the first batch."""
        if not isinstance(piece.partition, int):
            raise Internal(f"a topic has no partition {piece.partition!r}")
        opened = _opened(self.topic, self.outputs)
        if not opened:
            return
        asked = [o.wanted for o in opened if isinstance(o, Opened)]
        wanted = Wanted(any(w.timestamps for w in asked), any(w.headers for w in asked))
        first = piece.lower == 0 and piece.partition not in self.begun
        of = Range(self.topic, piece.partition, piece.lower, piece.upper, from_start=first)
        for lot in read_range(self.settings, of, wanted):
            if lot.messages is None:
                first_ = opened[0]
                yield SourceBatch(0, first_.none(), 0, 0) if isinstance(first_, Opened) else first_.none()
                continue
            records, size = len(lot.messages), lot.bytes
            made: dict[RowMaker, pa.RecordBatch] = {}
            for number, output in enumerate(opened):
                for batch in _batches(number, output, lot.messages, size, made):
                    yield replace(batch, records=min(batch.records, records), bytes=min(batch.bytes, size))
                    records = size = 0


def _batches(
    number: int,
    output: Opened | StreamRows,
    messages: TopicMessages,
    size: int,
    made: dict[RowMaker, pa.RecordBatch],
) -> Iterator[SourceBatch]:
    if isinstance(output, Opened):
        rows = output.make(messages, made)
        if rows.num_rows:
            yield SourceBatch(number, rows, len(messages), size)
    else:
        values, offsets = messages.values.to_pylist(), messages.offsets.tolist()
        yield from output.make(messages.partition, offsets, values, size)


@lru_cache(maxsize=MAX_OPENED)
def _opened(topic: str, outputs: str) -> tuple[Opened | StreamRows, ...]:
    return open_outputs(topic, json.loads(outputs))
