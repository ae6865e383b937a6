"""Messages of a file and their start positions: lines of JSON, or records of an Avro file.

Called by `reader` in the tasks, and by the engine for the schema of a file. A message belongs to the range of
bytes in which it begins, so a file can be split anywhere.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import fastavro

from tidemill.cdcv2.wording import Malformed, sentence, words
from tidemill.decode.contract import MAX_MESSAGE_BYTES
from tidemill.errors import InvalidValue

MAGIC = b"Obj\x01"
# Limit for the header of an Avro file. Schemas are some kilobytes.
MAX_HEADER_BYTES = 16 << 20
# A block of an Avro file: writers cut them at some tens of kilobytes.
MAX_BLOCK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Broken:
    """From here on the file says nothing that can be read, and why."""

    why: str


# The byte at which it begins, and the message.
Found = tuple[int, bytes | Broken]


def lines(file: BinaryIO, lower: int, upper: int) -> Iterator[Found]:
    """The lines that begin in [lower, upper); empty ones are none."""
    if lower:
        # The one that began before is not ours, up to its end.
        file.seek(lower - 1)
        lower += _skip(file) - 1
    at = lower
    while at < upper:
        line = file.readline(MAX_MESSAGE_BYTES + 1)
        if not line:
            return
        begun, at = at, at + len(line)
        if not line.endswith(b"\n") and len(line) > MAX_MESSAGE_BYTES:
            at += _skip(file)
            yield begun, Broken(f"a line of more than {MAX_MESSAGE_BYTES} bytes")
        elif line.strip():
            yield begun, line.rstrip(b"\r\n")


def _skip(file: BinaryIO) -> int:
    """Read to the end of the line; how much that was."""
    skipped = 0
    while piece := file.readline(1 << 20):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


@dataclass(frozen=True, slots=True)
class Header:
    """Of an Avro file: its schema, how its blocks are compressed, the marker between them, and where the
    first begins."""

    schema: str
    codec: str
    marker: bytes
    end: int


def avro_header(file: BinaryIO) -> Header:
    """Raises InvalidValue."""
    file.seek(0)
    head = io.BytesIO(file.read(MAX_HEADER_BYTES))
    try:
        if head.read(len(MAGIC)) != MAGIC:
            raise Malformed("it does not begin as an Avro file does")
        meta: dict[bytes, bytes] = {}
        while count := _number(head):
            if count < 0:
                count = -count
                _number(head)
            for _ in range(count):
                key = _bytes(head)
                meta[key] = _bytes(head)
        marker = head.read(16)
        if len(marker) != 16:
            raise Malformed("it ends too early")
        schema = meta[b"avro.schema"].decode()
        json.loads(schema)
    except (ValueError, KeyError, EOFError) as e:
        raise InvalidValue("this is no Avro file", detail=sentence(e)) from None
    return Header(schema, meta.get(b"avro.codec", b"null").decode("utf-8", "replace"), marker, head.tell())


def records(file: BinaryIO, header: Header, lower: int, upper: int) -> Iterator[Found]:
    """The records of the blocks that begin in [lower, upper), as their bytes."""
    at = header.end
    parsed: Any = None
    file.seek(at)
    while at < upper:
        try:
            count, size = _number(file), _number(file)
        except EOFError:
            if at >= lower and file.seek(0, io.SEEK_END) > at:
                yield at, Broken("the file ends within a block")
            return
        begins = file.tell()
        if count < 0 or not 0 <= size <= MAX_BLOCK_BYTES:
            if at >= lower:
                yield at, Broken(f"a block of {count} records in {size} bytes")
            return
        if at < lower:
            at = file.seek(begins + size + len(header.marker))
            continue
        data, marker = file.read(size), file.read(len(header.marker))
        if len(data) != size or marker != header.marker:
            yield (
                at,
                Broken("the file ends within a block" if len(marker) < 16 else "a block without its end"),
            )
            return
        try:
            body = _expanded(data, header.codec)
            if count == 1:
                yield at, body
            else:
                parsed = parsed or fastavro.parse_schema(json.loads(header.schema))
                yield from ((at, record) for record in _parted(body, count, parsed))
        except Exception as e:  # fastavro raises errors of any type
            yield at, Broken(f"a block cannot be read: {words(e)}")
        at = begins + size + len(header.marker)


def _parted(body: bytes, count: int, schema: Any) -> list[bytes]:
    """The records of a block, each by its bytes."""
    source = io.BytesIO(body)
    found: list[bytes] = []
    for _ in range(count):
        begins = source.tell()
        fastavro.schemaless_reader(source, schema, None)
        found.append(body[begins : source.tell()])
    if source.tell() != len(body):
        raise Malformed("bytes behind the last record of a block")
    return found


def _expanded(data: bytes, codec: str) -> bytes:
    if codec == "null":
        return data
    if codec != "deflate":
        raise Malformed(f"blocks are compressed by {codec}, which is not supported; null and deflate are")
    expander = zlib.decompressobj(-15)
    body = expander.decompress(data, MAX_BLOCK_BYTES)
    if expander.unconsumed_tail:
        raise Malformed(f"a block of more than {MAX_BLOCK_BYTES} bytes")
    return body


def _number(source: BinaryIO) -> int:
    """A variable-length number. Raises EOFError."""
    value = shift = 0
    while True:
        byte = source.read(1)
        if not byte or shift > 63:
            raise EOFError("no number")
        value |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return (value >> 1) ^ -(value & 1)


def _bytes(source: BinaryIO) -> bytes:
    size = _number(source)
    data = source.read(size) if 0 <= size <= MAX_HEADER_BYTES else b""
    if len(data) != size:
        raise Malformed("it ends too early")
    return data
