"""The half of a Kafka source that travels to the tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tidemill.errors import Internal
from tidemill.sources.contract import Batch, Piece
from tidemill.sources.kafka.consume import Range, Wanted, read_range
from tidemill.sources.kafka.outputs import Opened, open_output

# Sources whose decoders a worker keeps open; schemas and compiled readers are some hundred kilobytes each.
MAX_OPENED = 64


@dataclass(frozen=True, slots=True)
class KafkaReader:
    """`settings` are the client's, with its secrets; `outputs` is the definition's list, as JSON text. Of the
    partitions `begun` it was decided where reading begins; others are read from the first record they
    have."""

    settings: dict[str, str | int] = field(repr=False)
    topic: str
    outputs: str = field(repr=False)
    begun: frozenset[int]

    def read(self, piece: Piece) -> Iterator[Batch]:
        """Every output's rows of the same records, lot by lot. The records and their bytes are counted with
        the first output."""
        if not isinstance(piece.partition, int):
            raise Internal(f"a topic has no partition {piece.partition!r}")
        opened = _opened(self.outputs)
        if not opened:
            return
        wanted = Wanted(any(o.wanted.timestamps for o in opened), any(o.wanted.headers for o in opened))
        first = piece.lower == 0 and piece.partition not in self.begun
        of = Range(self.topic, piece.partition, piece.lower, piece.upper, from_start=first)
        for lot in read_range(self.settings, of, wanted):
            if lot.messages is None:
                yield Batch(0, opened[0].rows.none(), 0, 0)
                continue
            records, size = len(lot.messages), lot.bytes
            for number, output in enumerate(opened):
                rows = output.rows.make(lot.messages)
                if rows.num_rows:
                    yield Batch(number, rows, records, size)
                    records = size = 0


@lru_cache(maxsize=MAX_OPENED)
def _opened(outputs: str) -> tuple[Opened, ...]:
    return tuple(map(open_output, json.loads(outputs)))
