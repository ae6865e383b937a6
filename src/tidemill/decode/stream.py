"""CDCv2 stream decoder: derives the data columns, and decodes messages to statements.

Called by the engine when a source is created (`stream_shape`), and by sources in the tasks
(`open_stream_decoder`). A format is the dictionary of a source definition, as for any decoder (`formats`). It
is Avro with the union of docs/cdcv2.md as its schema, or JSON, whose data is one column of jsonb. With
`components`, times are products of that many numbers. The contents of a message never raise: an invalid
message becomes an `InvalidMessage` in its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa

from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.avro_schema import named_as, same_layout
from tidemill.cdcv2.columns import UpdateColumns, check_columns
from tidemill.cdcv2.digest import seal_of, signed
from tidemill.cdcv2.json_forms import strict_json
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.problems import SEAL_BROKEN, InvalidMessage
from tidemill.cdcv2.times import INTEGERS, MAX_ARITY, Time
from tidemill.cdcv2.wording import Malformed, brief, progress_record, sentence, whole
from tidemill.decode.avro.columns import columns_of
from tidemill.decode.avro.schema import parse_schema
from tidemill.decode.contract import MAX_MESSAGE_BYTES
from tidemill.decode.registry import Registry
from tidemill.errors import InvalidValue, TidemillError, Unsupported
from tidemill.types.arrow import storage_schema
from tidemill.types.json import canonical_json
from tidemill.types.model import JSONB, Column, RelationDesc

# Confluent's zero byte and the number of the schema.
FRAME = 5

Said = UpdateColumns | Progress | InvalidMessage

DATA = (Column("data", JSONB),)


@dataclass(frozen=True, slots=True)
class StreamShape:
    """Properties of a stream's format: the columns of its data, whether statements have digests of them, and
    the kind of its times (`cdcv2.times`)."""

    columns: tuple[Column, ...]
    digests: bool
    kind: int = INTEGERS

    @property
    def schema(self) -> pa.Schema:
        return storage_schema(RelationDesc(self.columns))


class StreamDecoder(Protocol):
    shape: StreamShape

    def decode(self, messages: Sequence[bytes], origins: Sequence[str]) -> list[Said]:
        """One statement for each message, in order. Raises only errors that stall the source: the registry is
        unreachable, or does not have the schema."""
        ...


def stream_shape(format_: Mapping[str, Any]) -> StreamShape:
    """Raises for an invalid format or schema."""
    kind = _kind(format_.get("components"))
    match format_:
        case {"format": "avro", "schema": schema}:
            return _avro_shape(schema, kind)
        case {"format": "json"}:
            return StreamShape(DATA, digests=False, kind=kind)
        case _:
            raise Unsupported(
                "ENVELOPE MATERIALIZE requires that FORMAT is AVRO or JSON",
                hint="These are the encodings of CDCv2.",
            )


def _kind(components: Any) -> int:
    if components is None:
        return INTEGERS
    if isinstance(components, bool) or not isinstance(components, int) or not 1 <= components <= MAX_ARITY:
        raise InvalidValue(f"times cannot have {components!r} components", hint=f"Give 1 to {MAX_ARITY}.")
    return components


def open_stream_decoder(format_: Mapping[str, Any], writer: str | None = None) -> StreamDecoder:
    """The decoder of a format, in which a registry's connection is replaced by its options. `writer`: the
    schema of messages without a schema id, if it differs from the format's."""
    shape = stream_shape(format_)
    if format_["format"] == "json":
        return JsonStream(shape)
    registry = format_.get("registry")
    return AvroStream(
        shape,
        format_["schema"],
        writer or format_["schema"],
        framed=bool(format_["framed"]),
        registry=None if registry is None else Registry.of(registry),
    )


# -- Avro


