"""A PostgreSQL client in a hundred lines of the standard library: simple queries, text results.

For the demo, which must run with nothing but what the server itself needs. Not for applications: use psycopg.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

PROTOCOL = 196608  # 3.0


class PgError(Exception):
    """An ErrorResponse: its fields by their letter (S severity, C code, M message, D detail, H hint)."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields.get("M", "unknown error"))
        self.code = fields.get("C", "")
        self.detail = fields.get("D")
        self.hint = fields.get("H")


@dataclass
class Result:
    """One statement's answer. Values are text, or None for NULL."""

    tag: str = ""
    names: list[str] = field(default_factory=list)
    rows: list[list[str | None]] = field(default_factory=list)


class Connection:
    """One connection, for one thread at a time. `on_notice` gets the text of notices."""

    def __init__(
        self, host: str, port: int, timeout: float = 60.0, on_notice: Callable[[str], None] | None = None
    ) -> None:
        self._on_notice = on_notice
        self._buffer = b""
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = struct.pack("!i", PROTOCOL) + b"user\0materialize\0database\0materialize\0\0"
        self._socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self._until_ready()

    def query(self, sql: str) -> list[Result]:
        """Run the statements; raises PgError after the server is ready for the next query."""
        body = sql.encode() + b"\0"
        self._socket.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)
        return self._until_ready()

    def close(self) -> None:
        try:
            self._socket.sendall(b"X\0\0\0\4")
        except OSError:
            pass  # the server is gone already
        self._socket.close()

    def _until_ready(self) -> list[Result]:
        results: list[Result] = []
        current = Result()
        error: PgError | None = None
        while True:
            kind, body = self._message()
            if kind == b"Z":
                if error is not None:
                    raise error
                return results
            if kind == b"T":
                current = Result(names=_names(body))
            elif kind == b"D":
                current.rows.append(_values(body))
            elif kind == b"C":
                current.tag = body[:-1].decode()
                results.append(current)
                current = Result()
            elif kind == b"E":
                error = PgError(_fields(body))
            elif kind == b"N" and self._on_notice is not None:
                self._on_notice(_fields(body).get("M", ""))

    def _message(self) -> tuple[bytes, bytes]:
        kind = self._exactly(1)
        (length,) = struct.unpack("!i", self._exactly(4))
        return kind, self._exactly(length - 4)

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


def _names(body: bytes) -> list[str]:
    (count,) = struct.unpack_from("!h", body)
    names: list[str] = []
    at = 2
    for _ in range(count):
        end = body.index(b"\0", at)
        names.append(body[at:end].decode())
        at = end + 1 + 18  # table, column, type, length, modifier, format
    return names


def _values(body: bytes) -> list[str | None]:
    (count,) = struct.unpack_from("!h", body)
    values: list[str | None] = []
    at = 2
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        if length < 0:
            values.append(None)
        else:
            values.append(body[at : at + length].decode())
            at += length
    return values


def _fields(body: bytes) -> dict[str, str]:
    parts = body.rstrip(b"\0").split(b"\0")
    return {chr(part[0]): part[1:].decode() for part in parts if part}
