"""The same messages to PostgreSQL and to Tidemill, and what each of the two answers.

A `Dialogue` is one raw connection; `played` sends a conversation's turns (bytes that end in a Query or a
Sync) and gives the replies as text that can be compared: what differs between any two servers (table numbers,
keys) is left out.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pgframes as f

# Words of errors are ours; what programs act on must be the same: severity, state, place, names.
_ERROR_FIELDS = "SVCPstcdn"
_NOTICE_FIELDS = "SVC"
_SECONDS = 300.0


class Dialogue:
    """A connection to a server on a Unix socket (a path) or on a port of this machine."""

    def __init__(self, address: str | int, *, user: str, database: str, minor: int = 0, **extra: str) -> None:
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(_SECONDS)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(("127.0.0.1", address), timeout=_SECONDS)
        self._file = self.socket.makefile("rb")
        self.socket.sendall(f.startup(minor, user=user, database=database, **extra))
        self.greeting = self._until_ready()

    def next(self) -> tuple[str, bytes] | None:
        head = self._file.read(5)
        if len(head) < 5:
            return None
        return chr(head[0]), self._file.read(struct.unpack("!i", head[1:])[0] - 4)

    def _until_ready(self) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        while (message := self.next()) is not None:
            found.append(message)
            if message[0] == "Z":
                break
        return found

    def played(self, turns: Sequence[bytes]) -> list[list[str]]:
        """Each turn's replies up to ReadyForQuery (or the end)."""
        answers: list[list[str]] = []
        for turn in turns:
            answers.append([shown(tag, body) for tag, body in self.exchange(turn)])
        return answers

    def exchange(self, turn: bytes) -> list[tuple[str, bytes]]:
        self.socket.sendall(turn)
        return self._until_ready()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shown(tag: str, body: bytes) -> str:
    """A reply, one line of text."""
    match tag:
        case "T":
            return "T " + ", ".join(_columns(body))
        case "t":
            count = struct.unpack_from("!H", body)[0]
            return "t " + " ".join(map(str, struct.unpack_from(f"!{count}I", body, 2)))
        case "D":
            return "D " + ", ".join(_values(body))
        case "C" | "S":
            return f"{tag} " + " = ".join(part.decode() for part in body.split(b"\0")[:-1])
        case "E" | "N":
            fields = f.fields(body)
            wanted = _ERROR_FIELDS if tag == "E" else _NOTICE_FIELDS
            return f"{tag} " + " ".join(f"{k}={fields[k]}" for k in wanted if k in fields)
        case "Z":
            return "Z " + body.decode()
        case _:
            return f"{tag} {body!r}" if body else tag


def _columns(body: bytes) -> list[str]:
    (count,) = struct.unpack_from("!H", body)
    at, found = 2, list[str]()
    for _ in range(count):
        end = body.index(b"\0", at)
        _, _, oid, length, typmod, form = struct.unpack_from("!IhIhih", body, end + 1)
        found.append(f"{body[at:end].decode()}:{oid}/{length}/{typmod}/{form}")
        at = end + 1 + 18
    return found


def _values(body: bytes) -> list[str]:
    (count,) = struct.unpack_from("!H", body)
    at, found = 2, list[str]()
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, at)
        at += 4
        if length < 0:
            found.append("null")
        else:
            found.append(repr(body[at : at + length])[1:])
            at += length
    return found
