"""Reader of a PubNub source: reads ranges of the inbox, in the tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from tidemill.catalog.sidecars import INBOX_DESC
from tidemill.errors import Internal
from tidemill.persist.blob import Blobs
from tidemill.persist.part import Part, read_groups
from tidemill.sources.contract import MAX_BATCH_ROWS, SourceBatch, SourcePiece
from tidemill.sources.pubnub.rows import MessageRows
from tidemill.types.kernels import pc
from tidemill.types.names import physical_names

# Sources whose decoders a worker keeps open.
MAX_OPENED = 64


@dataclass(frozen=True, slots=True)
class InboxReader:
    """`outputs` is the definition's list, as JSON text; only those in `wanted` are read (None: all)."""

    blobs: Blobs
    shard: str
    parts: tuple[Part, ...]
    outputs: str = field(repr=False)
    wanted: frozenset[int] | None = None

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """Each message is counted once, with the first output."""
        if not isinstance(piece.partition, int):
            raise Internal(f"PubNub has no region {piece.partition!r}")
        opened = _opened(self.outputs)
        for messages in self._messages(piece):
            size = messages.column("payload").nbytes
            counted = len(messages)
            for number, rows in enumerate(opened):
                if self.wanted is not None and number not in self.wanted:
                    continue
                made = rows.make(messages)
                if made.num_rows:
                    yield SourceBatch(number, made, counted, size)
                    counted = size = 0

    def _messages(self, piece: SourcePiece) -> Iterator[pa.RecordBatch]:
        names = physical_names(INBOX_DESC)[:-1]
        for part in self.parts:
            for _, table in read_groups(self.blobs, self.shard, part, INBOX_DESC, names):
                mask = pc.equal(table.column("region"), piece.partition)
                mask = pc.and_(mask, pc.greater_equal(table.column("position"), piece.lower))
                mask = pc.and_(mask, pc.less(table.column("position"), piece.upper))
                found = table.filter(mask).sort_by([("position", "ascending"), ("channel", "ascending")])
                for batch in found.combine_chunks().to_batches(MAX_BATCH_ROWS):
                    if batch.num_rows:
                        yield batch


@lru_cache(maxsize=MAX_OPENED)
def _opened(outputs: str) -> tuple[MessageRows, ...]:
    return tuple(MessageRows(spec) for spec in json.loads(outputs))