def _avro_shape(text: str, kind: int) -> StreamShape:
    try:
        union: Any = json.loads(text)
    except ValueError as e:
        raise InvalidValue("the schema is not JSON", detail=sentence(e), sqlstate="22023") from None
    update, progress = _branches(union)
    data = _field(update, "data")
    times = [_field(update, "time"), _items(_field(progress, "lower"))]
    products = [isinstance(t, dict) and cast("dict[str, Any]", t).get("type") == "array" for t in times]
    if any(products) and kind == INTEGERS:
        raise Unsupported(
            "the times of the CDCv2 stream are products",
            detail="The schema does not tell of how many numbers.",
            hint="Write ENVELOPE MATERIALIZE (TIME COMPONENTS 2).",
        )
    if kind != INTEGERS:
        if not all(products):
            raise _no_stream(f"Its times are {json.dumps(times[0])}, and not arrays of {kind} longs.")
        times = [_items(t) for t in times]
    if any(t not in ("long", {"type": "long"}) for t in times):
        raise _no_stream(f"Its times are {json.dumps(times[0])}, and not long.")
    if not isinstance(data, dict) or cast("dict[str, Any]", data).get("type") != "record":
        raise _no_stream("Its data is no record.")
    columns = columns_of(parse_schema(json.dumps(_spaced(cast("dict[str, Any]", data), update))))
    shape = StreamShape(columns, any(f.get("name") == "seal" for f in progress["fields"]), kind)
    AvroCodec(shape.schema, kind, digests=shape.digests)  # refuses columns that have no form
    return shape


