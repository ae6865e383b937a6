"""Pieces of an Avro file whose records are messages: the header, and one block per message.

Called by `files_target`. Any Avro reader can read such files. The marker between blocks is fixed, so equal
messages produce equal bytes.
"""

from __future__ import annotations

_MARKER = b"tidemill's sinks"


def avro_header(schema: str) -> bytes:
    """The header of a file whose records have the schema, which is JSON text."""
    meta = {b"avro.schema": schema.encode(), b"avro.codec": b"null"}
    entries = b"".join(_text(key) + _text(value) for key, value in meta.items())
    return b"Obj\x01" + _number(len(meta)) + entries + b"\x00" + _MARKER


def avro_block(record: bytes) -> bytes:
    """One record, encoded with the schema."""
    return _number(1) + _text(record) + _MARKER


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    """A non-negative number in Avro's encoding."""
    value <<= 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
