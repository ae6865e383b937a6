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
from tidemill.errors import InvalidValue
from tidemill.sources.contract import MAX_BATCH_ROWS, UpstreamError
from tidemill.sources.objects.avro_file import BLOCKS_BYTES, AvroFile, Wrong, blocks_of
from tidemill.sources.objects.compression import NONE
from tidemill.sources.objects.lines import Broken, Stream
from tidemill.sources.objects.piece import ObjectPiece
from tidemill.sources.objects.values import sql_type, stored
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, type_name
from tidemill.types.parse_name import parse_type

PARQUET, AVRO = "parquet", "avro"
# Records of a block of Avro, so that the byte of the block and the number of the record fit into one number,
# of files up to 8 TB.
MAX_BLOCK_RECORDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows by the columns of the relation. `offsets`: the row's number in a Parquet file, the byte of its
    block in an Avro file. `places` rise with each row of an object."""

    values: list[pa.Array]
    offsets: np.ndarray
    places: np.ndarray


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
    if not len(schema):
        raise InvalidValue(f'"{name}" has no columns')
    return [[field.name, type_name(sql_type((field.name,), field.type))] for field in schema]


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
            places = batch.schema.get_all_field_indices(column.name)
            if not places:
                found.append(pa.nulls(batch.num_rows, t))
                continue
            if len(places) > 1:
                raise Wrong(f'it has {len(places)} columns "{column.name}"')
            values = batch.column(places[0])
            try:
                found.append(stored(values, column.type))
            except pa.ArrowException as e:
                why = f'its column "{column.name}" of {values.type} is no {column.type}: {words(e)}'
                raise Wrong(why) from None
        return found


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
                        yield Columns(self._converted(batch), offsets, offsets)
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
        if max(counts) > MAX_BLOCK_RECORDS:
            raise Wrong(f"its block at byte {begins[np.argmax(counts)]} has {max(counts)} records")
        offsets = np.repeat(np.array(begins, np.int64), counts)
        firsts = np.cumsum(counts) - counts
        places = offsets * MAX_BLOCK_RECORDS + np.arange(len(offsets)) - np.repeat(firsts, counts)
        at = 0
        for batch in table.to_batches(MAX_BATCH_ROWS):
            end = at + batch.num_rows
            yield Columns(self._converted(batch), offsets[at:end], places[at:end])
            at = end
