"""The protocol without I/O: parses bytes into messages, and decides which messages are valid now.

It has two state machines, because a connection reads ahead of what it runs. `Protocol` follows the byte
stream: it cuts and parses frames, and tracks the startup packet. `Conversation` follows execution: it
tracks whether the client's next messages are skipped after an error, and whether COPY data is expected.
Called by `connection`, `message_loop` and tests.

Promises: `receive` never raises. After a `ProtocolFailure` it returns no more events. The events do not
depend on how the bytes were cut. Work is linear in the bytes, and memory is bounded by one message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, auto

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.server import limits
from tidemill.server.pgwire import messages as m


@dataclass(frozen=True, slots=True)
class ProtocolFailure:
    """The stream cannot be parsed any further: report it to the client (FATAL) and close. Always the last
    event."""

    error: TidemillError


Event = m.StartupPacket | m.Message | ProtocolFailure


class _Phase(Enum):
    FIRST = auto()  # frames have no type byte: SSLRequest, GSSENCRequest, CancelRequest or Startup
    LOGIN = auto()  # typed frames, and short ones: the client is not authenticated yet
    OPEN = auto()
    OVER = auto()


class Protocol:
    """The byte stream of one client."""

    __slots__ = ("_buffer", "_phase", "_skip", "_skip_tag", "_wishes")

    def __init__(self) -> None:
        self._phase = _Phase.FIRST
        # The bytes of an unfinished frame; starts at the first byte of the frame.
        self._buffer = bytearray()
        # The outstanding bytes of a frame that is refused for its length, and its type. They are dropped on
        # arrival.
        self._skip = 0
        self._skip_tag = ""
        # Encryption requests so far: each kind may be sent once, in any order, before Startup.
        self._wishes: set[type] = set()

    def logged_in(self) -> None:
        """After a successful login messages may be long."""
        if self._phase is _Phase.LOGIN:
            self._phase = _Phase.OPEN

    @property
    def buffered(self) -> int:
        """The number of buffered bytes."""
        return len(self._buffer)

    @property
    def over(self) -> bool:
        """No more events follow, independent of the input."""
        return self._phase is _Phase.OVER

    def receive(self, data: bytes) -> list[Event]:
        """Yield the events that `data` completes, in order."""
        events: list[Event] = []
        if self.over:
            return events
        view = data
        if self._skip:
            taken = min(self._skip, len(view))
            self._skip -= taken
            if self._skip:
                return events
            events.append(self._refused())
            view = view[taken:]
        # A chunk that starts at a frame is parsed in place; only an unfinished frame is copied into the
        # buffer.
        if self._buffer:
            self._buffer += view
            source: bytes | bytearray = self._buffer
        else:
            source = view
        try:
            at = self._frames(source, events)
        except TidemillError as e:
            events.append(ProtocolFailure(e))
            self._over()
            return events
        if self.over:
            self._over()
        elif source is self._buffer:
            # Use a new buffer when all is consumed, to release the memory of a long message.
            if at == len(self._buffer):
                self._buffer = bytearray()
            elif at:
                del self._buffer[:at]
        elif at < len(source):
            self._buffer = bytearray(memoryview(source)[at:])
        return events

    def _over(self) -> None:
        self._phase = _Phase.OVER
        self._buffer = bytearray()
        self._skip = 0

    def _frames(self, source: bytes | bytearray, events: list[Event]) -> int:
        """Parse all whole frames; return where the first unfinished one starts."""
        at = 0
        while self._phase is not _Phase.OVER:
            if self._phase is _Phase.FIRST:
                end = self._first_packet(source, at, events)
            else:
                end = self._typed(source, at, events)
            if end == at:
                break
            at = end
        return at

    def _first_packet(self, source: bytes | bytearray, at: int, events: list[Event]) -> int:
        if len(source) - at < 4:
            return at
        (length,) = struct.unpack_from("!i", source, at)
        if not 8 <= length <= limits.MAX_STARTUP_BYTES:
            raise m.MalformedMessage("invalid length of startup packet")
        if len(source) - at < length:
            return at
        packet = m.read_startup(_piece(source, at + 4, at + length))
        if isinstance(packet, m.SslRequest | m.GssRequest):
            if type(packet) in self._wishes:
                raise m.MalformedMessage("encryption was already asked for on this connection")
            self._wishes.add(type(packet))
        elif isinstance(packet, m.CancelRequest):
            self._phase = _Phase.OVER
        else:
            self._phase = _Phase.LOGIN
        events.append(packet)
        return at + length

    def _typed(self, source: bytes | bytearray, at: int, events: list[Event]) -> int:
        have = len(source) - at
        if have < 1:
            return at
        tag = source[at]
        if tag not in m.TAGS:
            raise m.MalformedMessage(f"invalid frontend message type {tag}")
        if have < 5:
            return at
        (length,) = struct.unpack_from("!i", source, at + 1)
        if length < 4:
            raise m.MalformedMessage("invalid message length", detail=f"The length field says {length}.")
        stranger = self._phase is _Phase.LOGIN or tag == _PASSWORD
        longest = limits.MAX_AUTHENTICATION_BYTES if stranger else limits.MAX_MESSAGE_BYTES
        if length > longest:
            raise LimitExceeded(
                f"message of {length} bytes exceeds the limit of {longest} bytes",
                hint="Send the data in several messages; COPY takes rows in pieces of any size.",
            )
        if tag in m.TEXT_TAGS and length > _LONGEST_TEXT_FRAME:
            return self._skip_frame(tag, length + 1, source, at, events)
        if have < length + 1:
            return at
        events.append(m.read_message(tag, _piece(source, at + 5, at + 1 + length)))
        if tag == _TERMINATE:
            self._phase = _Phase.OVER
        return at + length + 1

    def _skip_frame(
        self, tag: int, size: int, source: bytes | bytearray, at: int, events: list[Event]
    ) -> int:
        """Discard a query's text that is too long as it arrives, and refuse it at its end."""
        self._skip_tag = chr(tag)
        have = len(source) - at
        if have >= size:
            events.append(self._refused())
            return at + size
        self._skip = size - have
        return len(source)

    def _refused(self) -> m.MessageRefused:
        return m.MessageRefused(
            self._skip_tag,
            LimitExceeded(
                f"query is longer than {limits.MAX_QUERY_BYTES} bytes",
                hint="Pass large values as parameters, or load rows with COPY.",
            ),
        )


