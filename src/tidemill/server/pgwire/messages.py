"""The client's messages: one frozen dataclass per message, and the parsers of their bodies.

Called by `protocol`, which cuts the byte stream into frames. Promises that any bytes give one of three
results. A message. A `MessageRefused`: the frame is valid but its content is not acceptable; this is an
ordinary error, and the connection continues. A `MalformedMessage`: the content contradicts itself, and
the connection ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.caches import cached
from tidemill.errors import InvalidValue, LimitExceeded, TidemillError
from tidemill.server import limits


class MalformedMessage(TidemillError):
    """The client violated the protocol; its connection ends."""

    sqlstate = "08P01"


@dataclass(frozen=True, slots=True)
class SslRequest:
    """Request for TLS. Answered with one byte."""


@dataclass(frozen=True, slots=True)
class GssRequest:
    """Request for GSSAPI encryption. Answered with one byte."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel the running statement of session `process_id` if the key is its secret. No answer; the
    connection ends."""

    process_id: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Startup:
    """The startup packet. `minor` is the requested minor version; `extensions` are the `_pq_.` options."""

    minor: int
    parameters: dict[str, str]
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthenticationReply:
    """A password or a SASL message; the preceding request decides which."""

    data: bytes


@dataclass(frozen=True, slots=True)
class QueryMessage:
    text: str


@dataclass(frozen=True, slots=True)
class Parse:
    name: str
    text: str
    param_oids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """`param_formats` and `result_formats` are as sent: none (all text), one for all, or one each."""

    portal: str
    statement: str
    param_formats: tuple[int, ...]
    params: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    kind: str  # "S" statement, "P" portal
    name: str


@dataclass(frozen=True, slots=True)
class ExecuteMessage:
    portal: str
    max_rows: int  # 0 = all


@dataclass(frozen=True, slots=True)
class CloseMessage:
    kind: str  # "S" statement, "P" portal
    name: str


@dataclass(frozen=True, slots=True)
class Sync:
    pass


@dataclass(frozen=True, slots=True)
class Flush:
    pass


@dataclass(frozen=True, slots=True)
class Terminate:
    pass


@dataclass(frozen=True, slots=True)
class CopyData:
    data: bytes


@dataclass(frozen=True, slots=True)
class CopyDone:
    pass


@dataclass(frozen=True, slots=True)
class CopyFail:
    reason: str


@dataclass(frozen=True, slots=True)
class FunctionCallMessage:
    """The old fast-path call. It is parsed so that it can be refused in order; its content is discarded."""


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A valid frame of type `tag` with unacceptable content: too long a query, invalid UTF-8, too long a
    name."""

    tag: str
    error: TidemillError


Message = (
    AuthenticationReply
    | QueryMessage
    | Parse
    | Bind
    | Describe
    | ExecuteMessage
    | CloseMessage
    | Sync
    | Flush
    | Terminate
    | CopyData
    | CopyDone
    | CopyFail
    | FunctionCallMessage
    | MessageRefused
)
StartupPacket = SslRequest | GssRequest | CancelRequest | Startup

# Messages without content are created once: a client may send thousands of Syncs in one packet.
SYNC = Sync()
FLUSH = Flush()
TERMINATE = Terminate()
COPY_DONE = CopyDone()
FUNCTION_CALL = FunctionCallMessage()

_CANCEL_CODE = (1234 << 16) | 5678
_SSL_CODE = (1234 << 16) | 5679
_GSS_CODE = (1234 << 16) | 5680

OLDEST_MINOR = 0
NEWEST_MINOR = 2
_EXTENSION_PREFIX = "_pq_."


class _Unacceptable(Exception):
    """Used in this module only: the content is refused with `error`."""

    def __init__(self, error: TidemillError) -> None:
        super().__init__()
        self.error = error


_UINT16 = struct.Struct("!H")
_INT32 = struct.Struct("!i")


