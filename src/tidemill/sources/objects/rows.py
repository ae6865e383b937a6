"""Rows of an output: decodes messages of objects, column by column.

What cannot be decoded becomes an error row, which names the object and the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import legible
from tidemill.decode.formats import open_decoder
from tidemill.sources.contract import MAX_BATCH_ROWS, OFFSET_COLUMN, TOMBSTONE_COLUMN
from tidemill.sources.kafka.messages import DECODE_ERROR, nulled, offset_column, with_messages
from tidemill.sources.objects.layout import object_layout
from tidemill.sources.objects.lines import Broken, Lines
from tidemill.sources.objects.piece import ObjectPiece
from tidemill.sources.objects.tables import Columns, is_table
from tidemill.types.arrow import ERROR_COLUMN, hidden_fields, storage_schema
from tidemill.types.kernels import pc

# Error rows of upserts have a slot each: this, the object, and the byte.
_ERROR_SLOT = b"\x01"


class ObjectRows:
    """Of one output."""

    def __init__(self, spec: Mapping[str, Any], called: str) -> None:
        self._layout = object_layout(spec)
        self._decoder = None if is_table(spec["value"]) else open_decoder(spec["value"])
        self._called = called.capitalize()
        desc = self._layout.output.desc
        fields = [field.with_nullable(True) for field in storage_schema(desc)]
        self._own = pa.schema(fields)
        self._hidden = hidden_fields(desc)

    def make(self, found: Lines | Columns | Broken, piece: ObjectPiece) -> Iterator[pa.RecordBatch]:
        if isinstance(found, Broken):
            offsets = np.full(1, found.offset, np.int64)
            columns = [pa.nulls(1, field.type) for field in self._own][: self._layout.values]
            yield self._batch(columns, offsets, pa.array([found.why], pa.string()), piece)
            return
        if isinstance(found, Columns) or self._decoder is None:
            assert isinstance(found, Columns)
            yield self._batch(list(found.values), found.offsets, None, piece, found.places)
            return
        for at in range(0, len(found.offsets), MAX_BATCH_ROWS):
            lines = found.slice(at, min(MAX_BATCH_ROWS, len(found.offsets) - at))
            decoded = self._decoder.decode(lines.values)
            errors = with_messages(decoded.errors, lines.values)
            yield self._batch(list(decoded.columns), lines.offsets, errors, piece)

    def _batch(
        self,
        values: list[pa.Array],
        offsets: np.ndarray,
        errors: pa.Array | None,
        piece: ObjectPiece,
        places: np.ndarray | None = None,
    ) -> pa.RecordBatch:
        columns = [*values, *(self._included(what, offsets, piece) for what in self._layout.included)]
        texts: pa.Array | None = None
        if errors is not None and errors.null_count < len(errors):
            failed = errors.is_valid()
            columns = [nulled(column, failed) for column in columns]
            place = f'\n{self._called} "{legible(str(piece.partition))}", byte '
            bytes_ = pa.array(offsets).cast(pa.string())
            texts = pc.binary_join_element_wise(pa.scalar(DECODE_ERROR), errors, pa.scalar(place), bytes_, "")
            texts = pc.if_else(failed, pc.binary_join_element_wise(texts, pa.scalar("."), ""), None)
        if self._layout.output.key is not None:
            return self._upserts(columns, offsets if places is None else places, texts, piece)
        if texts is None:
            return pa.RecordBatch.from_arrays(columns, schema=self._own)
        schema = self._own.append(pa.field(ERROR_COLUMN, pa.string()))
        return pa.RecordBatch.from_arrays([*columns, texts], schema=schema)

    def _upserts(
        self, columns: list[pa.Array], places: np.ndarray, texts: pa.Array | None, piece: ObjectPiece
    ) -> pa.RecordBatch:
        count = len(places)
        slots: pa.Array = pa.nulls(count, pa.binary())
        if texts is not None:
            base = _ERROR_SLOT + str(piece.partition).encode() + b"\0"
            place = pa.array(places).cast(pa.string()).cast(pa.binary())
            named = pc.binary_join_element_wise(pa.scalar(base), place, b"")
            slots = pc.if_else(texts.is_valid(), named, pa.scalar(None, pa.binary()))
        hidden = [
            slots,
            pa.array(np.full(count, piece.modified, np.int64)),
            pa.array([str(piece.partition)] * count, pa.string()),
            pa.array(places),
        ]
        fields = [*self._own, pa.field(ERROR_COLUMN, pa.string()), *self._hidden]
        fields.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
        fields.append(pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False))
        errors = pa.nulls(count, pa.string()) if texts is None else texts
        alive = pa.array(np.zeros(count, np.bool_))
        return pa.RecordBatch.from_arrays(
            [*columns, errors, *hidden, pa.array(places), alive], schema=pa.schema(fields)
        )

    def _included(self, what: str, offsets: np.ndarray, piece: ObjectPiece) -> pa.Array:
        count = len(offsets)
        if what == "key":
            return pa.array([str(piece.partition)] * count, pa.string())
        if what == "offset":
            return offset_column(offsets)
        return pa.array(np.full(count, piece.modified, np.int64)).cast(pa.timestamp("us"))
