"""The format of a statement in the definition, with its schema, so that its meaning never changes."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from tidemill.catalog.connections import SCHEMA_REGISTRY
from tidemill.catalog.items import ItemId
from tidemill.decode import resolve
from tidemill.decode.registry import Registry
from tidemill.decode.resolve import avro_stream_registered as resolve_union
from tidemill.decode.stream import stream_shape
from tidemill.engine.ddl.connection_kinds.schema_registry import check_url
from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.engine.ddl.upstreams.described import DescribeContext
from tidemill.errors import InvalidValue, SyntaxError_, TidemillError
from tidemill.sql import ast
from tidemill.types.model import Column


class Side(Enum):
    """Key or value of a message. The enum value is the suffix of registry subjects."""

    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class ResolvedFormat:
    """`format` is the argument of `decode.formats.open_decoder`, with connections by id."""

    format: dict[str, Any]
    columns: tuple[Column, ...]
    connections: tuple[ItemId, ...] = ()


def resolve_format(form: ast.Format, side: Side, topic: str, context: DescribeContext) -> ResolvedFormat:
    """May contact the registry, so it may block. Raises if the format or its schema is invalid."""
    try:
        _check_schema(form)
        if isinstance(form, ast.AvroRegistry | ast.ProtobufRegistry):
            return asking(lambda: _registered(form, side, topic, context), avoidable=False)
        found = _said(form)
    except TidemillError as e:
        e.position = e.position or form.offset + 1
        raise
    return ResolvedFormat(found.format, found.columns)


def resolve_stream(
    form: ast.Format, components: int | None, topic: str, context: DescribeContext
) -> ResolvedFormat:
    """The format of a CDCv2 stream: Avro with the union of its messages as schema, or JSON. `components`: the
    number of components of its times. May contact the registry, so it may block."""
    more = {} if components is None else {"components": components}
    try:
        _check_schema(form)
        if isinstance(form, ast.AvroRegistry):
            found = asking(
                lambda: _registered(form, Side.VALUE, topic, context, partial(resolve_union, more=more)),
                avoidable=False,
            )
        elif isinstance(form, ast.AvroSchema):
            shape = {"format": "avro", "schema": form.schema, "framed": form.framed, "registry": None, **more}
            found = ResolvedFormat(shape, stream_shape(shape).columns)
        else:
            name = form.name.lower() if isinstance(form, ast.PlainFormat) else ""
            shape = {"format": name, **more}
            found = ResolvedFormat(shape, stream_shape(shape).columns)
    except TidemillError as e:
        e.position = e.position or form.offset + 1
        raise
    return found


def _check_schema(form: ast.Format) -> None:
    if isinstance(form, ast.PlainFormat) and form.name == "AVRO":
        raise SyntaxError_(
            "FORMAT AVRO needs USING",
            hint="Write FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION ..., or USING SCHEMA '...': "
            "only files have their schema with them.",
        )


def resolve_key(value: ast.Format, topic: str, context: DescribeContext) -> ResolvedFormat | None:
    """The format of the key if the statement has only FORMAT: a registry with the schema of the value also
    has that of the key. None for formats without a registry."""
    if isinstance(value, ast.AvroRegistry | ast.ProtobufRegistry):
        return resolve_format(value, Side.KEY, topic, context)
    return None


def _said(
    form: ast.PlainFormat | ast.Regex | ast.Csv | ast.AvroSchema | ast.ProtobufSchema,
) -> resolve.FormatResolution:
    """A format that needs no registry."""
    match form:
        case ast.PlainFormat(name):
            return resolve.plain_format(name.lower())
        case ast.Regex(pattern):
            return resolve.regex_format(pattern)
        case ast.Csv(columns=()):
            raise SyntaxError_(
                "CSV WITH HEADER needs the names of the columns",
                hint="Write CSV WITH HEADER (name, ...): only files have a header of their own.",
            )
        case ast.Csv():
            return resolve.csv_format(_columns(form), "," if form.delimiter is None else form.delimiter)
        case ast.AvroSchema(schema, framed):
            return resolve.avro_inline(schema, framed=framed)
        case ast.ProtobufSchema(message, schema):
            return resolve.protobuf_inline(message, _bytes(schema))


def _columns(csv: ast.Csv) -> int | list[str]:
    if not isinstance(csv.columns, int):
        return [column.value for column in csv.columns]
    # Checked before a list of them is built.
    if not 0 < csv.columns <= resolve.MAX_CSV_COLUMNS:
        raise InvalidValue(
            f"CSV cannot have {csv.columns} columns",
            hint=f"Give 1 to {resolve.MAX_CSV_COLUMNS}.",
            sqlstate="22023",
        )
    return csv.columns


def _bytes(text: str) -> bytes:
    """The bytes of a text in bytea syntax."""
    try:
        return binascii.unhexlify(text.removeprefix("\\x"))
    except ValueError:
        raise InvalidValue(
            "the schema of a Protobuf message is not in hexadecimal digits",
            hint="Write '\\x...': the output of protoc --include_imports --descriptor_set_out.",
            sqlstate="22023",
        ) from None


def _registered(
    form: ast.AvroRegistry | ast.ProtobufRegistry,
    side: Side,
    topic: str,
    context: DescribeContext,
    avro: Callable[..., resolve.FormatResolution] = resolve.avro_registered,
) -> ResolvedFormat:
    """With the current schema of the registry, or the one that the statement names. `avro` checks which
    columns an Avro schema gives."""
    kept: Mapping[str, Any]
    if isinstance(form.registry, str):
        check_url(form.registry)
        kept = {"url": form.registry}
        options, connections = kept, ()
    else:
        connection = context.find(form.registry, SCHEMA_REGISTRY)
        kept, options = {"connection": connection.id}, context.reached(connection)
        connections = (connection.id,)
    registry, subject = Registry.of(options), resolve.subject_of(topic, side.value)
    if isinstance(form, ast.AvroRegistry):
        said = form.key_strategy if side is Side.KEY else form.value_strategy
        found = avro(registry, kept, subject, _strategy(said))
    else:
        found = resolve.protobuf_registered(registry, kept, subject)
    return ResolvedFormat(found.format, found.columns, connections)


def _strategy(said: ast.Strategy | None) -> resolve.SchemaStrategy:
    match said:
        case ast.Strategy("INLINE", str() as schema):
            return resolve.SchemaStrategy(text=schema)
        case ast.Strategy("ID", int() as schema_id):
            return resolve.SchemaStrategy(schema_id=schema_id)
        case _:
            return resolve.LATEST
