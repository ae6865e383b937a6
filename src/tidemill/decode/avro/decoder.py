"""Avro message decoder: framing, one plan per writer schema, errors.

Messages are grouped by their writer schema and read one group at a time. A message must be consumed to its
last byte. Messages that the columnar reader doubts are read again one by one; that reader reports their
errors.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemill.decode.avro.columns import columns_of
from tidemill.decode.avro.nested import RecordNode
from tidemill.decode.avro.plan import ReadNode
from tidemill.decode.avro.resolve import Incompatible, resolve
from tidemill.decode.avro.schema import Schema, SchemaError, parse_schema
from tidemill.decode.contract import Decoded
from tidemill.decode.cursor import MessageCursor
from tidemill.decode.gather import Gathered
from tidemill.decode.reader import MessageReader, Unreadable
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import valid_mask
from tidemill.types.model import Column

PREFIX = "avro deserialization error: "
# A zero byte, then the schema's id, big-endian.
FRAME_BYTES = 5
MAGIC = 0


class WriterSchemas(Protocol):
    """Source of the schemas of framed messages."""

    def schema_text(self, schema_id: int) -> str:
        """The schema's JSON, references inlined. Raises errors that stall the source."""
        ...


class AvroDecoder:
    """`framed` messages contain the id of their schema. Without `writers` all are written with the reader's
    schema, and the id is ignored."""

    def __init__(self, schema: str, *, framed: bool, writers: WriterSchemas | None = None) -> None:
        self._reader = parse_schema(schema)
        self.columns: tuple[Column, ...] = columns_of(self._reader)
        self._types = [arrow_type(column.type) for column in self.columns]
        self._framed = framed
        self._writers = writers
        # By the writer's id (None: the reader's schema): a plan, or the error.
        self._plans: dict[int | None, ReadNode | str] = {}

    def decode(self, messages: pa.Array) -> Decoded:
        gathered = Gathered(len(messages), self._types)
        cursor = MessageCursor.over(messages)
        rows = gathered.admit(np.flatnonzero(valid_mask(messages)), cursor.end - cursor.pos, PREFIX)
        if not self._framed:
            self._read(messages, cursor, rows, None, gathered)
            return gathered.decoded()
        rows = self._unframed(cursor, rows, gathered)
        if self._writers is None:
            self._read(messages, cursor, rows, None, gathered)
            return gathered.decoded()
        ids = cursor.bytes.view(">u4")[cursor.pos[rows] - (FRAME_BYTES - 1)]
        for schema_id in np.unique(ids).tolist():
            self._read(messages, cursor, rows[ids == schema_id], schema_id, gathered)
        return gathered.decoded()

    def _unframed(self, cursor: MessageCursor, rows: np.ndarray, gathered: Gathered) -> np.ndarray:
        """The messages with a valid frame; advances the cursor past the frame."""
        length = (cursor.end - cursor.pos)[rows]
        magic = cursor.bytes.octets[cursor.pos[rows]]
        sound = (length >= FRAME_BYTES) & (magic == MAGIC)
        if not sound.all():
            for row, size, octet in zip(
                rows[~sound].tolist(), length[~sound].tolist(), magic[~sound].tolist(), strict=True
            ):
                gathered.fail(row, PREFIX + _frame_error(size, octet))
            rows = rows[sound]
        cursor.pos[rows] += FRAME_BYTES
        return rows

    def _read(
        self,
        messages: pa.Array,
        cursor: MessageCursor,
        rows: np.ndarray,
        writer: int | None,
        gathered: Gathered,
    ) -> None:
        if not len(rows):
            return
        plan = self._plan(writer)
        if isinstance(plan, str):
            for row in rows.tolist():
                gathered.fail(row, PREFIX + plan)
            return
        part = cursor if len(rows) == len(cursor) else cursor.take(rows)
        gathered.add(rows, plan.fields(part) if isinstance(plan, RecordNode) else [plan.read(part)])
        doubtful = part.doubt | (part.pos != part.end)
        if doubtful.any():
            self._read_again(messages, rows[doubtful], plan, gathered)

    def _read_again(self, messages: pa.Array, rows: np.ndarray, plan: ReadNode, gathered: Gathered) -> None:
        behind = FRAME_BYTES if self._framed else 0
        for row, message in zip(rows.tolist(), messages.take(pa.array(rows)).to_pylist(), strict=True):
            reader = MessageReader(message, behind)
            try:
                values = plan.values(reader) if isinstance(plan, RecordNode) else [plan.one(reader)]
                if reader.left:
                    raise Unreadable(f"{reader.left} bytes are left behind the value")
            except Unreadable as error:
                gathered.fail(row, PREFIX + str(error))
            else:
                gathered.replace(row, values)

    def _plan(self, writer: int | None) -> ReadNode | str:
        if writer not in self._plans:
            self._plans[writer] = self._make_plan(writer)
        return self._plans[writer]

    def _make_plan(self, writer: int | None) -> ReadNode | str:
        try:
            return resolve(self._schema(writer), self._reader)
        except Incompatible as error:
            return f"schema {writer} cannot be read with the schema of the source: {error}"
        except SchemaError as error:
            return f"schema {writer}: {error.primary}"

    def _schema(self, writer: int | None) -> Schema:
        if writer is None or self._writers is None:
            return self._reader
        return parse_schema(self._writers.schema_text(writer))


def _frame_error(size: int, octet: int) -> str:
    if size < FRAME_BYTES:
        return f"Confluent-style avro serialization takes at least {FRAME_BYTES} bytes, got {size}"
    return f"wrong Confluent-style avro serialization magic: expected {MAGIC}, got {octet}"
