"""Avro container files: their header, and whole blocks as columns. Called by `tables`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

# The public interface reads until a file ends, and never ends when a block has bytes left behind its last
# record. Here only the records that the blocks count are read.
from polars_avro._avro_rs import AvroSource

from tidemill.cdcv2.wording import words
from tidemill.errors import InvalidValue
from tidemill.sources.files.form import MAX_BLOCK_BYTES, MAX_HEADER_BYTES, avro_header
from tidemill.sources.objects.lines import Stream
from tidemill.sources.objects.piece import ObjectPiece

# Bytes of blocks that are read together.
BLOCKS_BYTES = 4 << 20
_FIRST_HEADER_BYTES = 64 << 10
_MARKER_BYTES = 16


class Wrong(Exception):
    """An object is not what its format is."""


@dataclass(frozen=True, slots=True)
class AvroFile:
    """The header of a container file. `head` begins a file of uncompressed blocks with the same schema."""

    codec: str
    marker: bytes
    end: int
    head: bytes

    @staticmethod
    def open(stream: Stream, size: int) -> AvroFile:
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
            return AvroFile(header.codec, header.marker, header.end, head + b"\0" + header.marker)
        raise Wrong("" if wrong is None else wrong.detail or wrong.primary)

    def rows(self, blocks: list[bytes], counts: list[int]) -> pa.Table:
        """The records of whole blocks, with their markers. Each block is read alone: behind the last record
        of one that has bytes left, the reader would never end."""
        if not blocks:
            try:
                return pa.table(cast("Any", self._source(b"").schema()))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as e:  # a panic of the reader is no Exception
                raise Wrong(f"its schema has no columns: {words(cast('Exception', e))}") from None
        return pa.concat_tables([self._block(b, n) for b, n in zip(blocks, counts, strict=True)])

    def _source(self, block: bytes) -> AvroSource:
        data = io.BytesIO(self.head + block)
        return AvroSource([lambda: nullcontext(data)], False, False)

    def _block(self, block: bytes, count: int) -> pa.Table:
        try:
            batch = pa.record_batch(cast("Any", next(self._source(block).batch_iter(count, None))))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as e:  # a panic of the reader is no Exception
            raise Wrong(f"a block cannot be read: {words(cast('Exception', e))}") from None
        return pa.Table.from_batches([batch])


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


def blocks_of(file: AvroFile, piece: ObjectPiece, stream: Stream) -> Iterator[tuple[int, int, bytes]]:
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
            raise Wrong(f"it ends within the block at byte {at}") from None
        end = begins + size + _MARKER_BYTES
        if count < 0 or not 0 <= size <= MAX_BLOCK_BYTES:
            raise Wrong(f"the block at byte {at} says that it has {count} records in {size} bytes")
        if end > piece.size:
            raise Wrong(f"it ends within the block at byte {at}")
        block = window.take(at, end)
        if not block.endswith(file.marker):
            raise Wrong(f"the block at byte {at} has no end")
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
            upper = min(self._size, max(end, have + BLOCKS_BYTES))
            self._data += b"".join(self._stream(have, upper))

    def take(self, begin: int, end: int) -> bytes:
        self._data = self._data[begin - self._begin :]
        self._begin = begin
        self._reach(end)
        return self._data[: end - begin]

    def find(self, marker: bytes, upper: int) -> int | None:
        """The byte behind the first marker that ends at or before `upper`."""
        while True:
            self._reach(self._begin + BLOCKS_BYTES)
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
