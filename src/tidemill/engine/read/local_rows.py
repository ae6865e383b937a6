"""Outcomes whose rows are already in memory: SHOW, EXPLAIN, constants, RETURNING of plain columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidemill.engine.api import Rows
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import TEXT, Column, RelationDesc

# Rows per batch, so that encoding and sending overlap and a slow client uses little memory.
BATCH_ROWS = 64 * 1024


class AtHand:
    """Batches that are already in memory. `take` returns them without an await."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches

    def take(self) -> pa.RecordBatch | None:
        """The next batch; None at the end."""
        return next(self._batches, None)

    def __aiter__(self) -> AtHand:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        batch = self.take()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def close(self) -> None:
        self._batches = iter(())

    async def aclose(self) -> None:
        self.close()


def stream(table: pa.Table) -> AtHand:
    return AtHand(b for b in table.to_batches(max_chunksize=BATCH_ROWS) if b.num_rows)


def text_rows(
    names: Sequence[str], rows: Sequence[Sequence[Any]], *, tag: str = "SHOW", counted: bool = False
) -> Rows:
    """Rows of text (None = NULL)."""
    columns = text_columns(*names)
    return Rows(columns, stream(text_table(columns, rows)), tag=tag, counted=counted)


def text_columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, TEXT) for name in names)


def text_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.Table:
    schema = arrow_schema(RelationDesc(tuple(columns)))
    arrays = [pa.array([row[n] for row in rows], type=f.type) for n, f in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)
