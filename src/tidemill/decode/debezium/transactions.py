"""What Debezium's messages say about transactions: the block in a change, and announcements.

Called by `sources.kafka.transactions`. Only these fields are decoded. A message that cannot be read says
nothing here: the envelope reports it where it reads the rest.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from tidemill.decode.debezium.narrow_schema import Wanted, narrowed
from tidemill.decode.formats import open_decoder
from tidemill.errors import TidemillError
from tidemill.types.kernels import pc
from tidemill.types.nested import struct_parts

_COUNTS = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))
_CHANGE = pa.struct(
    [
        ("transaction", pa.struct([("id", pa.string()), ("data_collection_order", pa.int64())])),
        ("op", pa.string()),
        ("source", pa.struct([("snapshot", pa.string()), ("sequence", pa.string())])),
    ]
)
_ANNOUNCEMENT = pa.struct([("status", pa.string()), ("id", pa.string()), ("data_collections", _COUNTS)])

# What `snapshot` says of changes from the log.
_LOGGED = pa.array(["false"])
_LOGGED_OPS = pa.array(["c", "u", "d", "t"])
BEGIN, END = "BEGIN", "END"


@dataclass(frozen=True, slots=True)
class ChangeBlocks:
    """For each message the `id` of its transaction, null without one; the number of the change in it; what
    `sequence` says of the upstream's position, null where it is not written; and whether it is a change from
    the log, which must have a transaction."""

    ids: pa.Array
    orders: np.ndarray
    sequences: pa.Array
    logged: np.ndarray


@dataclass(frozen=True, slots=True)
class AnnouncementColumns:
    """`statuses` and `ids` are null where a message is none; `counts` in BEGIN."""

    statuses: pa.Array
    ids: pa.Array
    counts: pa.Array


class _Fields(ABC):
    """Decodes messages to the columns of a struct, null where they cannot be read."""

    @abstractmethod
    def read(self, values: pa.Array) -> pa.StructArray: ...


class TransactionReader:
    """Of values in Avro or JSON, by the format of a definition."""

    def __init__(self, form: Mapping[str, Any]) -> None:
        self._form = form
        self._changes: _Fields | None = None
        self._announcements: _Fields | None = None

    def changes(self, values: pa.Array) -> ChangeBlocks:
        if self._changes is None:
            self._changes = _fields(self._form, _CHANGE)
        block, op, source = self._changes.read(values).flatten()
        ids, orders = cast("pa.StructArray", block).flatten()
        snapshot, sequence = cast("pa.StructArray", source).flatten()
        logged = pc.and_(pc.is_in(op, _LOGGED_OPS), pc.or_(pc.is_null(snapshot), pc.is_in(snapshot, _LOGGED)))
        return ChangeBlocks(
            ids, np.asarray(pc.fill_null(orders, 0)), sequence, np.asarray(logged) & np.asarray(ids.is_null())
        )

    def announcements(self, values: pa.Array) -> AnnouncementColumns:
        if self._announcements is None:
            self._announcements = _fields(self._form, _ANNOUNCEMENT)
        statuses, ids, counts = self._announcements.read(values).flatten()
        return AnnouncementColumns(statuses, ids, counts)


def _fields(form: Mapping[str, Any], wanted: pa.StructType) -> _Fields:
    if form["format"] == "json":
        return _JsonFields(wanted)
    if form["format"] == "avro":
        return _AvroFields(form, wanted)
    raise TidemillError(
        "the transactions of Debezium are read from Avro and JSON",
        detail=f"The format is {str(form['format']).upper()}.",
        sqlstate="0A000",
    )


class _AvroFields(_Fields):
    def __init__(self, form: Mapping[str, Any], wanted: pa.StructType) -> None:
        self._wanted = wanted
        self._decoder = open_decoder(narrowed(form, _names(wanted)))
        self._types = {column.name: column.type for column in self._decoder.columns}

    def read(self, values: pa.Array) -> pa.StructArray:
        decoded = self._decoder.decode(values)
        columns = dict(zip(self._types, decoded.columns, strict=True))
        names = {name: _field_names(of) for name, of in self._types.items()}
        found = [_shaped(columns.get(f.name), names.get(f.name), f.type, len(values)) for f in self._wanted]
        return pa.StructArray.from_arrays(found, fields=list(self._wanted))


def _field_names(of: Any) -> Any:
    """The names of fields, with those of each; of an array, those of its elements."""
    if of.element is not None:
        return _field_names(of.element)
    return {field.name: _field_names(field.type) for field in of.fields} if of.fields else None


def _shaped(column: pa.Array | None, names: Any, of: pa.DataType, count: int) -> pa.Array:
    """The column with only the wanted fields, and nulls for what it lacks."""
    if column is None:
        return pa.nulls(count, of)
    if isinstance(of, pa.StructType) and pa.types.is_struct(column.type) and names:
        parts = dict(zip(names, struct_parts(column), strict=True))
        fields = [_shaped(parts.get(f.name), names.get(f.name), f.type, count) for f in of]
        return pa.StructArray.from_arrays(fields, fields=list(of))
    if isinstance(of, pa.ListType) and pa.types.is_list(column.type):
        lists = cast("pa.ListArray", column)
        flat = lists.flatten()
        lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        return pa.ListArray.from_arrays(offsets, _shaped(flat, names, of.value_type, len(flat)))
    try:
        return column.cast(of)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(count, of)


def _names(of: pa.DataType) -> Wanted:
    """What the reader's schema keeps."""
    struct = cast("pa.StructType", of)
    return {f.name: _names(f.type) if isinstance(f.type, pa.StructType) else None for f in struct}


