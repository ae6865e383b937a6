"""Objects that are tables themselves: Parquet files and Avro container files.

The columns of the relation are fixed when the source is created. Those of an object are taken by their
names: one that an object lacks is null, one of another type is converted where no value changes. A row group
or block belongs to the range in which it begins.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# The public interface reads until a file ends, and never ends when a block has bytes left behind its last
# record. Here only the records that the blocks count are read.
from polars_avro._avro_rs import AvroSource

from tidemill.cdcv2.wording import words
from tidemill.errors import InvalidValue, Unsupported
from tidemill.sources.contract import MAX_BATCH_ROWS, UpstreamError
from tidemill.sources.files.form import MAX_BLOCK_BYTES, MAX_HEADER_BYTES, avro_header
from tidemill.sources.objects.compression import NONE
from tidemill.sources.objects.lines import Broken, Stream
from tidemill.sources.objects.piece import ObjectPiece
from tidemill.types.arrow import arrow_type
from tidemill.types.model import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UINT2,
    UINT4,
    UINT8,
    Column,
    SqlType,
    numeric,
    type_name,
)
from tidemill.types.parse_name import parse_type

PARQUET, AVRO = "parquet", "avro"
# Blocks of an Avro file that are read together.
_BLOCKS_BYTES = 4 << 20
_FIRST_HEADER_BYTES = 64 << 10
_MARKER_BYTES = 16


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows by the columns of the relation. `offsets`: the row's number in a Parquet file, the byte of its
    block in an Avro file."""

    values: list[pa.Array]
    offsets: np.ndarray


_PLAIN: dict[pa.DataType, SqlType] = {
    pa.bool_(): BOOL,
    pa.int8(): INT2,
    pa.int16(): INT2,
    pa.int32(): INT4,
    pa.int64(): INT8,
    pa.uint8(): UINT2,
    pa.uint16(): UINT2,
    pa.uint32(): UINT4,
    pa.uint64(): UINT8,
    pa.float16(): FLOAT4,
    pa.float32(): FLOAT4,
    pa.float64(): FLOAT8,
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): BYTEA,
    pa.large_binary(): BYTEA,
    pa.date32(): DATE,
}


def _sql_type(name: str, t: pa.DataType) -> SqlType:
    if pa.types.is_dictionary(t):
        return _sql_type(name, t.value_type)
    if t in _PLAIN:
        return _PLAIN[t]
    if pa.types.is_fixed_size_binary(t):
        return BYTEA
    if pa.types.is_time(t):
        return TIME
    if pa.types.is_timestamp(t):
        return TIMESTAMP if t.tz is None else TIMESTAMPTZ
    if pa.types.is_decimal128(t) and 0 <= t.scale <= t.precision:
        return numeric(t.precision, t.scale)
    raise Unsupported(
        f'column "{name}" is of a type that is not supported: {t}',
        hint="Columns of lists, records and maps cannot be read from such files.",
    )


def table_columns(form: str, name: str, size: int, stream: Stream) -> list[list[str]]:
    """The columns of an object for the definition: names and types. Raises InvalidValue, Unsupported."""
    try:
        if form == PARQUET:
            schema = _parquet(stream, size).schema_arrow
        else:
            header = _AvroFile.open(stream, size)
            schema = header.rows([], 0).schema
    except _Wrong as e:
        raise InvalidValue(f'"{name}" is no {form.capitalize()} file', detail=str(e)) from None
    return [[field.name, type_name(_sql_type(field.name, field.type))] for field in schema]


def is_table(form: Mapping[str, Any]) -> bool:
    return form["format"] in (PARQUET, AVRO)


def typed_columns(form: Mapping[str, Any]) -> tuple[Column, ...]:
    return tuple(Column(name, parse_type(kind)) for name, kind in form["columns"])


class _Wrong(Exception):
    """An object is not what its format is."""


class _ObjectFile(io.RawIOBase):
    """An object as a file that can be read anywhere. What fails is kept: it is no fault of the object."""

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream = stream
        self._size = size
        self._at = 0
        self.failed: UpstreamError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        try:
            data = b"".join(self._stream(self._at, end)) if end > self._at else b""
        except UpstreamError as e:
            self.failed = e
            raise
        self._at += len(data)
        return data


def _parquet(stream: Stream, size: int) -> pq.ParquetFile:
    file = _ObjectFile(stream, size)
    try:
        return pq.ParquetFile(pa.PythonFile(file, mode="r"))
    except (OSError, pa.ArrowException) as e:
        raise file.failed or _Wrong(words(e)) from None


