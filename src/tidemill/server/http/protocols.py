"""uvicorn's protocols with additional timeouts and limits, for clients that are silent, stall, or use
uncounted memory.

uvicorn creates one for each connection. Promises: a connection without the head of a request for
`HEAD_SECONDS` is closed. A client that reads no byte of pending output for `STALLED_SECONDS` is disconnected,
so that no task waits for it forever. The fragments of a WebSocket message and pending pongs use bounded
memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from tidemill.server.http.limits import (
    HEAD_SECONDS,
    MAX_FRAGMENTS,
    MAX_PONG_BYTES,
    STALLED_SECONDS,
)

# Errors of a client are reported only to this client and not logged, because any client could fill the disk
# with log lines. The endpoints log their own errors.
_silent = logging.getLogger("tidemill.server.http.silent")
_silent.disabled = True


class StallGuard:
    """Watches a transport whose write buffer is full, and aborts the connection if the client reads nothing
    until the timeout."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        # Bytes in the write buffer at the last check.
        self._waiting = 0
        # For the bytes in the system's buffers, which the transport does not see.
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED_SECONDS * 1000))

    def paused(self) -> None:
        """The write buffer of the transport is full."""
        if self._timer is None:
            self._look()

    def over(self) -> None:
        """The transport can write again, or is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._waiting = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(STALLED_SECONDS, self._judge)

    def _judge(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() < self._waiting:
            self._look()
        else:
            self._transport.abort()


class HttpProtocol(H11Protocol):
    """HTTP requests and responses. Closes a connection that does not send the head of a request in time;
    uvicorn would wait without end."""

    _head_timer: asyncio.TimerHandle | None = None
    _upgraded = False
    _stall: StallGuard

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._stall = StallGuard(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stall.over()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.paused()

    def resume_writing(self) -> None:
        self._stall.over()
        super().resume_writing()

    def handle_websocket_upgrade(self, event: Any) -> None:
        # After the upgrade, this protocol receives no more events.
        self._upgraded = True
        self._stall.over()
        super().handle_websocket_upgrade(event)

    def _waiting(self) -> bool:
        # uvicorn declares `cycle` as never None and starts with None.
        cycle: Any = self.cycle
        return not self._upgraded and (cycle is None or cycle.response_complete)

    def _watch_head(self) -> None:
        if not self._waiting():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_late(self) -> None:
        self._head_timer = None
        if self._waiting() and not self.transport.is_closing():
            self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket. In addition to ASGI's messages it accepts `{"type": "websocket.send", "frames": bytes}`:
    complete frames, such as those that `frames` builds from many rows at once."""

    _stall: StallGuard

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _silent
        self.conn.logger = _silent

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._stall = StallGuard(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall.over()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.paused()

    def resume_writing(self) -> None:
        self._stall.over()
        super().resume_writing()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.conn.fail(1009, f"a message has more than {MAX_FRAGMENTS} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() > MAX_PONG_BYTES:
            self.transport.abort()
            return
        super().handle_ping()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # Otherwise pending output for a client that does not answer would keep the connection open.
        self.transport.abort()

    async def send(self, message: Any) -> None:
        frames = message.get("frames")
        if frames is None:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.transport.is_closing():
            raise ClientDisconnected
        self.transport.write(frames)
