"""Protobuf message decoder. Doubtful messages are parsed again by Protobuf's own parser, in C (upb).

Fields that the schema lacks are skipped, as Protobuf specifies. Bytes that are not a complete message, down
to the last byte, are an error. Framed messages carry a schema id and the index of the message in that schema:
it must be the message of the source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from tidemill.decode.avro.schema import SchemaError
from tidemill.decode.contract import Decoded
from tidemill.decode.cursor import MessageCursor
from tidemill.decode.gather import Gathered
from tidemill.decode.protobuf.columns import columns_of
from tidemill.decode.protobuf.compiler import compiled
from tidemill.decode.protobuf.descriptors import find_message, message_at
from tidemill.decode.protobuf.plan import MessagePlan
from tidemill.decode.protobuf.values import getters
from tidemill.decode.reader import MessageReader, Unreadable
from tidemill.decode.registry import PROTOBUF, Registry
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import valid_mask
from tidemill.types.model import Column

PREFIX = "protobuf deserialization error: "
MAGIC = 0
HEAD_BYTES = 5
# Levels of nested messages in the path of a frame.
MAX_PATH = 100
# Frames whose message type is cached; a topic has a few.
MAX_REMEMBERED = 1000


class ProtobufDecoder:
    """`files` is a FileDescriptorSet, `message` the full name of a message type in it. Without `registry` the
    ids in frames are not checked."""

    def __init__(self, files: bytes, message: str, *, framed: bool, registry: Registry | None = None) -> None:
        descriptor = find_message(files, message)
        self._name: str = descriptor.full_name
        self._parse: Any = message_factory.GetMessageClass(descriptor).FromString
        self._getters = getters(descriptor)
        self.columns: tuple[Column, ...] = columns_of(descriptor)
        self._plan = MessagePlan(descriptor, self.columns)
        self._types = [arrow_type(column.type) for column in self.columns]
        self._framed = framed
        self._registry = registry
        # By (schema id, path): the reason why such messages are not the source's, or None.
        self._others: dict[tuple[int, tuple[int, ...]], str | None] = {}

    def decode(self, messages: pa.Array) -> Decoded:
        gathered = Gathered(len(messages), self._types)
        cursor = MessageCursor.over(messages)
        begin = cursor.pos.copy()
        rows = gathered.admit(np.flatnonzero(valid_mask(messages)), cursor.end - begin, PREFIX)
        if self._framed:
            rows = self._unframed(messages, cursor, rows, gathered)
        if len(rows):
            framed = (cursor.pos - begin)[rows]
            part = cursor if len(rows) == len(cursor) else cursor.take(rows)
            gathered.add(rows, self._plan.read(part))
            doubtful = np.flatnonzero(part.doubt)
            if len(doubtful):
                self._read_again(messages, rows[doubtful], framed[doubtful], gathered)
        return gathered.decoded()

    def _read_again(
        self, messages: pa.Array, rows: np.ndarray, framed: np.ndarray, gathered: Gathered
    ) -> None:
        """Uses Protobuf's own parser; `framed` is the number of bytes of each frame."""
        raws = messages.take(pa.array(rows)).to_pylist()
        for row, raw, behind in zip(rows.tolist(), raws, framed.tolist(), strict=True):
            try:
                gathered.replace(row, self._values(raw[behind:]))
            except Unreadable as error:
                gathered.fail(row, PREFIX + str(error))

    def _values(self, body: bytes) -> list[Any]:
        try:
            message = self._parse(body)
            if not message.IsInitialized():
                missing = ", ".join(message.FindInitializationErrors())
                raise Unreadable(f"message lacks the required field {missing}")
            return [get(message) for get in self._getters]
        except DecodeError as error:
            raise Unreadable(str(error).rpartition(": ")[2]) from None
        except UnicodeDecodeError:
            raise Unreadable("a string is no UTF-8") from None

    def _unframed(
        self, messages: pa.Array, cursor: MessageCursor, rows: np.ndarray, gathered: Gathered
    ) -> np.ndarray:
        """The messages of the source with a valid frame; advances the cursor past the frame."""
        octets, pos = cursor.bytes.octets, cursor.pos[rows]
        length = cursor.end[rows] - pos
        # Nearly all are the first message of a schema: an empty path.
        first = (length > HEAD_BYTES) & (octets[pos] == MAGIC) & (octets[pos + HEAD_BYTES] == 0)
        taken = np.where(first, HEAD_BYTES + 1, 0)
        good = first.copy()
        ids = cursor.bytes.view(">u4")[pos + 1]
        for schema_id in np.unique(ids[first]).tolist():
            why = self._other(schema_id, (0,))
            if why is not None:
                wrong = np.flatnonzero(first & (ids == schema_id))
                good[wrong] = False
                for row in rows[wrong].tolist():
                    gathered.fail(row, PREFIX + why)
        for i in np.flatnonzero(~first).tolist():
            row = int(rows[i])
            try:
                taken[i] = self._frame(messages[row].as_py())
                good[i] = True
            except Unreadable as error:
                gathered.fail(row, PREFIX + str(error))
        cursor.pos[rows] += taken
        return rows[good]

    def _frame(self, raw: bytes) -> int:
        """The size of a message's frame."""
        if len(raw) < HEAD_BYTES:
            raise Unreadable(
                f"Confluent-style serialization takes at least {HEAD_BYTES} bytes, got {len(raw)}"
            )
        if raw[0] != MAGIC:
            raise Unreadable(f"wrong Confluent-style serialization magic: expected {MAGIC}, got {raw[0]}")
        reader = MessageReader(raw, HEAD_BYTES)
        count = reader.zigzag()
        if not 0 <= count <= MAX_PATH:
            raise Unreadable(f"a frame with a path of {count} messages")
        path = tuple(reader.zigzag() for _ in range(count)) or (0,)
        why = self._other(int.from_bytes(raw[1:HEAD_BYTES], "big"), path)
        if why is not None:
            raise Unreadable(why)
        return reader.pos

    def _other(self, schema_id: int, path: tuple[int, ...]) -> str | None:
        """The reason why messages with this frame are not the source's."""
        if self._registry is None:
            return None
        key = (schema_id, path)
        if key not in self._others:
            if len(self._others) >= MAX_REMEMBERED:
                self._others.clear()
            self._others[key] = self._compare(schema_id, path, self._registry)
        return self._others[key]

    def _compare(self, schema_id: int, path: tuple[int, ...], registry: Registry) -> str | None:
        schema = registry.by_id(schema_id)
        if schema.kind != PROTOBUF:
            return f"schema {schema_id} is of type {schema.kind}, not {PROTOBUF}"
        try:
            name = message_at(compiled(schema.text, schema.references), path)
        except SchemaError as error:
            return f"schema {schema_id}: {error.primary}"
        return None if name == self._name else f'message is a "{name}", not a "{self._name}"'