def _spaced(data: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """The record alone, in its original namespace."""
    return data if "namespace" in data else {**data, "namespace": update.get("namespace", "")}


def _branches(union: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of updates and of progress."""
    found = cast("list[Any]", union) if isinstance(union, list) else []
    records = [b for b in found if isinstance(b, dict)]
    arrays = [b for b in records if b.get("type") == "array" and isinstance(b.get("items"), dict)]
    others = [b for b in records if b.get("type") == "record" and b.get("fields")]
    if len(found) != 2 or len(arrays) != 1 or len(others) != 1 or "fields" not in arrays[0]["items"]:
        raise _no_stream("It is no union of an array of records and a record.")
    return arrays[0]["items"], others[0]


def _field(record: dict[str, Any], name: str) -> Any:
    for field in record["fields"]:
        if field.get("name") == name:
            return field.get("type")
    raise _no_stream(f'Its record "{record.get("name")}" has no field "{name}".')


def _items(array: Any) -> Any:
    return cast("dict[str, Any]", array).get("items") if isinstance(array, dict) else array


def _no_stream(detail: str) -> InvalidValue:
    return InvalidValue(
        "the Avro schema is not that of a CDCv2 stream",
        detail=detail,
        hint="It is the union of an array of updates (data, time, diff) and a record of progress (lower, "
        "upper, counts). For topics of plain records leave ENVELOPE MATERIALIZE out.",
        sqlstate="22023",
    )


class AvroStream:
    """`StreamDecoder`. Messages of one writer's schema are decoded together."""

    def __init__(
        self, shape: StreamShape, schema: str, writer: str, *, framed: bool, registry: Registry | None
    ) -> None:
        self.shape = shape
        self._schema = schema
        self._writer = writer
        self._framed = framed
        self._registry = registry
        # By the number of the writer's schema (None: `writer`).
        self._codecs: dict[int | None, AvroCodec] = {}

    def decode(self, messages: Sequence[bytes], origins: Sequence[str]) -> list[Said]:
        found: dict[str, Said] = {}
        groups: dict[int | None, list[int]] = {}
        for i, message in enumerate(messages):
            number: int | None = None
            if self._framed and (len(message) < FRAME or message[0] != 0):
                found[origins[i]] = InvalidMessage("not a message in Confluent's framing", origins[i])
                continue
            if self._framed and self._registry is not None:
                number = int.from_bytes(message[1:FRAME], "big")
            groups.setdefault(number, []).append(i)
        skip = FRAME if self._framed else 0
        for number, rows in groups.items():
            codec = self._codec(number)
            errors: list[InvalidMessage] = []
            bodies = [messages[i][skip:] for i in rows]
            for said in codec.decode(bodies, [origins[i] for i in rows], errors):
                found[cast("str", said.origin)] = _checked(said, self.shape.schema)
            for error in errors:
                found[error.origin] = error
        return [found[origin] for origin in origins]

    def _codec(self, number: int | None) -> AvroCodec:
        codec = self._codecs.get(number)
        if codec is None:
            writer = self._writer
            if number is not None and self._registry is not None:
                writer = self._registry.schema_text(number)
            codec = self._codecs[number] = _codec_for(self.shape, self._schema, writer)
        return codec


def _codec_for(shape: StreamShape, reader: str, writer: str) -> AvroCodec:
    """Decodes whole columns if the writer's bytes have our layout; else one by one, resolved to the reader's
    schema by Avro's rules. (Names of records are not compared.)"""
    codec = AvroCodec(shape.schema, shape.kind, digests=shape.digests)
    said, ours = json.loads(writer), json.loads(codec.avro_schema)
    if same_layout(said, ours):
        return codec
    wanted = json.dumps(named_as(json.loads(reader), said))
    return AvroCodec(shape.schema, shape.kind, digests=shape.digests, writer=writer, reader=wanted)


def _checked(said: UpdateColumns | Progress, schema: pa.Schema) -> Said:
    if isinstance(said, UpdateColumns):
        try:
            check_columns(said, schema, said.origin or "")
        except InvalidMessage as e:
            return e
    return said


# -- JSON


class JsonStream:
    """`StreamDecoder`. The data of an update is one jsonb value, which its readers interpret. Digests are
    computed from columns, so only the seal of a statement is checked."""

    def __init__(self, shape: StreamShape) -> None:
        self.shape = shape

    def decode(self, messages: Sequence[bytes], origins: Sequence[str]) -> list[Said]:
        return [self._one(message, origin) for message, origin in zip(messages, origins, strict=True)]

    def _one(self, message: bytes, origin: str) -> Said:
        if len(message) > MAX_MESSAGE_BYTES:
            return InvalidMessage(f"a message of more than {MAX_MESSAGE_BYTES} bytes", origin)
        try:
            text = message.decode()
            if text.lstrip()[:1] == "[":
                return _checked(self._updates(canonical_json(text), origin), self.shape.schema)
            return _progress(strict_json(text), origin, self.shape.kind)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, TidemillError) as e:
            return InvalidMessage("not a CDCv2 message in JSON", origin, detail=sentence(e))

    def _updates(self, text: str, origin: str) -> UpdateColumns:
        """From the canonical text, in which an update's data is between its first name and its diff, so that
        numbers keep all their digits."""
        data: list[str] = []
        times: list[Time] = []
        kind = self.shape.kind
        diffs: list[int] = []
        at = 1
        while text[at] != "]":
            row, end = _ROWS.raw_decode(text, at)
            if not isinstance(row, dict):
                raise Malformed(f"an update is an object, not {brief(row)}")
            if set(row) != _NAMES:
                raise Malformed(
                    f"an update has data, time and diff, not {', '.join(sorted(row)) or 'nothing'}"
                )
            times.append(_time(row["time"], kind))
            diffs.append(whole(row["diff"]))
            behind = len(f', "diff": {diffs[-1]}, "time": {row["time"]}}}')
            data.append(text[at + len('{"data": ') : end - behind])
            at = end + 2 if text[end] == "," else end
        batch = pa.RecordBatch.from_arrays([pa.array(data, pa.string())], schema=self.shape.schema)
        when = np.array(times, np.int64).reshape((-1, kind) if kind else -1)
        return UpdateColumns(batch, when, np.array(diffs, np.int64), origin)


_ROWS = json.JSONDecoder()
_NAMES = {"data", "diff", "time"}


def _progress(found: Any, origin: str, kind: int) -> Said:
    record = progress_record(found)
    counts = [(_time(c["time"], kind), whole(c["count"])) for c in record["counts"]]
    lower, upper = ([_time(t, kind) for t in record[name]] for name in ("lower", "upper"))
    seal = record.get("seal")
    if seal is not None:
        contents = [whole(c["content"]) for c in record["counts"]]
        if seal_of(Progress(lower, upper, counts, contents)) != signed(whole(seal)):
            return InvalidMessage(SEAL_BROKEN, origin)
    return Progress(lower, upper, counts, origin=origin)


def _time(value: Any, kind: int) -> Time:
    if kind == INTEGERS:
        return whole(value)
    if not isinstance(value, list) or len(cast("list[Any]", value)) != kind:
        raise Malformed(f"not a time of {kind} numbers: {brief(value)}")
    return tuple(map(whole, cast("list[Any]", value)))