class _JsonFields(_Fields):
    """All messages in one pass. Connect's converter may put them into an envelope of schema and payload."""

    def __init__(self, wanted: pa.StructType) -> None:
        self._wanted = wanted
        self._bare = _options([*wanted])
        self._enveloped = _options([*wanted, pa.field("payload", wanted)])

    def read(self, values: pa.Array) -> pa.StructArray:
        present = values.drop_null()
        found = self._parsed(present)
        if found is None:
            found = pa.array([self._one(value) for value in present.to_pylist()], self._wanted)
        if len(present) == len(values):
            return cast("pa.StructArray", found)
        at = np.cumsum(np.asarray(values.is_valid())) - 1
        places = pa.array(at, mask=np.asarray(values.is_null()))
        return cast("pa.StructArray", found.take(places))

    def _parsed(self, values: pa.Array) -> pa.Array | None:
        """None if a message is written in another way than one line of JSON."""
        if not len(values):
            return pa.nulls(0, self._wanted)
        # Neighbours in memory: the reader needs nothing between objects.
        offsets = np.frombuffer(values.buffers()[1], np.int32)[
            values.offset : values.offset + len(values) + 1
        ]
        text = values.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        named = _columns(text, len(values), self._bare)
        if named is None:
            return None
        bare = [named[f.name] for f in self._wanted]
        if not any(column.null_count == 0 for column in bare) and _some_without(bare):
            named = _columns(text, len(values), self._enveloped)
            if named is None:
                return None
            payload = struct_parts(named["payload"])
            wrapped = named["payload"].is_valid()
            bare = [_chosen(wrapped, within, column) for within, column in zip(payload, bare, strict=True)]
        return pa.StructArray.from_arrays(bare, fields=list(self._wanted))

    def _one(self, value: bytes) -> dict[str, Any] | None:
        try:
            said = json.loads(BytesIO(value).read())
        except (ValueError, RecursionError):
            return None
        if isinstance(said, dict) and "payload" in said:
            said = cast("dict[str, Any]", said)["payload"]
        return _picked(said, self._wanted)


def _options(fields: list[pa.Field]) -> pj.ParseOptions:
    schema = pa.schema(fields)
    return pj.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=False
    )


def _columns(text: pa.Buffer, rows: int, options: pj.ParseOptions) -> dict[str, pa.Array] | None:
    """None if the lines are not so many objects, or a field has another type."""
    try:
        reading = pj.ReadOptions(use_threads=False, block_size=max(text.size + 1, 1 << 16))
        table = pj.read_json(pa.BufferReader(text), reading, options)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != rows:
        return None
    return {name: table.column(name).combine_chunks() for name in table.column_names}


def _some_without(columns: list[pa.Array]) -> bool:
    """Whether a message has none of the fields."""
    has = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        has |= np.asarray(column.is_valid())
    return not has.all()


def _chosen(mask: pa.Array, yes: pa.Array, no: pa.Array) -> pa.Array:
    if not pc.any(mask).as_py():
        return no
    places = np.where(np.asarray(mask), np.arange(len(mask)), np.arange(len(mask)) + len(mask))
    return pa.concat_arrays([yes, no]).take(pa.array(places))


def _picked(value: Any, of: pa.DataType) -> Any:
    """The wanted part of a value, None for what has another type."""
    if isinstance(of, pa.StructType):
        if not isinstance(value, dict):
            return None
        members = cast("dict[str, Any]", value)
        return {f.name: _picked(members.get(f.name), f.type) for f in of}
    if isinstance(of, pa.ListType):
        return (
            [_picked(v, of.value_type) for v in cast("list[Any]", value)] if isinstance(value, list) else None
        )
    kind = str if pa.types.is_string(of) else int
    return value if isinstance(value, kind) and not isinstance(value, bool) else None
