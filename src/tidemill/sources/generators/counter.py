"""COUNTER generator: the numbers 1, 2, 3, ..., one per event.

MAX CARDINALITY keeps only the latest of them. FAIL AT makes the reader fail at an event, for tests and for
the documentation of failing sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.sources.contract import OutputDefinition, SourceBatch, SourcePiece, UpstreamError
from tidemill.sources.generators.load import EventPace, GeneratorKind, GeneratorSource, batch_schema, windows
from tidemill.sources.generators.options import (
    UP_TO,
    GeneratorOption,
    OptionKind,
    envelope,
    invalid,
    tick_interval,
)
from tidemill.types.model import INT8, Column, RelationDesc

OUTPUT = OutputDefinition("counter", RelationDesc((Column("counter", INT8, nullable=False),)))

_PLAIN = batch_schema(OUTPUT)
_WITH_DIFFS = batch_schema(OUTPUT, diffs=True)
_EVENT_BYTES = 8


@dataclass(frozen=True, slots=True)
class CounterReader:
    """Event e adds e + 1 and, with a cardinality, takes e + 1 - cardinality away once that is 1 or more."""

    max_cardinality: int | None = None
    fail_at: int | None = None
    fail_transient: bool = False

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        """The events before the one that fails are given first."""
        fails = self.fail_at is not None and piece.lower <= self.fail_at < piece.upper
        upper = self.fail_at if fails and self.fail_at is not None else piece.upper
        for first, end in windows(replace(piece, upper=upper), 1 if self.max_cardinality is None else 2):
            added = np.arange(first + 1, end + 1, dtype=np.int64)
            if self.max_cardinality is None:
                rows = pa.RecordBatch.from_arrays([pa.array(added)], schema=_PLAIN)
            else:
                rows = _bounded(added, self.max_cardinality)
            yield SourceBatch(0, rows, end - first, _EVENT_BYTES * (end - first))
        if fails:
            error = UpstreamError(
                f"the load generator failed at event {self.fail_at}",
                detail="It was made with the option FAIL AT.",
                hint="Drop the source, or make it again without the option.",
            )
            error.transient, error.permanent = self.fail_transient, not self.fail_transient
            raise error


def _bounded(added: np.ndarray, cardinality: int) -> pa.RecordBatch:
    """Each event's addition, directly followed by its retraction."""
    retracted = added - cardinality
    alone = int(np.searchsorted(retracted, 1))  # so many events have nothing to take away
    rest = len(added) - alone
    values = np.empty(alone + 2 * rest, dtype=np.int64)
    diffs = np.ones(alone + 2 * rest, dtype=np.int64)
    values[:alone] = added[:alone]
    values[alone::2] = added[alone:]
    values[alone + 1 :: 2] = retracted[alone:]
    diffs[alone + 1 :: 2] = -1
    return pa.RecordBatch.from_arrays([pa.array(values), pa.array(diffs)], schema=_WITH_DIFFS)


def _open(values: Mapping[str, Any]) -> GeneratorSource:
    fail_at: int | None = values.get("fail_at")
    if fail_at is None and values["fail_transient"]:
        raise invalid("option FAIL TRANSIENT needs the option FAIL AT")
    pace = EventPace(values["started"], values["tick_interval"], up_to=values.get("up_to"))
    reader = CounterReader(values.get("max_cardinality"), fail_at, values["fail_transient"])
    return GeneratorSource(pace, (OUTPUT,), reader, _EVENT_BYTES)


COUNTER = GeneratorKind(
    "COUNTER",
    (
        tick_interval(1_000_000),
        UP_TO,
        GeneratorOption("MAX CARDINALITY", OptionKind.INTEGER, least=1),
        GeneratorOption("FAIL AT", OptionKind.INTEGER),
        GeneratorOption("FAIL TRANSIENT", OptionKind.BOOLEAN, False),
        envelope("NONE"),
    ),
    _open,
)
