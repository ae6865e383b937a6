"""CDCv2 Avro codec: messages to bytes and back, whole batches at a time.

Called by sources and sinks, and by external programs. A message is the index of the union, then an array of
updates or a progress record. Optionally, Confluent's zero byte and the schema id precede it. Updates are
encoded and decoded as columns, through an Avro file in memory: the records of an array are byte for byte
those of a block of a file.

An undecodable message is an `InvalidMessage` that names its origin. A result matches the bytes exactly: every
byte of every message is accounted for.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO, cast

import fastavro
import numpy as np
import pyarrow as pa

# This uses the reader's internals on purpose. Its public interface reads until a file ends, and never ends
# when a block has bytes left after its last record (seen in 0.13). Here only the wanted records are read.
from polars_avro._avro_rs import AvroBuffSink, AvroSource

from tidemill.cdcv2.account import checked_progress
from tidemill.cdcv2.avro_rows import columns_of_rows, to_storage
from tidemill.cdcv2.avro_schema import NAMESPACE, data_schema, schema_text, stream_schema
from tidemill.cdcv2.columns import UpdateColumns, check_columns
from tidemill.cdcv2.messages import Progress, as_bytes, no_message
from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.times import INTEGERS, Time
from tidemill.cdcv2.wording import sentence
from tidemill.errors import InvalidValue, LimitExceeded

# Updates in one message. Kafka's default limit is 1 MB a message; rows of 100 bytes then fit.
UPDATES_PER_MESSAGE = 8192
# A message's bytes: more than any transport carries, little enough to hold several times over.
MAX_MESSAGE_BYTES = 256 << 20

_UPDATES, _PROGRESS = b"\x00", b"\x02"
_SYNC = b"tidemill's marker"[:16]


class AvroCodec:
    """For streams whose data has the columns of `schema` (storage forms of `types.arrow`), with times of
    `kind`. With `schema_id`, messages are framed as Confluent's clients frame them, and only those with this
    id are decoded. `writer` is the union that the messages were written with, if it differs (JSON text): they
    are resolved to `reader` (ours, or one with the same columns) by Avro's rules, one by one."""

    def __init__(
        self,
        schema: pa.Schema,
        kind: int = INTEGERS,
        *,
        digests: bool = False,
        schema_id: int | None = None,
        writer: str | None = None,
        reader: str | None = None,
    ) -> None:
        self.schema = schema
        self.kind = kind
        # The schema to register, as JSON text.
        self.avro_schema = schema_text(stream_schema(schema, kind, digests=digests))
        self._digests = digests
        self._frame = b"" if schema_id is None else b"\x00" + struct.pack(">I", schema_id)
        parsed = cast("list[Any]", json.loads(self.avro_schema))
        self._union: Any = fastavro.parse_schema(parsed)
        self._writer: Any = None if writer is None else _parsed(writer)
        self._reader: Any = self._union if reader is None else _parsed(reader)
        self._progress_name = f"{NAMESPACE}.{parsed[1]['name']}"
        time: Any = pa.int64()
        if kind != INTEGERS:
            time = pa.list_(pa.field("element", pa.int64(), nullable=False))
        self._record = pa.schema(
            [
                pa.field("data", pa.struct(list(schema)), nullable=False),
                pa.field("time", time, nullable=False),
                pa.field("diff", pa.int64(), nullable=False),
            ]
        )
        self._nested = any(pa.types.is_nested(f.type) for f in schema) or kind != INTEGERS
        self._header = _file_header({**parsed[0]["items"], "name": "update"})
        data_schema(schema)

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
        record: dict[str, Any] = {"lower": progress.lower, "upper": progress.upper, "counts": counts}
        if self._digests:
            if progress.contents is None or progress.seal is None:
                raise InvalidMessage("a statement without a digest", progress.origin or "the writer")
            for count, content in zip(counts, progress.contents, strict=True):
                count["content"] = content
            record["seal"] = progress.seal
        out = io.BytesIO()
        out.write(self._frame)
        fastavro.schemaless_writer(out, self._union, (self._progress_name, record))
        return out.getvalue()

    def encode_updates(self, updates: UpdateColumns, per_message: int = UPDATES_PER_MESSAGE) -> list[bytes]:
        """Updates in messages of at most `per_message`."""
        check_columns(updates, self.schema, updates.origin or "the writer")
        total = len(updates)
        counts = [min(per_message, total - first) for first in range(0, total, per_message)]
        arrays = self._arrays(self._records(updates), counts)
        return [
            b"".join((self._frame, _UPDATES, _varint(count), *array, b"\x00"))
            for count, array in zip(counts, arrays, strict=True)
        ]

    def _arrays(self, records: pa.Table, counts: Sequence[int]) -> list[list[memoryview]]:
        """The bytes of arrays of updates with these numbers of records, one after another."""
        out = io.BytesIO()
        sink = AvroBuffSink(out, records.slice(0, 0), None)
        first = 0
        for count in counts:
            part = records.slice(first, count)
            # The writer panics on slices of nested columns (seen in 0.13), so those are copied.
            sink.write(part.take(pa.array(np.arange(count))) if self._nested else part)
            first += count
        sink.close()
        blocks = _blocks(out.getbuffer())
        arrays: list[list[memoryview]] = []
        for count in counts:
            array: list[memoryview] = []
            while count > 0:
                records_in, block = next(blocks)
                array.append(block)
                count -= records_in
            arrays.append(array)
        return arrays

    def _records(self, updates: UpdateColumns) -> pa.Table:
        data = pa.StructArray.from_arrays(updates.data.columns, fields=list(self.schema))
        times: Any = pa.array(updates.times if self.kind == INTEGERS else updates.times.reshape(-1))
        if self.kind != INTEGERS:
            offsets = pa.array(np.arange(len(updates) + 1, dtype=np.int32) * self.kind)
            times = pa.ListArray.from_arrays(offsets, times, type=self._record.field("time").type)
        return pa.Table.from_arrays([data, times, pa.array(updates.diffs)], schema=self._record)

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
        result: list[UpdateColumns | Progress | None] = [None] * len(messages)
        plain: list[tuple[int, int, memoryview]] = []
        for i, message in enumerate(messages):
            try:
                self._sort(i, memoryview(as_bytes(message, named[i])), named[i], result, plain)
            except InvalidMessage as e:
                _report(e, errors)
        self._columns(plain, messages, named, result, errors)
        return [m for m in result if m is not None]

    def _sort(
        self,
        i: int,
        message: memoryview,
        origin: str,
        result: list[UpdateColumns | Progress | None],
        plain: list[tuple[int, int, memoryview]],
    ) -> None:
        """Sorts one message. A statement is decoded at once, as statements are few; for updates, the position
        of their records is stored in `plain`."""
        body = self._unframed(message, origin)
        if bytes(body[:1]) != _UPDATES or self._writer is not None:
            result[i] = self._slow(body, origin)
            return
        count, at = _read_varint(body, 1, origin)
        if 0 < count <= len(body) and body[-1] == 0:
            plain.append((i, count, body[at:-1]))
        else:
            result[i] = self._slow(body, origin)

    def _unframed(self, message: memoryview, origin: str) -> memoryview:
        if len(message) > MAX_MESSAGE_BYTES:
            raise LimitExceeded(f"a message of {len(message)} bytes", detail=f"In {origin}.")
        if not self._frame:
            return message
        if len(message) < 5 or message[0] != 0:
            raise InvalidMessage("not a message in Confluent's framing", origin)
        if bytes(message[:5]) != self._frame:
            found, wanted = (struct.unpack(">I", m[1:5])[0] for m in (message, self._frame))
            raise InvalidMessage(f"a message of schema {found} among those of schema {wanted}", origin)
        return message[5:]

    def _columns(
        self,
        plain: list[tuple[int, int, memoryview]],
        messages: Sequence[bytes],
        origins: Sequence[str],
        result: list[UpdateColumns | Progress | None],
        errors: list[InvalidMessage] | None,
    ) -> None:
        """All updates at once; if they are malformed, one message after another."""
        if not plain:
            return
        found = self._fast([c for _, c, _ in plain], [p for _, _, p in plain])
        if found is not None:
            first = 0
            for i, count, _ in plain:
                part = found.slice(first, count)
                result[i] = UpdateColumns(part.data, part.times, part.diffs, origins[i])
                first += count
            return
        for i, count, payload in plain:
            one = self._fast([count], [payload]) if len(plain) > 1 else None
            try:
                if one is not None:
                    result[i] = UpdateColumns(one.data, one.times, one.diffs, origins[i])
                else:
                    body = self._unframed(memoryview(messages[i]), origins[i])
                    result[i] = self._slow(body, origins[i])
            except InvalidMessage as e:
                _report(e, errors)

    def _fast(self, counts: list[int], payloads: list[memoryview]) -> UpdateColumns | None:
        """The updates of several arrays, or None if anything is not as expected."""
        data = b"".join(payloads)
        total = sum(counts)
        # More records than the bytes can hold, so that the reader never reaches the end of the block, where
        # it would loop without end if a byte were left.
        block = _varint(len(data) + 1) + _varint(len(data)) + data + _SYNC
        file = io.BytesIO(self._header + block)
        opener: Callable[[], AbstractContextManager[BinaryIO]] = lambda: nullcontext(file)  # noqa: E731
        try:
            read: Any = next(AvroSource([opener], False, False).batch_iter(total, None))
            table = pa.record_batch(read)
            if table.num_rows != total:
                return None
            columns = [to_storage(table.column(f.name), f) for f in self._record]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the reader is no Exception
            return None
        if any(column is None for column in columns):
            return None
        # The reader does not report how much of a message it read, and accepts some wrong bytes. So the
        # result, encoded again, must equal each message's bytes. Other encodings of the same values are
        # decoded by the slow reader.
        records = pa.Table.from_arrays(cast("list[pa.Array]", columns), schema=self._record)
        for array, payload in zip(self._arrays(records, counts), payloads, strict=True):
            if (array[0] if len(array) == 1 else b"".join(array)) != payload:
                return None
        return self._updates(cast("list[pa.Array]", columns))

    def _updates(self, columns: list[pa.Array]) -> UpdateColumns | None:
        data, times, diffs = columns
        if self.kind == INTEGERS:
            when = times.to_numpy()
        else:
            lengths = np.diff(times.offsets.to_numpy())
            if bool((lengths != self.kind).any()):
                return None
            when = times.flatten().to_numpy().reshape(-1, self.kind)
        batch = pa.RecordBatch.from_arrays(data.flatten(), schema=self.schema)
        return UpdateColumns(batch, when, diffs.to_numpy())

    def _slow(self, body: memoryview, origin: str) -> UpdateColumns | Progress:
        """One message, value by value."""
        source = io.BytesIO(body)
        try:
            found: Any = fastavro.schemaless_reader(
                source, self._writer or self._union, None if self._writer is None else self._reader
            )
        except Exception as e:
            raise InvalidMessage("not a CDCv2 message in Avro", origin, detail=sentence(e)) from None
        if source.read(1):
            raise InvalidMessage("bytes behind the end of a CDCv2 message", origin)
        if isinstance(found, list):
            return self._row_by_row(cast("list[dict[str, Any]]", found), origin)
        return self._progress(cast("dict[str, Any]", found), origin)

    def _row_by_row(self, rows: list[dict[str, Any]], origin: str) -> UpdateColumns:
        times = [r["time"] for r in rows]
        if self.kind != INTEGERS and any(len(t) != self.kind for t in times):
            raise InvalidMessage(f"a time that has not {self.kind} components", origin)
        data = columns_of_rows([r["data"] for r in rows], self.schema, origin)
        shape = (len(rows),) if self.kind == INTEGERS else (len(rows), self.kind)
        when = np.array(times, np.int64).reshape(shape)
        return UpdateColumns(data, when, np.array([r["diff"] for r in rows], np.int64), origin)

    def _progress(self, record: dict[str, Any], origin: str) -> Progress:
        def time(value: Any) -> Time:
            return value if self.kind == INTEGERS else tuple(value)

        counts: list[dict[str, Any]] = record["counts"]
        return Progress(
            [time(t) for t in record["lower"]],
            [time(t) for t in record["upper"]],
            [(time(c["time"]), c["count"]) for c in counts],
            [c["content"] for c in counts] if self._digests else None,
            record["seal"] if self._digests else None,
            origin,
        )


