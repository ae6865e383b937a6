"""CDCv2 stream decoder: turns messages into batches of updates, and the statements of their records.

Called by readers in the tasks, for every transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.columns import UpdateColumns
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.problems import InvalidMessage
from tidemill.decode.stream import StreamDecoder, open_stream_decoder, stream_shape
from tidemill.sources.contract import (
    MAX_BATCH_ROWS,
    OFFSET_COLUMN,
    STREAM_TIME_COLUMN,
    OutputDefinition,
    SourceBatch,
    Stated,
    StreamSpec,
)
from tidemill.sources.offsets import PartitionKey
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import RelationDesc

# Before what cannot be decoded, as for every other envelope.
DECODE_ERROR = "Decode error: "


def stream_output(spec: Mapping[str, Any], words: tuple[str, str]) -> OutputDefinition:
    """The output of a definition with ENVELOPE MATERIALIZE (`name`, `value`); `words` describe the position
    of a record (`StreamSpec`). Raises for an invalid one."""
    shape = stream_shape(spec["value"])
    stream = StreamSpec(shape.kind, shape.digests, words)
    return OutputDefinition(spec["name"], RelationDesc(shape.columns), stream=stream)


class StreamRows:
    """Makes the batches of one output. `writer` is the schema that messages without a number of one were
    written with (Avro; None: the definition's)."""

    def __init__(
        self, output: int, spec: Mapping[str, Any], words: tuple[str, str], writer: str | None = None
    ) -> None:
        self._output = output
        self._stream = StreamSpec(words=words)
        self._decoder: StreamDecoder = open_stream_decoder(spec["value"], writer)

    def none(self) -> SourceBatch:
        return SourceBatch(self._output, self._rows([], []), 0, 0)

    def make(
        self, partition: PartitionKey, offsets: Sequence[int], messages: Sequence[bytes | None], size: int
    ) -> Iterator[SourceBatch]:
        """The statements of the records whose values are the messages. The records and their `size` are
        counted with the first batch."""
        origins = _told_apart([self._stream.place(partition, offset) for offset in offsets])
        there = [i for i, message in enumerate(messages) if message is not None]
        said = self._decoder.decode([messages[i] or b"" for i in there], [origins[i] for i in there])
        found = dict(zip(there, said, strict=True))
        stated: list[Stated] = []
        updates: list[UpdateColumns] = []
        from_: list[int] = []
        for i, offset in enumerate(offsets):
            one = found.get(i)
            # (Updates may be none, and are then false to Python.)
            if one is None:
                one = InvalidMessage("a record without a value", origins[i])
            if isinstance(one, UpdateColumns):
                updates.append(one)
                from_.append(offset)
            elif isinstance(one, Progress):
                stated.append(Stated(offset, one))
            else:
                stated.append(Stated(offset, f"{DECODE_ERROR}{one.primary}\n{one.detail or ''}".rstrip()))
        rows = self._rows(updates, from_)
        records = len(offsets)
        for first in range(0, max(rows.num_rows, 1), MAX_BATCH_ROWS):
            yield SourceBatch(self._output, rows.slice(first, MAX_BATCH_ROWS), records, size, tuple(stated))
            records, size, stated = 0, 0, []

    def _rows(self, updates: Sequence[UpdateColumns], offsets: Sequence[int]) -> pa.RecordBatch:
        kind = self._decoder.shape.kind
        schema = pa.schema([f.with_nullable(True) for f in self._decoder.shape.schema])
        when = pa.list_(pa.int64(), kind) if kind else pa.int64()
        fields = [
            *schema,
            pa.field(STREAM_TIME_COLUMN, when, nullable=False),
            pa.field(DIFF_COLUMN, pa.int64(), nullable=False),
            pa.field(OFFSET_COLUMN, pa.int64(), nullable=False),
        ]
        if not updates:
            return pa.RecordBatch.from_pylist([], schema=pa.schema(fields))
        data = pa.concat_batches([u.data for u in updates])
        counts = [len(u) for u in updates]
        times = pa.array(np.concatenate([u.times for u in updates]).reshape(-1))
        columns = [
            *data.columns,
            pa.FixedSizeListArray.from_arrays(times, kind) if kind else times,
            pa.array(np.concatenate([u.diffs for u in updates])),
            pa.array(np.repeat(np.array(offsets, np.int64), counts)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _told_apart(origins: list[str]) -> list[str]:
    """Those of several messages at one place with their number among them."""
    if len(set(origins)) == len(origins):
        return origins
    seen: dict[str, int] = {}
    for origin in origins:
        seen[origin] = seen.get(origin, 0) + 1
    numbers: dict[str, int] = {}
    found: list[str] = []
    for origin in origins:
        numbers[origin] = numbers.get(origin, 0) + 1
        found.append(f"{origin}, record {numbers[origin]}" if seen[origin] > 1 else origin)
    return found
