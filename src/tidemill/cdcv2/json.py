"""CDCv2 JSON codec: the structure of the Avro messages, as text.

A message is an array of updates, `[{"data": {..}, "time": 3, "diff": 1}, ..]`, or an object with progress,
`{"lower": [0], "upper": [5], "counts": [{"time": 3, "count": 2}]}`. Product times are arrays of numbers.
`json_forms` defines the form of the column types. The calls and promises are those of `AvroCodec`. Updates
are encoded and decoded as columns where their types and values allow it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from tidemill.cdcv2.account import checked_progress
from tidemill.cdcv2.columns import UpdateColumns, check_columns
from tidemill.cdcv2.json_forms import (
    from_json_form,
    has_map,
    json_type,
    json_value,
    python_value,
    strict_json,
    to_json_form,
)
from tidemill.cdcv2.messages import Progress, as_bytes, no_message
from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.times import INTEGERS, Time
from tidemill.cdcv2.wording import Malformed, brief, field, progress_record, sentence, whole
from tidemill.errors import LimitExceeded, Unsupported

# As for Avro.
UPDATES_PER_MESSAGE = 8192
MAX_MESSAGE_BYTES = 256 << 20

# Input that the columnar reader does not treat as JSON requires: line breaks between values, words that are
# not numbers.
_SLOW = (b"\n", b"\r", b"NaN", b"Inf")

arrow_json: Any = import_module("pyarrow.json")


class JsonCodec:
    """For streams whose data has the columns of `schema` (storage forms of `types.arrow`), with times of
    `kind`."""

    def __init__(self, schema: pa.Schema, kind: int = INTEGERS, *, digests: bool = False) -> None:
        if not len(schema):
            raise Unsupported("a CDCv2 stream without columns")
        self.schema = schema
        self.kind = kind
        self._digests = digests
        self._by_row = any(has_map(f.type) for f in schema)
        time = pa.int64() if kind == INTEGERS else pa.list_(pa.field("element", pa.int64()))
        if not self._by_row:
            data = pa.struct([pa.field(f.name, json_type(f.type)) for f in schema])
            record = pa.struct([("data", data), ("time", time), ("diff", pa.int64())])
            self._line = pa.schema([("u", pa.list_(pa.field("element", record)))])

    # -- to bytes --------------------------------------------------------------------------------------------

    def encode(self, message: UpdateColumns | Progress) -> list[bytes]:
        """The messages for the statement: one for a progress statement, as many as needed for updates."""
        if isinstance(message, Progress):
            return [self.encode_progress(message)]
        if not isinstance(message, UpdateColumns):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise no_message(message, 0, UpdateColumns, Progress)
        return self.encode_updates(message)

    def encode_progress(self, progress: Progress) -> bytes:
        checked_progress(progress, self.kind)
        counts: list[dict[str, Any]] = [{"time": t, "count": n} for t, n in progress.counts]
        record: dict[str, Any] = {
            "lower": list(progress.lower),
            "upper": list(progress.upper),
            "counts": counts,
        }
        if self._digests:
            if progress.contents is None or progress.seal is None:
                raise InvalidMessage("a statement without a digest", progress.origin or "the writer")
            for count, content in zip(counts, progress.contents, strict=True):
                count["content"] = content
            record["seal"] = progress.seal
        return json.dumps(record, separators=(",", ":")).encode()

    def encode_updates(self, updates: UpdateColumns, per_message: int = UPDATES_PER_MESSAGE) -> list[bytes]:
        """Updates in messages of at most `per_message`."""
        check_columns(updates, self.schema, updates.origin or "the writer")
        starts = range(0, len(updates), per_message)
        return [
            self._encode(updates.slice(first, min(per_message, len(updates) - first))) for first in starts
        ]

    def _encode(self, updates: UpdateColumns) -> bytes:
        columns = None if self._by_row else [to_json_form(c) for c in updates.data.columns]
        if columns is None or any(c is None for c in columns):
            return self._encode_rows(updates)
        fields = [pa.field(f.name, json_type(f.type)) for f in self.schema]
        data = pa.StructArray.from_arrays(cast("list[pa.Array]", columns), fields=fields)
        frame = pl.DataFrame(
            {
                "data": pl.from_arrow(data),
                "time": pl.Series(updates.times.tolist() if updates.times.ndim > 1 else updates.times),
                "diff": pl.Series(updates.diffs),
            }
        )
        # One line per row. Line breaks within texts are escaped, so each line break ends a row.
        lines = frame.write_ndjson().rstrip("\n")
        return f"[{lines.replace(chr(10), ',')}]".encode()

    def _encode_rows(self, updates: UpdateColumns) -> bytes:
        columns = [
            [json_value(v, f.type) for v in column.to_pylist()]
            for f, column in zip(self.schema, _by_numbers(updates.data).columns, strict=True)
        ]
        rows = [
            {"data": dict(zip(self.schema.names, values, strict=True)), "time": time, "diff": diff}
            for *values, time, diff in zip(
                *columns, updates.times.tolist(), updates.diffs.tolist(), strict=True
            )
        ]
        return json.dumps(rows, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    # -- from bytes ------------------------------------------------------------------------------------------

    def decode(
        self,
        messages: Sequence[bytes],
        origins: Sequence[str] | None = None,
        errors: list[InvalidMessage] | None = None,
    ) -> list[UpdateColumns | Progress]:
        """The contents of the messages, in their order. Raises the error of the first message that cannot be
        decoded. With a list for `errors`, all such errors are appended to it and their messages are skipped.
        """
        named = [f"message {i}" for i in range(len(messages))] if origins is None else origins
        arrays = [i for i, m in enumerate(messages) if _may_be_fast(m)]
        fast: dict[int, UpdateColumns] = {}
        if arrays and not self._by_row:
            fast = self._columns([messages[i] for i in arrays], arrays, named)
        result: list[UpdateColumns | Progress] = []
        for i, message in enumerate(messages):
            try:
                result.append(fast[i] if i in fast else self._slow(message, named[i]))
            except InvalidMessage as e:
                if errors is None:
                    raise
                errors.append(e)
        return result

    def _columns(
        self, messages: list[bytes], places: list[int], origins: Sequence[str]
    ) -> dict[int, UpdateColumns]:
        """The updates of several messages, by position; empty if any of them is not as expected."""
        try:
            text = b"\n".join(b'{"u":' + m + b"}" for m in messages)
            text.decode()  # the reader takes any bytes for text
            table = arrow_json.read_json(
                io.BytesIO(text),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=self._line, unexpected_field_behavior="error"
                ),
            )
            lists = table.column("u").combine_chunks()
            if table.num_rows != len(messages) or lists.null_count:
                return {}
            rows = lists.flatten()
            data, times, diffs = rows.flatten()
            if rows.null_count or data.null_count or times.null_count or diffs.null_count:
                return {}
            found = UpdateColumns(self._data(data), self._times(times), diffs.to_numpy())
        except (ValueError, TypeError):
            return {}
        ends = lists.offsets.to_numpy().tolist()
        result: dict[int, UpdateColumns] = {}
        for n, place in enumerate(places):
            part = found.slice(ends[n], ends[n + 1] - ends[n])
            result[place] = UpdateColumns(part.data, part.times, part.diffs, origins[place])
        return result

    def _data(self, data: pa.Array) -> pa.RecordBatch:
        columns = [from_json_form(c, f.type) for c, f in zip(data.flatten(), self.schema, strict=True)]
        if any(c.null_count and not f.nullable for c, f in zip(columns, self.schema, strict=True)):
            raise ValueError("a null where none may be")
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _times(self, times: pa.Array) -> np.ndarray:
        if self.kind == INTEGERS:
            return times.to_numpy()
        values = times.flatten()
        lengths = np.diff(times.offsets.to_numpy())
        if values.null_count or bool((lengths != self.kind).any()):
            raise ValueError("a time of another kind")
        return values.to_numpy().reshape(-1, self.kind)

    def _slow(self, message: bytes, origin: str) -> UpdateColumns | Progress:
        """One message, value by value."""
        if len(as_bytes(message, origin)) > MAX_MESSAGE_BYTES:
            raise LimitExceeded(f"a message of {len(message)} bytes", detail=f"In {origin}.")
        try:
            found = strict_json(bytes(message).decode())
            return self._rows(found, origin) if isinstance(found, list) else self._progress(found, origin)
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as e:
            raise InvalidMessage("not a CDCv2 message in JSON", origin, detail=sentence(e)) from None

    def _rows(self, rows: Any, origin: str) -> UpdateColumns:
        columns: list[pa.Array] = []
        for row in rows:
            _only(row, {"data", "time", "diff"}, "an update")
            _only(field(row, "data", "an update"), set(self.schema.names), "the data of an update")
        for f in self.schema:
            values = [_value(row["data"].get(f.name), f) for row in rows]
            if not f.nullable and None in values:
                raise Malformed(f'column "{f.name}" is null')
            columns.append(_array(values, f))
        times = [self._time(field(row, "time", "an update")) for row in rows]
        diffs = [whole(field(row, "diff", "an update")) for row in rows]
        shape = (len(rows),) if self.kind == INTEGERS else (len(rows), self.kind)
        return UpdateColumns(
            pa.RecordBatch.from_arrays(columns, schema=self.schema),
            np.array(times, np.int64).reshape(shape),
            np.array(diffs, np.int64),
            origin,
        )

    def _progress(self, found: Any, origin: str) -> Progress:
        record = progress_record(found)
        counts = record["counts"]
        return Progress(
            [self._time(t) for t in record["lower"]],
            [self._time(t) for t in record["upper"]],
            [(self._time(c["time"]), whole(c["count"])) for c in counts],
            [whole(field(c, "content", 'an entry of "counts"')) for c in counts] if self._digests else None,
            whole(field(record, "seal", "progress")) if self._digests else None,
            origin,
        )

    def _time(self, value: Any) -> Time:
        if self.kind == INTEGERS:
            return whole(value)
        if not isinstance(value, list) or len(cast("list[Any]", value)) != self.kind:
            raise Malformed(f"not a time of {self.kind} numbers: {brief(value)}")
        return tuple(whole(v) for v in cast("list[Any]", value))


def _may_be_fast(message: Any) -> bool:
    return isinstance(message, bytes) and message[:1] == b"[" and not any(s in message for s in _SLOW)


def _by_numbers(data: pa.RecordBatch) -> pa.RecordBatch:
    """Dates and timestamps at any depth as numbers: Python's types have a smaller range than the columns."""
    return pa.RecordBatch.from_arrays(
        [column.cast(_numbers(column.type)) for column in data.columns], names=data.schema.names
    )