class _TableContents:
    # It can be bound in ranges, but a file that is not complete cannot be read.
    whole = False
    tailed = False

    def __init__(self, form: Mapping[str, Any]) -> None:
        self._columns = typed_columns(form)
        self._types = [arrow_type(column.type) for column in self._columns]

    def read(self, piece: ObjectPiece, stream: Stream, compression: str) -> Iterator[Columns | Broken]:
        if compression != NONE:
            if piece.lower == 0:
                yield Broken(0, f"it is compressed with {compression} as a whole")
            return
        last = 0
        try:
            for columns in self._rows(piece, stream):
                yield columns
                last = int(columns.offsets[-1])
        except _Wrong as e:
            yield Broken(last, str(e))

    def _rows(self, piece: ObjectPiece, stream: Stream) -> Iterator[Columns]:
        raise NotImplementedError

    def _converted(self, batch: pa.RecordBatch) -> list[pa.Array]:
        found: list[pa.Array] = []
        for column, t in zip(self._columns, self._types, strict=True):
            at = batch.schema.get_field_index(column.name)
            if at < 0:
                found.append(pa.nulls(batch.num_rows, t))
                continue
            values = batch.column(at)
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            try:
                found.append(_cast(values, t))
            except pa.ArrowException as e:
                why = f'its column "{column.name}" of {values.type} is no {column.type}: {words(e)}'
                raise _Wrong(why) from None
        return found


