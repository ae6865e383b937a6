"""The input of `tidemill cdcv2 inspect`: files, the standard input, or a Kafka topic.

Each input yields messages with their origins in order, and reports its progress. A message that cannot be
read is yielded as an error. An input that cannot be opened raises.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from tidemill.cdcv2.messages import Message
from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.survey import StreamReport
from tidemill.cdcv2.untyped import AVRO_FILE, MAX_MESSAGE_BYTES, avro_file, avro_reader, from_json
from tidemill.cdcv2.wording import sentence
from tidemill.errors import InvalidValue, TidemillError, UndefinedObject

if TYPE_CHECKING:
    from tidemill.sources.kafka.consume import Range

STDIN = "-"
# Partitions that are read at once, in the order of their records' timestamps. Each has its own client.
# If there are more partitions, they are read in groups of this size.
PARTITIONS_AT_ONCE = 16
_NOT_FOUND = 404

# Called with the bytes and the origin of a record.
Reader = Callable[[bytes, str], Message]


@dataclass(frozen=True, slots=True)
class MessageInput:
    """`total`: the number of `unit`s to read (None: unknown). `read` yields messages and calls its argument
    with the number of units that were read since the last call."""

    name: str
    unit: str
    total: int | None
    read: Callable[[Callable[[int], None]], Iterator[StreamReport]]


# -- files


def files(names: Sequence[str]) -> MessageInput:
    """Files, all files of folders (except names that begin with . or _), and - for the standard input. Raises
    UndefinedObject."""
    paths = [path for name in names for path in _files(name)]
    sizes = [0 if p == STDIN else os.path.getsize(p) for p in paths]

    def read(advance: Callable[[int], None]) -> Iterator[StreamReport]:
        for path in paths:
            yield from _file(path, advance)

    known = None if STDIN in paths else sum(sizes)
    shown = paths[0] if len(paths) == 1 else f"{len(paths)} files"
    return MessageInput("the standard input" if shown == STDIN else shown, "bytes", known, read)


def _files(name: str) -> list[str]:
    if name == STDIN:
        return [name]
    path = Path(name)
    if path.is_dir():
        found = sorted(str(p) for p in path.rglob("*") if p.is_file() and p.name[0] not in "._")
        if not found:
            raise UndefinedObject(f'the folder "{name}" has no files')
        return found
    if not path.exists():
        raise UndefinedObject(f'there is no file "{name}"', hint="For a topic, name the --brokers.")
    return [name]


def _file(path: str, advance: Callable[[int], None]) -> Iterator[StreamReport]:
    if path == STDIN:
        yield from _messages(sys.stdin.buffer, "the standard input", advance)
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 closed below
    except OSError as e:
        raise InvalidValue(f'the file "{path}" cannot be read', detail=sentence(e)) from None
    with file:
        yield from _messages(file, path, advance)


def _messages(source: Any, name: str, advance: Callable[[int], None]) -> Iterator[StreamReport]:
    """`source` must support `peek`."""
    if bytes(source.peek(len(AVRO_FILE))[: len(AVRO_FILE)]) == AVRO_FILE:
        counted = cast("BinaryIO", _Counted(source, advance))
        for said in avro_file(counted, name):
            yield StreamReport(said)
        return
    number = 0
    # A line that is longer than any message is read in pieces. None of them is a message.
    while line := source.readline(MAX_MESSAGE_BYTES + 2):
        number += 1
        advance(len(line))
        if line.strip():
            yield _heard(from_json, line.rstrip(b"\r\n"), f"{name}, line {number}")


class _Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, source: BinaryIO, advance: Callable[[int], None]) -> None:
        self._source = source
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._advance(len(data))
        return data


def _heard(reader: Reader, raw: bytes, origin: str, at: int | None = None) -> StreamReport:
    try:
        return StreamReport(reader(raw, origin), at)
    except InvalidMessage as e:
        return StreamReport(e, at)


# -- Kafka


def topic(name: str, brokers: str, registry: str | None, schema: str | None) -> MessageInput:
    """A topic from its beginning to its present end. Raises UpstreamError, UndefinedObject, and the errors of
    the registry."""
    from tidemill.sources.kafka.consume import Range, settings_of
    from tidemill.sources.kafka.metadata import describe_topic

    connection = {"brokers": [b.strip() for b in brokers.split(",") if b.strip()]}
    reader = _reader(registry, schema)
    found = describe_topic(connection, name)
    settings = settings_of(connection, None)
    ranges = [Range(name, p, low, high, True) for p, (low, high) in sorted(found.partitions.items())]

    def read(advance: Callable[[int], None]) -> Iterator[StreamReport]:
        for first in range(0, len(ranges), PARTITIONS_AT_ONCE):
            together = ranges[first : first + PARTITIONS_AT_ONCE]
            parts = [_partition(settings, one, reader, advance) for one in together]
            yield from heapq.merge(*parts, key=lambda heard: heard.at or 0)

    total = sum(r.upper - r.lower for r in ranges)
    return MessageInput(f"topic {name}", "records", total, read)


def _partition(
    settings: Any, of: Range, reader: Reader, advance: Callable[[int], None]
) -> Iterator[StreamReport]:
    from tidemill.sources.kafka.consume import Wanted, read_range

    for lot in read_range(settings, of, Wanted(timestamps=True)):
        messages = lot.messages
        if messages is None:
            continue
        advance(len(messages))
        stamps = [] if messages.timestamps is None else messages.timestamps.tolist()
        for raw, offset, at in zip(
            messages.values.to_pylist(), messages.offsets.tolist(), stamps, strict=True
        ):
            origin = f"topic {of.topic}, partition {of.partition}, offset {offset}"
            if raw is None:
                yield StreamReport(InvalidMessage("a record without a value", origin), at)
            else:
                yield _heard(reader, raw, origin, at if at >= 0 else None)


def _reader(registry: str | None, schema: str | None) -> Reader:
    if registry is not None:
        return _Registered(registry)
    if schema is None:
        return from_json
    try:
        text = Path(schema).read_text()
    except (OSError, ValueError) as e:
        raise InvalidValue(f'the file "{schema}" cannot be read', detail=sentence(e)) from None
    return avro_reader(text)


class _Registered:
    """Reads messages in Confluent's framing, each by the schema whose id it carries."""

    def __init__(self, url: str) -> None:
        from tidemill.decode.registry import Registry

        self._registry = Registry({"url": url})
        # By schema id: the reader, or why there is none (unknown id, or not Avro).
        self._readers: dict[int, Reader | TidemillError] = {}

    def __call__(self, raw: bytes, origin: str) -> Message:
        if len(raw) < 5 or raw[0] != 0:
            raise InvalidMessage("not a message in Confluent's framing", origin)
        number = int.from_bytes(raw[1:5], "big")
        if number not in self._readers:
            self._readers[number] = self._opened(number)
        reader = self._readers[number]
        if isinstance(reader, TidemillError):
            raise InvalidMessage(f"no schema for the message: {reader.primary}", origin)
        return reader(raw[5:], origin)

    def _opened(self, number: int) -> Reader | TidemillError:
        from tidemill.decode.avro.schema import SchemaError
        from tidemill.decode.registry import RegistryError

        try:
            return avro_reader(self._registry.schema_text(number))
        except RegistryError as e:
            if e.status != _NOT_FOUND:
                raise
            return e
        except (SchemaError, InvalidValue) as e:
            return e
