"""DataRow messages from Arrow batches, by column.

Each column is encoded whole by `types.wire` (where all values are the same, one of them); the messages are
then put together by one join of the row heads, the length prefixes and the values, all as Arrow binary
columns: no Python per row. Called in worker threads by `results`. Promise: the bytes are a whole number of
DataRow messages, one per row of the batch, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.server import limits
from tidemill.server.bytecolumns import concatenated, content, fixed_width, prefixes, spans
from tidemill.server.pgwire.messages import ProtocolViolation
from tidemill.types import wire
from tidemill.types.columns import constant
from tidemill.types.model import Column, SqlType

TEXT = 0
BINARY = 1

_NULL = b"\xff\xff\xff\xff"
_INT4 = struct.Struct("!i")
_FEW_HEAD = struct.Struct("!ciH")
_HEAD = np.dtype([("tag", "S1"), ("length", ">i4")])


def result_formats(wanted: Sequence[int], columns: int) -> tuple[int, ...]:
    """One format code per column from what Bind carried: none (text), one for all, or one each."""
    if len(wanted) == 0:
        return (TEXT,) * columns
    if len(wanted) == 1:
        return (wanted[0],) * columns
    if len(wanted) != columns:
        raise ProtocolViolation(
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
        """The same bytes, without what makes many rows cheap and one row dear."""
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


def data_rows(values: Sequence[pa.Array | pa.Scalar], rows: int) -> memoryview:
    """The DataRow messages of `rows` rows with these encoded columns; a single value stands for a column of
    nothing else."""
    size = np.full(rows, 6, np.int64)
    # What begins each row and is equally long in all of them is one record: every part of the join costs as
    # much as a short value.
    fields: list[tuple[str, str]] = [("tag", "S1"), ("length", ">i4"), ("columns", ">u2")]
    begins: list[np.ndarray | np.void] = []
    parts: list[pa.Array | pa.Scalar] = []
    for column in values:
        if isinstance(column, pa.Scalar):
            text = _NULL if not column.is_valid else _INT4.pack(len(column.as_py())) + column.as_py()
            size += len(text)
            if parts:
                # Several such columns are one part.
                before = parts.pop().as_py() if isinstance(parts[-1], pa.Scalar) else b""
                parts.append(pa.scalar(before + text, pa.binary()))
            else:
                begins.append(np.void(text))
                fields.append((f"f{len(fields)}", f"V{len(text)}"))
            continue
        lengths, prefix = prefixes(column)
        size += np.maximum(lengths, 0) + 4
        if parts:
            parts += [prefix, column]
        else:
            begins.append(lengths)
            fields.append((f"f{len(fields)}", ">i4"))
            parts.append(column)
    head = np.empty(rows, np.dtype(fields))
    head["tag"], head["length"], head["columns"] = b"D", size, len(values)
    for (name, _), begin in zip(fields[3:], begins, strict=True):
        head[name] = begin
    return content(concatenated([fixed_width(head, head.dtype.itemsize), *parts]))


def framed(tag: bytes, rows: pa.Array) -> memoryview:
    """One message of type `tag` per value of `rows`: CopyData, whose clients expect a row in each."""
    head = np.empty(len(rows), _HEAD)
    head["tag"] = tag
    head["length"] = np.diff(spans(rows)) + 4
    return content(concatenated([fixed_width(head, _HEAD.itemsize), rows]))


def is_light(batch: pa.RecordBatch) -> bool:
    """So little that it is encoded in less time than another thread takes to begin."""
    if batch.num_rows > limits.LIGHT_ROWS or not batch.num_columns:
        return False
    return batch.get_total_buffer_size() <= limits.LIGHT_BYTES


def pieces(batch: pa.RecordBatch, at_most: int | None = None) -> Iterator[tuple[int, int]]:
    """(first row, rows): `batch` (its first `at_most` rows) cut so that a piece encodes to about
    `limits.CHUNK_BYTES`."""
    rows = batch.num_rows if at_most is None else min(at_most, batch.num_rows)
    if not rows:
        return
    # Text is up to about twice as long as the storage form (bytea is exactly so), and each value has a
    # prefix.
    per_row = 2 * batch.nbytes // batch.num_rows + 8 * batch.num_columns + 7
    step = max(1, min(limits.CHUNK_ROWS, limits.CHUNK_BYTES // per_row))
    for at in range(0, rows, step):
        yield at, min(step, rows - at)