def _piece(source: bytes | bytearray, start: int, end: int) -> bytes:
    """A slice of the source, copied once."""
    if isinstance(source, bytes):
        return source[start:end]
    with memoryview(source) as view:
        return bytes(view[start:end])


_PASSWORD = ord("p")
_TERMINATE = ord("X")
# A Parse message also carries a name and parameter types.
_LONGEST_TEXT_FRAME = limits.MAX_QUERY_BYTES + 2 * limits.MAX_IDENTIFIER_BYTES + 4 * 65_536


class _Stage(Enum):
    LOGIN = auto()  # only answers to our request
    IDLE = auto()  # between queries, or inside a chain of extended-query messages
    SKIPPING = auto()  # an extended-query message failed: messages are skipped until Sync
    COPYING = auto()  # we requested COPY data


class Conversation:
    """Which messages are valid, given the results of the earlier ones."""

    __slots__ = ("_stage",)

    def __init__(self) -> None:
        self._stage = _Stage.LOGIN

    def logged_in(self) -> None:
        self._stage = _Stage.IDLE

    def copy_started(self) -> None:
        """We sent CopyInResponse."""
        self._stage = _Stage.COPYING

    def copy_ended(self) -> None:
        """The data is complete, or the COPY failed: further data is skipped."""
        self._stage = _Stage.IDLE

    def failed(self, message: m.Message) -> None:
        """`message` ended in an error that was sent to the client."""
        chained = isinstance(message, _CHAINED) or (
            isinstance(message, m.MessageRefused) and message.tag in _CHAINED_TAGS
        )
        self._stage = _Stage.SKIPPING if chained else _Stage.IDLE

    def admit(self, message: m.Message) -> bool:
        """True: process the message. False: skip it. Raises ProtocolViolation if it is not allowed here."""
        if self._stage is _Stage.IDLE and not isinstance(message, m.AuthenticationReply):
            # A client may still be sending the data of a failed COPY.
            return not isinstance(message, _COPY)
        if isinstance(message, m.Terminate):
            return True
        match self._stage:
            case _Stage.LOGIN:
                if not isinstance(message, m.AuthenticationReply):
                    raise m.MalformedMessage(f"expected a password message, got {_title(message)}")
                return True
            case _Stage.SKIPPING:
                if isinstance(message, m.Sync):
                    self._stage = _Stage.IDLE
                    return True
                return False
            case _Stage.COPYING:
                if isinstance(message, _COPY):
                    return True
                if isinstance(message, m.Sync | m.Flush):
                    # Libraries that run COPY in the extended protocol have already sent their Sync.
                    return False
                raise m.MalformedMessage(f"unexpected {_title(message)} during COPY from stdin")
            case _Stage.IDLE:
                raise m.MalformedMessage("password message outside of a login")


_CHAINED = (m.Parse, m.Bind, m.Describe, m.ExecuteMessage, m.CloseMessage, m.Flush)
_CHAINED_TAGS = frozenset("PBDECH")
_COPY = (m.CopyData, m.CopyDone, m.CopyFail)


def _title(message: m.Message) -> str:
    return f"message of type {type(message).__name__}"
