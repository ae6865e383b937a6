"""Objects that are tables themselves: Parquet files and Avro container files.

The columns of the relation are fixed when the source is created. Those of an object are taken by their
names: one that an object lacks is null, one of another type is converted where no value changes. A row group
or block belongs to the range in which it begins.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.cdcv2.wording import words
from tidemill.errors import InvalidValue, Unsupported
from tidemill.sources.contract import MAX_BATCH_ROWS, UpstreamError
from tidemill.sources.objects.avro_file import BLOCKS_BYTES, AvroFile, Wrong, blocks_of
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
            header = AvroFile.open(stream, size)
            schema = header.rows([], []).schema
    except Wrong as e:
        raise InvalidValue(f'"{name}" is no {form.capitalize()} file', detail=str(e)) from None
    return [[field.name, type_name(_sql_type(field.name, field.type))] for field in schema]


def is_table(form: Mapping[str, Any]) -> bool:
    return form["format"] in (PARQUET, AVRO)


def typed_columns(form: Mapping[str, Any]) -> tuple[Column, ...]:
    return tuple(Column(name, parse_type(kind)) for name, kind in form["columns"])


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
        raise file.failed or Wrong(words(e)) from None


class _TableContents(ABC):
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
        except Wrong as e:
            yield Broken(last, str(e))

    @abstractmethod
    def _rows(self, piece: ObjectPiece, stream: Stream) -> Iterator[Columns]: ...

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
                raise Wrong(why) from None
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
                    raise Wrong(f"its row group {group} cannot be read: {words(e)}") from None
            number += meta.num_rows


def _begin_of(column: Any) -> int:
    first = column.dictionary_page_offset
    data: int = column.data_page_offset
    return data if first is None else min(first, data)


class AvroContents(_TableContents):
    def _rows(self, piece: ObjectPiece, stream: Stream) -> Iterator[Columns]:
        file = AvroFile.open(stream, piece.size)
        blocks: list[bytes] = []
        counts: list[int] = []
        begins: list[int] = []
        held = 0
        wrong: Wrong | None = None
        found = blocks_of(file, piece, stream)
        end = (0, 0, b"")
        while True:
            try:
                at, count, block = next(found, end)
            except Wrong as e:
                wrong, (at, count, block) = e, end
            if block:
                blocks.append(block)
                counts.append(count)
                begins.append(at)
                held += len(block)
            if blocks and (not block or held >= BLOCKS_BYTES or sum(counts) >= MAX_BATCH_ROWS):
                yield from self._decoded(file, blocks, counts, begins)
                blocks, counts, begins, held = [], [], [], 0
            if wrong is not None:
                raise wrong
            if not block:
                return

    def _decoded(
        self, file: AvroFile, blocks: list[bytes], counts: list[int], begins: list[int]
    ) -> Iterator[Columns]:
        table = file.rows(blocks, counts)
        if table.num_rows != sum(counts):
            raise Wrong(f"its block at byte {begins[0]} has {table.num_rows} of {sum(counts)} records")
        offsets = np.repeat(np.array(begins, np.int64), counts)
        at = 0
        for batch in table.to_batches(MAX_BATCH_ROWS):
            yield Columns(self._converted(batch), offsets[at : at + batch.num_rows])
            at += batch.num_rows