class _Body:
    """Reads the body of one message from front to back; every step checks that the bytes exist."""

    __slots__ = ("at", "data", "what")

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.at = 0
        self.what = what

    def _short(self) -> MalformedMessage:
        return MalformedMessage("insufficient data left in message", detail=f"Message: {self.what}.")

    def raw(self, n: int) -> bytes:
        end = self.at + n
        if n < 0 or end > len(self.data):
            raise self._short()
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def rest(self) -> bytes:
        piece = self.data[self.at :]
        self.at = len(self.data)
        return piece

    def ints(self, code: str, n: int) -> tuple[int, ...]:
        if n == 0:
            return ()
        width = 2 if code in "hH" else 4
        return struct.unpack(f"!{n}{code}", self.raw(width * n))

    def uint16(self) -> int:
        return _UINT16.unpack(self.raw(2))[0]

    def int32(self) -> int:
        return _INT32.unpack(self.raw(4))[0]

    def string(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise MalformedMessage("invalid string in message", detail=f"Message: {self.what}.")
        piece = self.data[self.at : end]
        self.at = end + 1
        return decode_utf8(piece)

    def name(self) -> str:
        began = self.at
        text = self.string()
        if self.at - began - 1 > limits.MAX_IDENTIFIER_BYTES:
            raise _Unacceptable(
                LimitExceeded(
                    f"identifier is longer than {limits.MAX_IDENTIFIER_BYTES} bytes",
                    detail=f'It starts with "{text[:40]}".',
                    sqlstate="42622",
                )
            )
        return text

    def end(self) -> None:
        if self.at != len(self.data):
            raise MalformedMessage("invalid message format", detail=f"Message: {self.what}.")


def decode_utf8(data: bytes) -> str:
    """Decode the bytes, or refuse them with PostgreSQL's message."""
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        bad = " ".join(f"0x{b:02x}" for b in data[e.start : min(e.end + 1, e.start + 4)])
        raise _Unacceptable(
            InvalidValue(f'invalid byte sequence for encoding "UTF8": {bad}', sqlstate="22021")
        ) from None


def _parse(b: _Body) -> Parse:
    name, text = b.name(), b.string()
    return Parse(name, text, b.ints("I", b.uint16()))


def _bind(b: _Body) -> Bind:
    portal, statement = b.name(), b.name()
    formats = b.ints("h", b.uint16())
    params: list[bytes | None] = []
    for _ in range(b.uint16()):
        n = b.int32()
        params.append(None if n == -1 else b.raw(n))
    return Bind(portal, statement, formats, tuple(params), b.ints("h", b.uint16()))


def _kind(b: _Body) -> str:
    kind = b.raw(1)
    if kind not in (b"S", b"P"):
        raise MalformedMessage(f"invalid {b.what.upper()} message subtype {kind[0]}")
    return kind.decode()


def _execute(b: _Body) -> ExecuteMessage:
    portal, rows = b.name(), b.int32()
    return ExecuteMessage(portal, max(rows, 0))


def _function_call(b: _Body) -> FunctionCallMessage:
    b.rest()
    return FUNCTION_CALL


_READERS: dict[str, tuple[str, Callable[[_Body], Message]]] = {
    "p": ("password", lambda b: AuthenticationReply(b.rest())),
    "Q": ("query", lambda b: QueryMessage(b.string())),
    "P": ("parse", _parse),
    "B": ("bind", _bind),
    "D": ("describe", lambda b: Describe(_kind(b), b.name())),
    "E": ("execute", _execute),
    "C": ("close", lambda b: CloseMessage(_kind(b), b.name())),
    "S": ("sync", lambda b: SYNC),
    "H": ("flush", lambda b: FLUSH),
    "X": ("terminate", lambda b: TERMINATE),
    "d": ("copy data", lambda b: CopyData(b.rest())),
    "c": ("copy done", lambda b: COPY_DONE),
    "f": ("copy fail", lambda b: CopyFail(b.string())),
    "F": ("function call", _function_call),
}

TAGS = frozenset(ord(tag) for tag in _READERS)

# Messages that contain a query's text. One that exceeds the limit is skipped without buffering it.
TEXT_TAGS = frozenset(b"QP")


def read_message(tag: int, body: bytes) -> Message:
    """Parse one typed message. Raises ProtocolViolation if the content contradicts itself."""
    try:
        return _read_again(tag, body) if tag in _NAMES_ALONE else _read(tag, body)
    except _Unacceptable as e:
        return MessageRefused(chr(tag), e.error)


def _read(tag: int, body: bytes) -> Message:
    what, reader = _READERS[chr(tag)]
    b = _Body(body, what)
    message = reader(b)
    b.end()
    return message


# The same few messages accompany every prepared statement and contain only names.
_NAMES_ALONE = frozenset(b"DESH")
_read_again = cached(256)(_read)


def read_startup(body: bytes) -> StartupPacket:
    """Parse the first packet, without its length field. Raises ProtocolViolation, or the error of a
    `MessageRefused`."""
    b = _Body(body, "startup packet")
    (code,) = b.ints("I", 1)
    if code == _SSL_CODE:
        b.end()
        return SslRequest()
    if code == _GSS_CODE:
        b.end()
        return GssRequest()
    if code == _CANCEL_CODE:
        process_id, key = b.int32(), b.rest()
        if not 4 <= len(key) <= 256:
            raise MalformedMessage("invalid length of cancel request packet")
        return CancelRequest(process_id, key)
    major, minor = code >> 16, code & 0xFFFF
    if major != 3:
        raise MalformedMessage(
            f"unsupported frontend protocol {major}.{minor}:"
            f" server supports 3.{OLDEST_MINOR} to 3.{NEWEST_MINOR}",
            sqlstate="0A000",
        )
    try:
        return _startup(b, minor)
    except _Unacceptable as e:
        raise e.error from None


def _startup(b: _Body, minor: int) -> Startup:
    parameters: dict[str, str] = {}
    extensions: list[str] = []
    while name := b.string():
        value = b.string()
        if name.startswith(_EXTENSION_PREFIX):
            extensions.append(name)
        else:
            parameters[name] = value
    if b.at != len(b.data):
        raise MalformedMessage("invalid startup packet layout: expected terminator as last byte")
    return Startup(minor, parameters, tuple(extensions))
