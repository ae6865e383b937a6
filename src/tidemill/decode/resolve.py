"""Format resolution at CREATE: the dictionary of a format, whose meaning never changes, and its columns.

Called by the engine when a source is created. The schema of the source is requested from the registry here
and fixed from then on. Later only writer schemas are requested, by id. Errors follow PostgreSQL's style, with
a hint.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.decode.avro.columns import columns_of as avro_columns
from tidemill.decode.avro.schema import parse_schema
from tidemill.decode.formats import open_decoder
from tidemill.decode.protobuf import columns_of as protobuf_columns
from tidemill.decode.protobuf import compiled, find_message, first_message
from tidemill.decode.registry import AVRO, PROTOBUF, Registered, Registry, RegistryError
from tidemill.decode.stream import stream_shape
from tidemill.errors import InvalidValue, UndefinedObject, Unsupported, WrongObjectType
from tidemill.types.model import Column

# Columns of a CSV record: PostgreSQL's limit for a table.
MAX_CSV_COLUMNS = 1600


@dataclass(frozen=True, slots=True)
class FormatResolution:
    """`format` is stored in the catalog. Its `registry` is what the caller passed."""

    format: dict[str, Any]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class SchemaStrategy:
    """Which schema of a registry the source has: the one with this number, this text, or (neither) the latest
    of the subject."""

    schema_id: int | None = None
    text: str | None = None


LATEST = SchemaStrategy()


def subject_of(topic: str, part: str) -> str:
    """The subject of a topic's keys (`key`) or values (`value`)."""
    return f"{topic}-{part}"


def avro_inline(schema: str, *, framed: bool = True) -> FormatResolution:
    """AVRO USING SCHEMA: the schema of reader and writers alike."""
    columns = avro_columns(parse_schema(schema))
    return FormatResolution({"format": "avro", "schema": schema, "framed": framed, "registry": None}, columns)


def avro_registered(
    registry: Registry, stored: Mapping[str, Any], subject: str, strategy: SchemaStrategy = LATEST
) -> FormatResolution:
    """AVRO USING CONFLUENT SCHEMA REGISTRY. `stored` stands for the registry in the catalog."""
    format_ = _avro_format(registry, stored, subject, strategy)
    return FormatResolution(format_, avro_columns(parse_schema(format_["schema"])))


def avro_stream_registered(
    registry: Registry,
    stored: Mapping[str, Any],
    subject: str,
    strategy: SchemaStrategy = LATEST,
    *,
    more: Mapping[str, Any],
) -> FormatResolution:
    """The same for a CDCv2 stream: the columns are those of its data. `more` is said of the format."""
    format_ = {**_avro_format(registry, stored, subject, strategy), **more}
    return FormatResolution(format_, stream_shape(format_).columns)


def _avro_format(
    registry: Registry, stored: Mapping[str, Any], subject: str, strategy: SchemaStrategy
) -> dict[str, Any]:
    if strategy.text is not None:
        text = strategy.text
    else:
        found = _find(registry, subject, strategy.schema_id)
        _check_kind(found, AVRO, subject)
        text = found.avro_text()
    return {"format": "avro", "schema": text, "framed": True, "registry": dict(stored)}


def protobuf_inline(message: str, descriptor: bytes) -> FormatResolution:
    """PROTOBUF MESSAGE '.pkg.M' USING SCHEMA: `descriptor` is a FileDescriptorSet. Messages have no frame."""
    columns = protobuf_columns(find_message(descriptor, message))
    return FormatResolution(_protobuf(descriptor, message, None), columns)


def protobuf_registered(registry: Registry, stored: Mapping[str, Any], subject: str) -> FormatResolution:
    """PROTOBUF USING CONFLUENT SCHEMA REGISTRY: the first message of the subject's latest schema."""
    found = _find(registry, subject, None)
    _check_kind(found, PROTOBUF, subject)
    descriptor = compiled(found.text, found.references)
    message = first_message(descriptor)
    columns = protobuf_columns(find_message(descriptor, message))
    return FormatResolution(_protobuf(descriptor, message, stored), columns)


def _protobuf(descriptor: bytes, message: str, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "format": "protobuf",
        "descriptor": base64.b64encode(descriptor).decode(),
        "message": f".{message.removeprefix('.')}",
        "framed": stored is not None,
        "registry": None if stored is None else dict(stored),
    }


def csv_format(columns: int | Sequence[str], delimiter: str = ",") -> FormatResolution:
    """CSV WITH (n COLUMNS | HEADER (names)) [DELIMITED BY 'c']."""
    names = [f"column{i + 1}" for i in range(columns)] if isinstance(columns, int) else list(columns)
    if not 1 <= len(names) <= MAX_CSV_COLUMNS:
        raise InvalidValue(
            f"CSV has {len(names)} columns", detail=f"It has 1 to {MAX_CSV_COLUMNS}.", sqlstate="22023"
        )
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InvalidValue(f'column "{repeated}" specified more than once', sqlstate="42701")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\n\r\0':
        raise InvalidValue(
            "CSV is delimited by one ASCII character, which is no quote and no line end", sqlstate="22023"
        )
    return _plain({"format": "csv", "columns": names, "delimiter": delimiter})


def regex_format(pattern: str) -> FormatResolution:
    """REGEX '...'."""
    return _plain({"format": "regex", "pattern": pattern})


def plain_format(name: str) -> FormatResolution:
    """`json`, `text` or `bytes`."""
    if name not in ("json", "text", "bytes"):
        raise Unsupported(f"format {name} is not supported")
    return _plain({"format": name})


def _plain(format_: dict[str, Any]) -> FormatResolution:
    return FormatResolution(format_, open_decoder(format_).columns)


# The usual reason.
_KEYLESS = (
    " If the messages have no keys: Debezium writes them for tables with a primary key, and for those in its "
    "option message.key.columns."
)


def _find(registry: Registry, subject: str, schema_id: int | None) -> Registered:
    if schema_id is not None:
        return registry.by_id(schema_id)
    try:
        return registry.by_subject(subject)
    except RegistryError as error:
        if error.status != 404:
            raise
        raise UndefinedObject(
            f'schema registry has no schema for the subject "{subject}"',
            detail=error.detail,
            hint="Register it, or give the schema with AVRO USING SCHEMA or STRATEGY INLINE."
            + (_KEYLESS if subject.endswith("-key") else ""),
        ) from None


def _check_kind(found: Registered, kind: str, subject: str) -> None:
    if found.kind != kind:
        raise WrongObjectType(
            f'schema of the subject "{subject}" is of type {found.kind}, not {kind}',
            hint=f"Use FORMAT {found.kind}." if found.kind in (AVRO, PROTOBUF, "JSON") else None,
        )
