"""Message decoder: turns Kafka records into the rows of an output, column by column.

Called by `outputs` in the tasks. The contents of a record never raise: undecodable records become errors. In
an upsert relation an error has its own slot, so that a later record can retract it:

| record | slot (`mz_key`) | |
| --- | --- | --- |
| no key, a value | `00` | error |
| a key that cannot be decoded, a value | `01` and the raw key | error |
| a value that cannot be decoded | none: the error replaces the row of its key | error |
| no value | the slot of its key: `00`, `01` and the raw key, or none | tombstone |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoded, Decoder, legible, shortened, with_original
from tidemill.decode.record_values import RecordValues
from tidemill.errors import Internal
from tidemill.sources.contract import (
    KEY_SLOT_COLUMN,
    OFFSET_COLUMN,
    TOMBSTONE_COLUMN,
    TRUNCATE_COLUMN,
    UNAVAILABLE_COLUMN,
)
from tidemill.sources.kafka.headers import header_column
from tidemill.sources.kafka.layout import HEADERS, IncludedColumn, Layout
from tidemill.types import wide
from tidemill.types.arrow import ERROR_COLUMN, arrow_type, storage_schema
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import UINT8, Column, record
from tidemill.types.wire import encode_text

# Texts that clients match.
DECODE_ERROR = "Decode error: "
NULL_KEY_ERROR = (
    "Envelope error: Upsert: Null key: record with NULL key in UPSERT source; "
    "to retract this error, produce a record upstream with a NULL key and NULL value"
)
KEY_ERROR = "Envelope error: Upsert: Key decode: "
VALUE_ERROR = "Envelope error: Upsert: Value error: "

NULL_KEY_SLOT = b"\x00"
BAD_KEY_PREFIX = b"\x01"

# Later timestamps do not fit into 64 bits of microseconds. Producers can write any number.
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000

UNAVAILABLE_TYPE = pa.list_(pa.field("element", pa.int32()))


@dataclass(frozen=True, slots=True)
class TopicMessages:
    """Records of one partition, in order. `timestamps` are milliseconds, -1 if missing; `headers` have the
    storage type of `layout.HEADERS`; `writers` is the value of the header `Wanted.writer`. Each is None if
    not requested. `topic` is used in errors, which identify their record. Records of Kinesis have a shard as
    their partition, and `sequences`, their sequence numbers as text; their topic is a stream."""

    partition: int | str
    keys: pa.Array
    values: pa.Array
    offsets: np.ndarray
    timestamps: np.ndarray | None = None
    headers: pa.Array | None = None
    topic: str | None = None
    sequences: pa.Array | None = None
    writers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def where(self, mask: np.ndarray) -> TopicMessages:
        if bool(mask.all()):
            return self
        chosen = pa.array(mask)
        return TopicMessages(
            self.partition,
            self.keys.filter(chosen),
            self.values.filter(chosen),
            self.offsets[mask],
            None if self.timestamps is None else self.timestamps[mask],
            None if self.headers is None else self.headers.filter(chosen),
            self.topic,
            None if self.sequences is None else self.sequences.filter(chosen),
            None if self.writers is None else self.writers.filter(chosen),
        )


def no_messages() -> TopicMessages:
    nothing, none = pa.array([], pa.binary()), np.zeros(0, np.int64)
    headers, sequences = pa.array([], arrow_type(HEADERS)), pa.array([], pa.string())
    return TopicMessages(0, nothing, nothing, none, none, headers, sequences=sequences)


class RowMaker(ABC):
    """Builds the rows of one output. `key` is None if the definition has no key format."""

    def __init__(self, layout: Layout, key: Decoder | None) -> None:
        self._layout = layout
        self._key = key
        self._schema = pa.schema([f.with_nullable(True) for f in storage_schema(layout.output.desc)])

    @abstractmethod
    def make(self, messages: TopicMessages) -> pa.RecordBatch:
        """The rows, in the order of their records: one for each message that `speaking` returns."""
        ...

    def speaking(self, messages: TopicMessages) -> TopicMessages:
        """The messages that become rows, for outputs with dead letters."""
        return messages

    def none(self) -> pa.RecordBatch:
        """No rows."""
        return self.make(no_messages())

    @property
    def _key_columns(self) -> tuple[Column, ...]:
        return () if self._key is None else tuple(self._key.columns)

    def _decode_keys(self, keys: pa.Array) -> Decoded:
        return Decoded((), None) if self._key is None else self._key.decode(keys)


class RecordRows(RowMaker):
    """Makes rows of what records have: one value each."""

    def __init__(self, layout: Layout, key: Decoder | None, value: Decoder, *, json_value: bool) -> None:
        super().__init__(layout, key)
        self._values = layout.envelope.values(value, json_value=json_value)

    def make(self, messages: TopicMessages) -> pa.RecordBatch:
        return self._upserted(messages) if self._layout.envelope.keyed else self._appended(messages)

    def speaking(self, messages: TopicMessages) -> TopicMessages:
        """Under ENVELOPE NONE a record without key and value says nothing."""
        if self._layout.envelope.keyed:
            return messages
        return messages.where(valid_mask(messages.keys) | valid_mask(messages.values))

    # -- envelopes without keys

    def _appended(self, messages: TopicMessages) -> pa.RecordBatch:
        """One row for each record with a key or a value."""
        messages = self.speaking(messages)
        values = self._values.read(messages.values)
        keys = self._bare_keys(messages) if self._layout.key_at else Decoded((), None)
        metadata, metadata_errors = self._metadata(messages)
        errors = first_of(
            with_messages(values.errors, messages.values),
            with_messages(keys.errors, messages.keys),
            metadata_errors,
        )
        columns = self._row(messages, keys.columns, None, values, metadata)
        if errors is None:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        failed = errors.is_valid()
        columns = [nulled(column, failed) for column in columns]
        texts = located(pc.binary_join_element_wise(pa.scalar(DECODE_ERROR), errors, ""), messages)
        schema = self._schema.append(pa.field(ERROR_COLUMN, pa.string()))
        return pa.RecordBatch.from_arrays([*columns, texts], schema=schema)

    # -- envelopes with keys

    def _upserted(self, messages: TopicMessages) -> pa.RecordBatch:
        values = self._values.read(messages.values)
        truncate = values.truncate
        tombstone = values.missing if truncate is None else values.missing | truncate
        nameless = ~valid_mask(messages.keys)
        if nameless.any():
            # Without a key, a Debezium change that deletes is an error: only (null, null) is a tombstone.
            empty = ~valid_mask(messages.values)
            tombstone &= ~nameless | (empty if truncate is None else empty | truncate)
        keys = self._bare_keys(messages)
        metadata, metadata_errors = self._metadata(messages)
        value_errors = first_of(with_messages(values.errors, messages.values), metadata_errors)
        inline = None
        if self._layout.error_at is not None:
            value_errors, inline = None, value_errors
        slots, errors = self._slots(messages, keys, value_errors, tombstone)
        columns = self._row(messages, keys.columns, inline, values, metadata)
        if errors is not None:
            failed = errors.is_valid()
            kept = set(self._layout.key_at)
            columns = [c if at in kept else nulled(c, failed) for at, c in enumerate(columns)]
        fields = [*self._schema, pa.field(ERROR_COLUMN, pa.string()), pa.field(KEY_SLOT_COLUMN, pa.binary())]
        columns += [pa.nulls(len(messages), pa.string()) if errors is None else errors, slots]
        for name, what in zip(self._layout.output.order, self._layout.order, strict=True):
            fields.append(pa.field(name, pa.int64()))
            columns.append(pa.array(messages.offsets if what == "offset" else _present(messages.timestamps)))
        fields.append(pa.field(OFFSET_COLUMN, pa.int64(), nullable=False))
        fields.append(pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False))
        columns += [pa.array(messages.offsets), pa.array(tombstone)]
        lacking = self._lacking(values)
        if lacking:
            fields.append(pa.field(UNAVAILABLE_COLUMN, UNAVAILABLE_TYPE))
            columns.append(_lists(lacking, len(messages)))
        if truncate is not None and bool(truncate.any()):
            fields.append(pa.field(TRUNCATE_COLUMN, pa.bool_(), nullable=False))
            columns.append(pa.array(truncate))
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _slots(
        self, messages: TopicMessages, keys: Decoded, value_errors: pa.Array | None, gone: np.ndarray
    ) -> tuple[pa.Array, pa.Array | None]:
        """`mz_key`, and the error of each record (None without errors). A record that is `gone` (it deletes a
        row, or empties the relation) is not an error, even if its key is missing or cannot be decoded."""
        count = len(messages)
        nameless = ~valid_mask(messages.keys)
        bad = np.zeros(count, np.bool_) if keys.errors is None else valid_mask(keys.errors)
        wrong = np.zeros(count, np.bool_) if value_errors is None else valid_mask(value_errors)
        wrong &= ~(nameless | bad | gone)
        if not (nameless.any() or bad.any() or wrong.any()):
            return pa.nulls(count, pa.binary()), None
        slots = pc.if_else(pa.array(nameless), pa.scalar(NULL_KEY_SLOT), pa.scalar(None, pa.binary()))
        texts: pa.Array = pa.nulls(count, pa.string())
        if nameless.any():
            texts = pc.if_else(pa.array(nameless & ~gone), pa.scalar(NULL_KEY_ERROR), texts)
        if bad.any() and keys.errors is not None:
            raw = pc.binary_join_element_wise(pa.scalar(BAD_KEY_PREFIX), messages.keys, b"")
            slots = pc.if_else(pa.array(bad), raw, slots)
            told = pc.binary_join_element_wise(
                pa.scalar(KEY_ERROR), with_messages(keys.errors, messages.keys), ""
            )
            texts = pc.if_else(pa.array(bad & ~gone), told, texts)
        if wrong.any() and value_errors is not None:
            rows = pa.array(np.flatnonzero(wrong))
            told = self._value_errors([c.take(rows) for c in keys.columns], value_errors.take(rows))
            texts = pc.replace_with_mask(texts, pa.array(wrong), told)
        return slots, located(texts, messages)

    def _value_errors(self, keys: Sequence[pa.Array], errors: pa.Array) -> pa.Array:
        shown = encode_text(_struct(keys, self._key_columns), record(*self._key_columns))
        texts = [legible(shortened(key)) for key in shown.cast(pa.string()).to_pylist()]
        ends = pc.binary_join_element_wise(errors, pa.array(texts, pa.string()), ", decoded key: ")
        return pc.binary_join_element_wise(pa.scalar(VALUE_ERROR), ends, "")

    def _lacking(self, values: RecordValues) -> dict[int, np.ndarray]:
        """For each position in the row, the records whose value is missing, as in `mz_unavailable`."""
        at = self._layout.value_at
        found = {at[column]: mark for column, mark in (values.unavailable or {}).items()}
        lacking = {position: mark for position, mark in found.items() if position is not None}
        if values.partial is not None and at[0] is not None:
            lacking[-1 - at[0]] = values.partial
        return lacking

    # -- columns

    def _bare_keys(self, messages: TopicMessages) -> Decoded:
        return self._decode_keys(self._layout.envelope.bare_keys(messages.keys))

    def _row(
        self,
        messages: TopicMessages,
        keys: Sequence[pa.Array],
        inline: pa.Array | None,
        values: RecordValues,
        metadata: Sequence[pa.Array],
    ) -> list[pa.Array]:
        layout = self._layout
        columns: list[pa.Array | None] = [None] * (len(self._schema) - len(metadata))
        if layout.key_record:
            keys = [_struct(keys, self._key_columns, messages.keys)]
        for at, column in zip(layout.key_at, keys, strict=bool(layout.key_at)):
            columns[at] = column
        for at, column in zip(layout.value_at, values.columns, strict=True):
            if at is not None:
                columns[at] = column
        if layout.error_at is not None:
            columns[layout.error_at] = _inline(inline, len(messages))
        return [*(column for column in columns if column is not None), *metadata]

    def _metadata(self, messages: TopicMessages) -> tuple[list[pa.Array], pa.Array | None]:
        """The columns of INCLUDE, and the errors of headers that are not text and of timestamps."""
        columns: list[pa.Array] = []
        errors: pa.Array | None = None
        for item in self._layout.metadata:
            if item.what == "header":
                column, wrong = header_column(_present(messages.headers), str(item.header), raw=item.raw)
                errors = first_of(errors, wrong)
            elif item.what == "timestamp":
                column, wrong = timestamp_column(_present(messages.timestamps))
                errors = first_of(errors, wrong)
            else:
                column = _metadata_column(item, messages)
            columns.append(column)
        return columns, errors


def _lists(marks: dict[int, np.ndarray], count: int) -> pa.Array:
    """Per row, the numbers whose mark is set."""
    numbers = sorted(marks)
    matrix = np.column_stack([marks[number] for number in numbers])
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(matrix.sum(axis=1), out=ends[1:])
    chosen = np.broadcast_to(np.array(numbers, np.int32), matrix.shape)[matrix]
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(chosen, pa.int32())).cast(UNAVAILABLE_TYPE)


def _metadata_column(item: IncludedColumn, messages: TopicMessages) -> pa.Array:
    if item.what == "partition":
        return pa.array(np.full(len(messages), messages.partition, np.int32))
    if item.what == "offset":
        return offset_column(messages.offsets)
    if item.what == "shard_id":
        return pa.array([str(messages.partition)], pa.string()).take(np.zeros(len(messages), np.int64))
    if item.what == "sequence_number":
        return _present(messages.sequences)
    return _present(messages.headers)


def offset_column(offsets: np.ndarray) -> pa.Array:
    zeros = np.zeros(len(offsets), np.int64)
    return wide.decimals(offsets.astype(np.uint64), zeros, None, arrow_type(UINT8))


def timestamp_column(milliseconds: np.ndarray) -> tuple[pa.Array, pa.Array | None]:
    """The column, and the errors of timestamps out of range (None without errors)."""
    late = milliseconds > MAX_TIMESTAMP_MS
    known = (milliseconds >= 0) & ~late
    column = pa.array(np.where(known, milliseconds, 0) * 1000, mask=~known).cast(pa.timestamp("us"))
    if not late.any():
        return column, None
    texts = [
        f"timestamp out of range: {ms}" if ms > MAX_TIMESTAMP_MS else None for ms in milliseconds.tolist()
    ]
    return column, pa.array(texts, pa.string())


def _struct(columns: Sequence[pa.Array], of: Sequence[Column], present: pa.Array | None = None) -> pa.Array:
    """The columns as one record; null where `present` is null."""
    fields = list(arrow_type(record(*of)))
    mask = None if present is None or not present.null_count else present.is_null()
    return pa.StructArray.from_arrays(list(columns), fields=fields, mask=mask)


def _inline(errors: pa.Array | None, count: int) -> pa.Array:
    kind = pa.struct([pa.field("description", pa.string())])
    if errors is None:
        return pa.nulls(count, kind)
    return pa.StructArray.from_arrays([errors], fields=list(kind), mask=errors.is_null())


def nulled(column: pa.Array, where: pa.Array) -> pa.Array:
    return pc.if_else(where, pa.scalar(None, column.type), column)


def with_messages(errors: pa.Array | None, messages: pa.Array) -> pa.Array | None:
    """The errors, each with its message."""
    if errors is None:
        return None
    wrong = errors.is_valid()
    pairs = zip(errors.filter(wrong).to_pylist(), messages.filter(wrong).to_pylist(), strict=True)
    texts = [with_original(error or "", message or b"") for error, message in pairs]
    return pc.replace_with_mask(errors, wrong, pa.array(texts, pa.string()))


def located(errors: pa.Array, messages: TopicMessages) -> pa.Array:
    """The errors, each with the position of its record on a separate line (`types.arrow.error_parts`)."""
    if messages.topic is None:
        return errors
    place = f'\nTopic "{legible(messages.topic)}", partition {messages.partition}, offset '
    numbers = pa.array(messages.offsets).cast(pa.string())
    if messages.sequences is not None:
        place = f'\nStream "{legible(messages.topic)}", {messages.partition}, sequence number '
        numbers = messages.sequences
    return pc.binary_join_element_wise(errors, pa.scalar(place), numbers, pa.scalar("."), "")


def first_of(*errors: pa.Array | None) -> pa.Array | None:
    """The first error of each row; None without any error."""
    found = [e for e in errors if e is not None and e.null_count < len(e)]
    return pc.coalesce(*found) if len(found) > 1 else next(iter(found), None)


_T = TypeVar("_T")


def _present(value: _T | None) -> _T:
    """An optional field that the reader must have requested."""
    if value is None:
        raise Internal("a column is made of what was not read")
    return value
