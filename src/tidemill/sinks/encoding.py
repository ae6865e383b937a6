"""Message encoding: updates of a collection as messages of limited size, whole columns at a time.

Called by `machine`. Promise: no message is larger than `LARGE_BYTES` unless a single row is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.avro import UPDATES_PER_MESSAGE
from tidemill.cdcv2.columns import UpdateColumns
from tidemill.sinks.definition import Codec
from tidemill.sinks.target import SinkError
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous

# The intended size of a message, measured by its columns in memory: the encodings have about the same size.
MESSAGE_BYTES = 256 << 10
# Kafka's default limit is a little more than a million bytes.
LARGE_BYTES = 900_000
# Rows that are encoded together: their messages are in memory at the same time.
ROWS_AT_ONCE = 1 << 16


def update_columns(table: pa.Table, names: Sequence[str], schema: pa.Schema) -> Iterator[UpdateColumns]:
    """Updates with their physical column `names`, time and diff, in pieces. Raises SinkError if a value is
    null that the stream's schema declares not null."""
    for first in range(0, table.num_rows, ROWS_AT_ONCE):
        part = table.slice(first, ROWS_AT_ONCE)
        columns = [contiguous(part.column(name)) for name in names]
        times, diffs = (np.asarray(part.column(c).to_numpy()) for c in (TIME_COLUMN, DIFF_COLUMN))
        check_nulls(columns, schema)
        data = pa.RecordBatch.from_arrays(columns, schema=schema)
        yield UpdateColumns(data, times.astype(np.int64, copy=False), diffs.astype(np.int64, copy=False))


def check_nulls(columns: Sequence[pa.Array | pa.ChunkedArray], schema: pa.Schema) -> None:
    """Raises SinkError."""
    for column, field in zip(columns, schema, strict=True):
        if column.null_count and not field.nullable:
            raise SinkError(
                f'column "{field.name}" has null values, and the stream says that it never has',
                detail="It was NOT NULL when the sink was made.",
                hint="DROP the sink, and CREATE it anew into another place.",
            )


def encoded(codec: Codec, updates: UpdateColumns) -> Iterator[bytes]:
    """The encoded messages."""
    rows = len(updates)
    if not rows:
        return
    per_row = max(1, (updates.data.nbytes + updates.times.nbytes + updates.diffs.nbytes) // rows)
    yield from _cut(codec, updates, max(1, min(UPDATES_PER_MESSAGE, MESSAGE_BYTES // per_row)))


def _cut(codec: Codec, updates: UpdateColumns, per_message: int) -> Iterator[bytes]:
    first = 0
    for message in codec.encode_updates(updates, per_message):
        part = min(per_message, len(updates) - first)
        if len(message) > LARGE_BYTES and part > 1:
            yield from _cut(codec, updates.slice(first, part), (part + 1) // 2)
        else:
            yield message
        first += part
