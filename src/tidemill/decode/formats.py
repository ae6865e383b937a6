"""Decoders by format. A format is a plain dictionary of a source definition, and its meaning never changes.

Called in the tasks by sources whose upstream carries messages, and at CREATE for the columns. `resolve`
creates the dictionaries.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.contract import Decoder
from tidemill.decode.csv import CsvMessageDecoder
from tidemill.decode.json import JsonDecoder
from tidemill.decode.protobuf import ProtobufDecoder
from tidemill.decode.regex import RegexDecoder
from tidemill.decode.registry import Registry
from tidemill.decode.text import BytesDecoder, TextMessageDecoder
from tidemill.errors import Internal


def open_decoder(format_: Mapping[str, Any]) -> Decoder:
    """The decoder of a format, in which a registry's connection is replaced by its options."""
    match format_:
        case {"format": "avro", "schema": schema, "framed": framed}:
            return AvroDecoder(schema, framed=framed, writers=_registry(format_))
        case {"format": "json"}:
            return JsonDecoder()
        case {"format": "text"}:
            return TextMessageDecoder()
        case {"format": "bytes"}:
            return BytesDecoder()
        case {"format": "regex", "pattern": pattern}:
            return RegexDecoder(pattern)
        case {"format": "csv", "columns": columns, "delimiter": delimiter}:
            return CsvMessageDecoder(columns, delimiter)
        case {"format": "protobuf", "descriptor": descriptor, "message": message, "framed": framed}:
            files = base64.b64decode(descriptor)
            return ProtobufDecoder(files, message, framed=framed, registry=_registry(format_))
        case _:
            raise Internal(f"no decoder for the format {format_.get('format')!r}")


def _registry(format_: Mapping[str, Any]) -> Registry | None:
    options = format_.get("registry")
    return None if options is None else Registry.of(options)
