"""Frontend messages as bytes, for tests that drive the protocol without a client library."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def frame(tag: bytes, body: bytes = b"") -> bytes:
    return tag + struct.pack("!i", len(body) + 4) + body


def startup(minor: int = 0, **parameters: str) -> bytes:
    pairs = {"user": "materialize", "database": "materialize", **parameters}
    body = struct.pack("!HH", 3, minor)
    for name, value in pairs.items():
        body += name.encode() + b"\0" + value.encode() + b"\0"
    body += b"\0"
    return struct.pack("!i", len(body) + 4) + body


def request(code: int, rest: bytes = b"") -> bytes:
    return struct.pack("!iHH", 8 + len(rest), 1234, code) + rest


SSL = request(5679)
GSS = request(5680)
SYNC = frame(b"S")
FLUSH = frame(b"H")
TERMINATE = frame(b"X")
COPY_DONE = frame(b"c")


def cancel(process_id: int, key: bytes) -> bytes:
    return request(5678, struct.pack("!i", process_id) + key)


def query(text: str) -> bytes:
    return frame(b"Q", text.encode() + b"\0")


def parse(text: str, name: str = "", oids: Sequence[int] = ()) -> bytes:
    body = name.encode() + b"\0" + text.encode() + b"\0"
    return frame(b"P", body + struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def bind(
    params: Sequence[bytes | None] = (),
    portal: str = "",
    statement: str = "",
    param_formats: Sequence[int] = (),
    result_formats: Sequence[int] = (),
) -> bytes:
    body = portal.encode() + b"\0" + statement.encode() + b"\0"
    body += struct.pack(f"!H{len(param_formats)}h", len(param_formats), *param_formats)
    body += struct.pack("!H", len(params))
    for p in params:
        body += struct.pack("!i", -1) if p is None else struct.pack("!i", len(p)) + p
    body += struct.pack(f"!H{len(result_formats)}h", len(result_formats), *result_formats)
    return frame(b"B", body)


def describe(kind: bytes = b"P", name: str = "") -> bytes:
    return frame(b"D", kind + name.encode() + b"\0")


def execute(portal: str = "", max_rows: int = 0) -> bytes:
    return frame(b"E", portal.encode() + b"\0" + struct.pack("!i", max_rows))


def close(kind: bytes = b"S", name: str = "") -> bytes:
    return frame(b"C", kind + name.encode() + b"\0")


def copy_data(data: bytes) -> bytes:
    return frame(b"d", data)


def copy_fail(reason: str) -> bytes:
    return frame(b"f", reason.encode() + b"\0")


def password(data: bytes) -> bytes:
    return frame(b"p", data)


def replies(data: bytes) -> list[tuple[str, bytes]]:
    """The backend's messages as (tag, body). Fails if the bytes are not whole messages."""
    found: list[tuple[str, bytes]] = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("!i", data, at + 1)
        end = at + 1 + length
        if end > len(data):
            raise AssertionError("half a message")
        found.append((chr(data[at]), data[at + 5 : end]))
        at = end
    return found


def fields(body: bytes) -> dict[str, str]:
    """The fields of an ErrorResponse or NoticeResponse."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
