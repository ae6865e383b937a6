"""Columnar updates: the statements of `messages.Updates`, without a Python object per row.

Created by the codecs and from Arrow data. `ColumnRecovery` accepts and returns them, and so does the writer.
The data columns use the storage forms of `types.arrow`, so the rules of row identity apply. Times and diffs
are numpy arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.times import INTEGERS, MAX_ARITY, MAX_COMPONENT, Time
from tidemill.cdcv2.wording import named, sentence
from tidemill.errors import Internal

# Rows for one push: enough to make its fixed cost negligible, few enough to stay in the processor's caches.
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class UpdateColumns:
    """A batch of updates; row i changes by diffs[i] at times[i]."""

    data: pa.RecordBatch
    # int64; the shape is (rows,) for integers, (rows, k) for products of k.
    times: np.ndarray
    # int64, of shape (rows,).
    diffs: np.ndarray
    # The origin of the message, for errors.
    origin: str | None = None

    def __post_init__(self) -> None:
        rows = self.data.num_rows
        if self.times.dtype != np.int64 or self.diffs.dtype != np.int64:
            raise Internal(f"times and diffs are int64, not {self.times.dtype} and {self.diffs.dtype}")
        if self.times.ndim > 2 or len(self.times) != rows or self.diffs.shape != (rows,):
            raise Internal(f"{rows} rows with times {self.times.shape} and diffs {self.diffs.shape}")

    def __len__(self) -> int:
        return self.data.num_rows

    @property
    def kind(self) -> int:
        """0 for integers, else the number of components of a time."""
        return INTEGERS if self.times.ndim == 1 else self.times.shape[1]

    @staticmethod
    def of(
        data: pa.RecordBatch | pa.Table,
        times: Any,
        diffs: Any = None,
        origin: str | None = None,
    ) -> UpdateColumns:
        """Accepts all numpy inputs for times and diffs; without diffs, each row occurs once."""
        if not isinstance(data, (pa.RecordBatch, pa.Table)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidMessage(
                f"{named(data)} is no data of updates",
                origin or "the updates",
                detail="Wanted: a RecordBatch or a Table of Arrow.",
            )
        batch = data if isinstance(data, pa.RecordBatch) else one_batch(data)
        when = _numbers(times, "times", origin)
        change = np.ones(batch.num_rows, np.int64) if diffs is None else _numbers(diffs, "diffs", origin)
        rows = batch.num_rows
        if when.ndim not in (1, 2) or len(when) != rows or change.shape != (rows,):
            raise InvalidMessage(
                f"{rows} rows with times {when.shape} and diffs {change.shape}", origin or "the updates"
            )
        return UpdateColumns(batch, when, change, origin)

    def take(self, rows: np.ndarray) -> UpdateColumns:
        return UpdateColumns(self.data.take(pa.array(rows)), self.times[rows], self.diffs[rows], self.origin)

    def slice(self, first: int, count: int) -> UpdateColumns:
        return UpdateColumns(
            self.data.slice(first, count),
            self.times[first : first + count],
            self.diffs[first : first + count],
            self.origin,
        )

    def rows(self) -> list[tuple[tuple[Any, ...], Time, int]]:
        """The rows as Python values, each a tuple of its columns. For inspection; slow for many rows."""
        columns = [column.to_pylist() for column in self.data.columns]
        values = list(zip(*columns, strict=True)) if columns else [()] * len(self)
        times: list[Any] = self.times.tolist()
        if self.times.ndim == 2:
            times = [tuple(t) for t in times]
        return list(zip(values, times, self.diffs.tolist(), strict=True))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table's rows as one batch."""
    combined = table.combine_chunks()
    batches = combined.to_batches()
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return concat(batches)


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def coalesced(messages: Iterable[Any], rows: int = ROWS_AT_ONCE) -> Iterator[Any]:
    """The same statements in fewer messages: joins consecutive updates, up to a number of rows. A push takes
    some tenths of a millisecond, regardless of its size. Joined messages have the origin "first to last"."""
    joined: list[UpdateColumns] = []
    size = 0
    for message in messages:
        # A message that will be refused must not affect others.
        alone = not isinstance(message, UpdateColumns) or not len(message) or int(message.times.min()) < 0
        if joined and (alone or size + len(message) > rows or not _alike(joined[0], message)):
            yield _joined(joined)
            joined, size = [], 0
        if alone:
            yield message
        else:
            joined.append(message)
            size += len(message)
    if joined:
        yield _joined(joined)


def _alike(a: UpdateColumns, b: UpdateColumns) -> bool:
    return a.kind == b.kind and a.data.schema == b.data.schema


def _joined(parts: list[UpdateColumns]) -> UpdateColumns:
    if len(parts) == 1:
        return parts[0]
    return UpdateColumns(
        concat([p.data for p in parts]),
        np.concatenate([p.times for p in parts]),
        np.concatenate([p.diffs for p in parts]),
        f"{parts[0].origin or 'a message'} to {parts[-1].origin or 'a later one'}",
    )


def distinct_times(times: np.ndarray) -> tuple[list[Time], np.ndarray]:
    """The distinct times, and for each row the number of its time."""
    if times.ndim == 1:
        encoded = pa.array(times).dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    # Component by component: numbers of pairs, then of those pairs with the next component, and so on. A
    # number is below the count of rows, so that a product of two fits 64 bits.
    codes = np.zeros(len(times), np.int64)
    for column in times.T:
        encoded = pa.array(np.ascontiguousarray(column)).dictionary_encode()
        joint = codes * max(1, len(encoded.dictionary)) + encoded.indices.to_numpy()
        codes = pa.array(joint).dictionary_encode().indices.to_numpy().astype(np.int64)
    # The first row of each code: written backwards, so that the first one stays.
    first = np.zeros(int(codes.max()) + 1 if len(codes) else 0, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return [tuple(t) for t in times[first].tolist()], codes


def check_columns(batch: UpdateColumns, schema: pa.Schema, origin: str) -> None:
    """Checks a batch before any of its contents is used."""
    if batch.data.schema.names != schema.names or batch.data.schema.types != schema.types:
        raise InvalidMessage(
            "updates with other columns than the stream's",
            origin,
            detail=f"They have {_columns(batch.data.schema)}, the stream has {_columns(schema)}.",
        )
    if not len(batch):
        return
    if batch.times.ndim == 2 and not 1 <= batch.times.shape[1] <= MAX_ARITY:
        raise InvalidMessage(f"a time has 1 to {MAX_ARITY} components, not {batch.times.shape[1]}", origin)
    if int(batch.times.min()) < 0:
        raise InvalidMessage(f"time out of range: {int(batch.times.min())}", origin)
    if int(batch.diffs.min()) == np.iinfo(np.int64).min:
        raise InvalidMessage(f"not a diff: {int(batch.diffs.min())}", origin)


def _numbers(given: Any, what: str, origin: str | None) -> np.ndarray:
    """The values as 64-bit integers, without rounding or conversion from other types. Raises
    InvalidMessage."""
    try:
        found = np.asarray(given)
    except (ValueError, TypeError, OverflowError) as e:
        raise InvalidMessage(f"not {what}", origin or "the updates", detail=sentence(e)) from None
    # An empty list has no numeric type.
    whole = found.dtype.kind == "i" or not found.size
    if not whole and found.dtype.kind == "u":
        whole = int(found.max()) <= MAX_COMPONENT
    if not whole:
        raise InvalidMessage(f"not {what} of 64 bits", origin or "the updates", detail=f"{found!r}.")
    return found.astype(np.int64, copy=False)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema) or "none"
