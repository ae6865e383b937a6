"""The server's messages: functions that encode values as whole messages.

Called by `connection` and `message_loop`. Rows are in `rows`, because they are encoded by column.
Promise: each function returns whole messages, so that results can be concatenated and notices inserted
between them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from tidemill.caches import cached
from tidemill.errors import About, Notice, TidemillError
from tidemill.types import wire
from tidemill.types.model import Column, SqlType


def message(tag: bytes, body: bytes = b"") -> bytes:
    return tag + struct.pack("!i", len(body) + 4) + body


def _cstring(text: str) -> bytes:
    """Text with its terminator. A NUL inside would end the field early and shift all later fields."""
    return text.replace("\0", "\\0").encode(errors="replace") + b"\0"


AUTHENTICATION_OK = message(b"R", struct.pack("!i", 0))
EMPTY_QUERY = message(b"I")
PARSE_COMPLETE = message(b"1")
BIND_COMPLETE = message(b"2")
CLOSE_COMPLETE = message(b"3")
NO_DATA = message(b"n")
PORTAL_SUSPENDED = message(b"s")
COPY_DONE = message(b"c")
# The one byte that refuses SSLRequest and GSSENCRequest; it is not a message.
NO_ENCRYPTION = b"N"
# The one byte that accepts SSLRequest; TLS starts after it.
TLS_FOLLOWS = b"S"


def authentication(code: int, data: bytes = b"") -> bytes:
    """A request for credentials: 3 cleartext password, 10 / 11 / 12 SASL."""
    return message(b"R", struct.pack("!i", code) + data)


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", _cstring(name) + _cstring(value))


def backend_key_data(process_id: int, key: bytes) -> bytes:
    return message(b"K", struct.pack("!i", process_id) + key)


def negotiate_protocol_version(minor: int, unknown: Iterable[str]) -> bytes:
    """The version that we support and the `_pq_.` options that we do not know."""
    names = [_cstring(name) for name in unknown]
    return message(b"v", struct.pack("!ii", (3 << 16) | minor, len(names)) + b"".join(names))


# There are only three.
@cached(8)
def ready_for_query(status: str) -> bytes:
    return message(b"Z", status.encode())


# Cached: the tags of small results repeat.
@cached(256)
def command_complete(tag: str) -> bytes:
    return message(b"C", _cstring(tag))


def parameter_description(types: Sequence[SqlType]) -> bytes:
    return message(b"t", struct.pack(f"!H{len(types)}I", len(types), *(wire.oid(t) for t in types)))


def row_description(columns: Sequence[Column], formats: Sequence[int]) -> bytes:
    """`formats` has one entry per column. Table and attribute numbers are 0, because results do not refer to
    tables."""
    fields = [
        _cstring(c.name)
        + struct.pack("!IhIhih", 0, 0, wire.oid(c.type), wire.typlen(c.type), wire.typmod(c.type), f)
        for c, f in zip(columns, formats, strict=True)
    ]
    return message(b"T", struct.pack("!H", len(fields)) + b"".join(fields))


def copy_response(tag: bytes, columns: int, *, binary: bool) -> bytes:
    """`tag` is G (the client sends data) or H (the server sends data)."""
    code = int(binary)
    return message(tag, struct.pack(f"!bH{columns}h", code, columns, *([code] * columns)))


def copy_data(data: bytes) -> bytes:
    return message(b"d", data)


def _fields(pairs: Iterable[tuple[bytes, str | None]]) -> bytes:
    return b"".join(code + _cstring(text) for code, text in pairs if text) + b"\0"


_NOTHING = About()


def error_response(error: TidemillError, *, severity: str = "ERROR") -> bytes:
    """`severity` is ERROR, FATAL (the connection ends) or PANIC."""
    about = error.about or _NOTHING
    return message(
        b"E",
        _fields(
            (
                (b"S", severity),
                (b"V", severity),
                (b"C", error.sqlstate),
                (b"M", error.primary or "unknown error"),
                (b"D", error.detail),
                (b"H", error.hint),
                (b"P", str(error.position) if error.position else None),
                (b"W", error.context),
                (b"s", about.schema),
                (b"t", about.table),
                (b"c", about.column),
                (b"d", about.data_type),
                (b"n", about.constraint),
                (b"R", error.routine),
            )
        ),
    )


def notice_response(notice: Notice) -> bytes:
    return message(
        b"N",
        _fields(
            (
                (b"S", notice.severity),
                (b"V", notice.severity),
                (b"C", notice.sqlstate),
                (b"M", notice.text),
                (b"D", notice.detail),
                (b"H", notice.hint),
            )
        ),
    )