def _parsed(schema: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(schema))
    except Exception as e:  # fastavro raises errors of any type
        raise InvalidValue("the schema is no Avro", detail=sentence(e)) from None


def _report(error: InvalidMessage, errors: list[InvalidMessage] | None) -> None:
    if errors is None:
        raise error
    errors.append(error)


def _file_header(record: dict[str, Any]) -> bytes:
    """The header of an Avro file of such records."""
    meta = {"avro.schema": json.dumps(record).encode(), "avro.codec": b"null"}
    parts = [b"Obj\x01", _varint(len(meta))]
    for key, value in meta.items():
        parts += [_varint(len(key)), key.encode(), _varint(len(value)), value]
    return b"".join([*parts, b"\x00", _SYNC])


def _blocks(file: memoryview) -> Any:
    """The blocks of an Avro file that we wrote: (records, bytes)."""
    at = 4
    while True:
        entries, at = _read_varint(file, at, "a file")
        if not entries:
            break
        for _ in range(2 * entries):
            length, at = _read_varint(file, at, "a file")
            at += length
    at += 16
    while at < len(file):
        count, at = _read_varint(file, at, "a file")
        size, at = _read_varint(file, at, "a file")
        yield count, file[at : at + size]
        at += size + 16


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, at: int, origin: str) -> tuple[int, int]:
    """The number at `at`, and the position of its end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
    raise InvalidMessage("not a CDCv2 message in Avro", origin, detail="A number does not end.")