def _cast(values: pa.Array, t: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(values.type) or pa.types.is_time(values.type):
        # Nanoseconds are cut off.
        bare = values.cast(pa.timestamp("us", values.type.tz), safe=False) if _stamped(values) else values
        return bare.cast(t, safe=False)
    if pa.types.is_fixed_size_binary(values.type):
        values = values.cast(pa.binary())
    if pa.types.is_unsigned_integer(values.type) and pa.types.is_decimal(t):
        values = values.cast(pa.decimal128(20, 0))
    return values.cast(t)


def _stamped(values: pa.Array) -> bool:
    return pa.types.is_timestamp(values.type)


class ParquetContents(_TableContents):
    def _rows(self, piece: ObjectPiece, stream: Stream) -> Iterator[Columns]:
        file = _parquet(stream, piece.size)
        names = [c.name for c in self._columns if c.name in file.schema_arrow.names]
        number = 0
        for group in range(file.num_row_groups):
            meta = file.metadata.row_group(group)
            begins = (
                min(_begin_of(meta.column(n)) for n in range(meta.num_columns)) if meta.num_columns else 0
            )
            if piece.lower <= begins < piece.upper:
                at = number
                try:
                    for batch in file.iter_batches(MAX_BATCH_ROWS, row_groups=[group], columns=names):
                        offsets = np.arange(at, at + batch.num_rows)
                        yield Columns(self._converted(batch), offsets)
                        at += batch.num_rows
                except (OSError, pa.ArrowException) as e:
                    if isinstance(e.__cause__, UpstreamError):
                        raise e.__cause__ from None
                    raise _Wrong(f"its row group {group} cannot be read: {words(e)}") from None
            number += meta.num_rows


def _begin_of(column: Any) -> int:
    first = column.dictionary_page_offset
    data: int = column.data_page_offset
    return data if first is None else min(first, data)


@dataclass(frozen=True, slots=True)
class _AvroFile:
    """The header of a container file. `head` begins a file of uncompressed blocks with the same schema."""

    codec: str
    marker: bytes
    end: int
    head: bytes

    @staticmethod
    def open(stream: Stream, size: int) -> _AvroFile:
        wrong: InvalidValue | None = None
        for limit in (_FIRST_HEADER_BYTES, MAX_HEADER_BYTES):
            data = b"".join(stream(0, min(size, limit)))
            try:
                header = avro_header(io.BytesIO(data))
            except InvalidValue as e:
                wrong = e
                continue
            schema = json.dumps(_without_uuids(json.loads(header.schema))).encode()
            meta = {b"avro.schema": schema, b"avro.codec": header.codec.encode()}
            head = b"Obj\x01" + _long(len(meta))
            for key, value in meta.items():
                head += _long(len(key)) + key + _long(len(value)) + value
            return _AvroFile(header.codec, header.marker, header.end, head + b"\0" + header.marker)
        raise _Wrong("" if wrong is None else wrong.detail or wrong.primary)

    def rows(self, blocks: list[bytes], count: int) -> pa.Table:
        """The records of whole blocks, with their markers."""
        data = io.BytesIO(self.head + b"".join(blocks))
        try:
            source = AvroSource([lambda: nullcontext(data)], False, False)
            if not count:
                return cast("Any", _empty(source))
            batches = [pa.record_batch(cast("Any", b)) for b in source.batch_iter(count, None)]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:  # a panic of the reader is no Exception
            raise _Wrong(f"a block cannot be read: {words(cast('Exception', e))}") from None
        return pa.Table.from_batches(batches)


def _empty(source: Any) -> pa.Table:
    return pa.table(source.schema())


def _without_uuids(schema: Any) -> Any:
    """UUIDs as the text that they are."""
    if isinstance(schema, dict):
        given = cast("dict[str, Any]", schema)
        bare = given.get("type") == "string"
        return {k: _without_uuids(v) for k, v in given.items() if not (bare and k == "logicalType")}
    return (
        [_without_uuids(part) for part in cast("list[Any]", schema)] if isinstance(schema, list) else schema
    )


def _long(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class AvroContents(_TableContents):
    def _rows(self, piece: ObjectPiece, stream: Stream) -> Iterator[Columns]:
        file = _AvroFile.open(stream, piece.size)
        blocks: list[bytes] = []
        counts: list[int] = []
        begins: list[int] = []
        held = 0
        wrong: _Wrong | None = None
        found = _blocks(file, piece, stream)
        end = (0, 0, b"")
        while True:
            try:
                at, count, block = next(found, end)
            except _Wrong as e:
                wrong, (at, count, block) = e, end
            if block:
                blocks.append(block)
                counts.append(count)
                begins.append(at)
                held += len(block)
            if blocks and (not block or held >= _BLOCKS_BYTES or sum(counts) >= MAX_BATCH_ROWS):
                yield from self._decoded(file, blocks, counts, begins)
                blocks, counts, begins, held = [], [], [], 0
            if wrong is not None:
                raise wrong
            if not block:
                return

    def _decoded(
        self, file: _AvroFile, blocks: list[bytes], counts: list[int], begins: list[int]
    ) -> Iterator[Columns]:
        table = file.rows(blocks, sum(counts))
        if table.num_rows != sum(counts):
            raise _Wrong(f"its block at byte {begins[0]} has {table.num_rows} of {sum(counts)} records")
        offsets = np.repeat(np.array(begins, np.int64), counts)
        at = 0
        for batch in table.to_batches(MAX_BATCH_ROWS):
            yield Columns(self._converted(batch), offsets[at : at + batch.num_rows])
            at += batch.num_rows


def _blocks(file: _AvroFile, piece: ObjectPiece, stream: Stream) -> Iterator[tuple[int, int, bytes]]:
    """The blocks that begin in the piece: where, how many records, and the bytes with the marker."""
    at = max(piece.lower, file.end)
    window = _Window(stream, piece.size, at)
    if piece.lower > file.end:
        # Behind the next marker; it may end right at the piece's beginning.
        window = _Window(stream, piece.size, max(file.end - _MARKER_BYTES, at - _MARKER_BYTES))
        found = window.find(file.marker, piece.upper)
        if found is None:
            return
        at = found
    while at < min(piece.upper, piece.size):
        try:
            count, size, begins = window.block_head(at)
        except EOFError:
            raise _Wrong(f"it ends within the block at byte {at}") from None
        end = begins + size + _MARKER_BYTES
        if count < 0 or not 0 <= size <= MAX_BLOCK_BYTES:
            raise _Wrong(f"the block at byte {at} says that it has {count} records in {size} bytes")
        if end > piece.size:
            raise _Wrong(f"it ends within the block at byte {at}")
        block = window.take(at, end)
        if not block.endswith(file.marker):
            raise _Wrong(f"the block at byte {at} has no end")
        if count:
            yield at, count, block
        at = end


class _Window:
    """The part of an object that is in memory, from `begin` on; it only moves forward."""

    def __init__(self, stream: Stream, size: int, begin: int) -> None:
        self._stream = stream
        self._size = size
        self._begin = begin
        self._data = b""

    def _reach(self, end: int) -> None:
        have = self._begin + len(self._data)
        if have < end and have < self._size:
            upper = min(self._size, max(end, have + _BLOCKS_BYTES))
            self._data += b"".join(self._stream(have, upper))

    def take(self, begin: int, end: int) -> bytes:
        self._data = self._data[begin - self._begin :]
        self._begin = begin
        self._reach(end)
        return self._data[: end - begin]

    def find(self, marker: bytes, upper: int) -> int | None:
        """The byte behind the first marker that ends at or before `upper`."""
        while True:
            self._reach(self._begin + _BLOCKS_BYTES)
            found = self._data.find(marker)
            if found >= 0:
                behind = self._begin + found + _MARKER_BYTES
                return behind if behind < upper else None
            begin = max(self._begin + 1, self._begin + len(self._data) - _MARKER_BYTES + 1)
            if begin >= upper or self._begin + len(self._data) >= self._size:
                return None
            self._data, self._begin = self._data[begin - self._begin :], begin

    def block_head(self, at: int) -> tuple[int, int, int]:
        """How many records, how many bytes, and where these begin. Raises EOFError."""
        head = io.BytesIO(self.take(at, at + 20))
        count, size = _number(head), _number(head)
        return count, size, at + head.tell()


def _number(source: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = source.read(1)
        if not byte or shift > 63:
            raise EOFError
        value |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return (value >> 1) ^ -(value & 1)
