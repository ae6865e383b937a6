"""The encoder of DataRow messages: from Arrow batches, by column.

`types.wire` encodes each column as a whole (a constant column once). One join combines row heads,
length prefixes and values, all as Arrow binary columns, without Python code per row. Called in worker
threads by `results`. Promise: the bytes are whole DataRow messages, one per row of the batch, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.server import limits
from tidemill.server.bytecolumns import concatenated, content, fixed_width, spans
from tidemill.server.pgwire.messages import MalformedMessage
from tidemill.types import wire
from tidemill.types.columns import constant
from tidemill.types.model import Column, SqlType

TEXT = 0
BINARY = 1

_NULL = b"\xff\xff\xff\xff"
_INT4 = struct.Struct("!i")
_FEW_HEAD = struct.Struct("!ciH")
# A part of a record: its numpy type, and one value for all rows or one for each.
_Field = tuple[str, Any]
_HEAD = np.dtype([("tag", "S1"), ("length", ">i4")])


def result_formats(wanted: Sequence[int], columns: int) -> tuple[int, ...]:
    """One format code per column from those of Bind: none (text), one for all, or one each."""
    if len(wanted) == 0:
        return (TEXT,) * columns
    if len(wanted) == 1:
        return (wanted[0],) * columns
    if len(wanted) != columns:
        raise MalformedMessage(
            f"bind message has {len(wanted)} result formats but query has {columns} columns"
        )
    return tuple(wanted)


class RowEncoder:
    """Encodes batches of one result. `formats` has one code per column; `timezone` is the session's."""

    __slots__ = ("__weakref__", "_columns", "_timezone")

    def __init__(self, columns: Sequence[Column], formats: Sequence[int], timezone: str = "UTC") -> None:
        self._columns = [(c.type, f) for c, f in zip(columns, formats, strict=True)]
        self._timezone = timezone

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        return content(self.messages(batch))

    def messages(self, batch: pa.RecordBatch) -> pa.Array:
        """The same, one message per value."""
        values: list[pa.Array | pa.Scalar] = []
        for column, (t, form) in zip(batch.columns, self._columns, strict=True):
            one = constant(column)
            values.append(self._values(column, t, form) if one is None else self._values(one, t, form)[0])
        return data_rows(values, batch.num_rows)

    def _values(self, array: pa.Array, t: SqlType, form: int) -> pa.Array:
        if form == BINARY:
            return wire.encode_binary(array, t)
        return wire.encode_text(array, t, timezone=self._timezone)

    def few(self, batch: pa.RecordBatch) -> bytes:
        """The same bytes, without the setup that pays off only for many rows."""
        columns = [self._few_values(a, t, f) for a, (t, f) in zip(batch.columns, self._columns, strict=True)]
        rows: list[bytes] = []
        for values in zip(*columns, strict=True):
            parts = [_NULL if v is None else _INT4.pack(len(v)) + v for v in values]
            body = b"".join(parts)
            rows.append(_FEW_HEAD.pack(b"D", len(body) + 6, len(parts)) + body)
        return b"".join(rows)

    def _few_values(self, array: pa.Array, t: SqlType, form: int) -> list[bytes | None]:
        found = wire.few_to_binary(array, t) if form == BINARY else wire.few_to_text(array, t)
        if found is not None:
            return found
        return self._values(array, t, form).to_pylist()


def data_rows(values: Sequence[pa.Array | pa.Scalar], rows: int) -> pa.Array:
    """The DataRow messages of `rows` rows with these encoded columns. A scalar is a constant column."""
    size = np.full(rows, 6, np.int64)
    # Parts of equal length in all rows, such as the length prefixes, are combined to records, because each
    # part of the join costs as much as a short value. Between two records is a column of variable lengths.
    records: list[list[_Field]] = [[("S1", b"D"), (">i4", size), (">u2", len(values))]]
    columns: list[pa.Array] = []
    for column in values:
        if isinstance(column, pa.Scalar):
            text = _NULL if not column.is_valid else _INT4.pack(len(column.as_py())) + column.as_py()
            size += len(text)
            records[-1].append((f"V{len(text)}", np.void(text)))
            continue
        ends = spans(column)
        lengths = np.diff(ends)
        width = int(lengths[0]) if rows else 0
        if not column.null_count and bool((lengths == width).all()):
            size += 4 + width
            records[-1].append((">i4", width))
            if width:
                kind = f"u{width}" if width in (1, 2, 4, 8) else f"V{width}"
                records[-1].append((kind, np.frombuffer(column.buffers()[2], kind, rows, int(ends[0]))))
            continue
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
        size += np.maximum(lengths, 0) + 4
        records[-1].append((">i4", lengths))
        columns.append(column)
        records.append([])
    parts: list[pa.Array] = []
    for fields, column in zip_longest(records, columns):
        parts += [_record(fields, rows)] if fields else []
        parts += [] if column is None else [column]
    return parts[0] if len(parts) == 1 else concatenated(parts)


def _record(fields: Sequence[_Field], rows: int) -> pa.Array:
    record = np.empty(rows, np.dtype([(f"f{i}", kind) for i, (kind, _) in enumerate(fields)]))
    for i, (_, value) in enumerate(fields):
        record[f"f{i}"] = value
    return fixed_width(record, record.dtype.itemsize)


def framed(tag: bytes, rows: pa.Array) -> memoryview:
    """One message of type `tag` per value of `rows`: CopyData, whose clients expect a row in each."""
    head = np.empty(len(rows), _HEAD)
    head["tag"] = tag
    head["length"] = np.diff(spans(rows)) + 4
    return content(concatenated([fixed_width(head, _HEAD.itemsize), rows]))


def is_light(batch: pa.RecordBatch) -> bool:
    """Whether encoding takes less time than handing the work to another thread."""
    if batch.num_rows > limits.LIGHT_ROWS or not batch.num_columns:
        return False
    return batch.get_total_buffer_size() <= limits.LIGHT_BYTES


def pieces(batch: pa.RecordBatch, at_most: int | None = None) -> Iterator[tuple[int, int]]:
    """(first row, rows): `batch` (its first `at_most` rows) cut so that a piece encodes to about
    `limits.CHUNK_BYTES`."""
    rows = batch.num_rows if at_most is None else min(at_most, batch.num_rows)
    step = rows_of_a_piece(batch) if rows else 1
    for at in range(0, rows, step):
        yield at, min(step, rows - at)


def rows_of_a_piece(batch: pa.RecordBatch, growth: float | None = None) -> int:
    """How many of the batch's rows make about `limits.CHUNK_BYTES`, if one byte in storage is `growth` bytes
    on the wire. If that is unknown: text is up to about twice as long (bytea exactly), and each value has a
    prefix."""
    per_row = batch.nbytes / batch.num_rows
    per_row = 2 * per_row + 8 * batch.num_columns + 7 if growth is None else growth * per_row
    return max(1, min(limits.CHUNK_ROWS, int(limits.CHUNK_BYTES / max(1, per_row))))