def _numbers(t: Any) -> Any:
    if pa.types.is_date32(t) or pa.types.is_timestamp(t):
        return json_type(t)
    if pa.types.is_map(t):
        return pa.map_(pa.string(), _numbers(t.item_type))
    if pa.types.is_list(t):
        return pa.list_(pa.field("element", _numbers(t.value_type)))
    if pa.types.is_struct(t):
        return pa.struct(
            [pa.field(f.name, _numbers(f.type)) for f in (t.field(i) for i in range(t.num_fields))]
        )
    return t


def _value(value: Any, f: pa.Field) -> Any:
    try:
        return python_value(value, f.type)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError):
        raise Malformed(f'not a value of column "{f.name}", which is {f.type}: {brief(value)}') from None


def _array(values: list[Any], f: pa.Field) -> pa.Array:
    numbers = _numbers(f.type)
    try:
        array = pa.array(values, numbers)
        return array if numbers == f.type else array.cast(f.type)
    except (ValueError, TypeError, ArithmeticError):  # Arrow's errors are such
        raise Malformed(f'not values of column "{f.name}", which is {f.type}: {brief(values)}') from None


def _only(record: Any, names: set[str], what: str) -> None:
    """Checks that the object has no other names than these."""
    if not isinstance(record, dict):
        raise Malformed(f"{what} is an object, not {brief(record)}")
    unknown = set(cast("dict[str, Any]", record)) - names
    if unknown:
        raise Malformed(f"{what} has unknown fields: {', '.join(sorted(unknown))}")
