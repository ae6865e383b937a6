"""TLS on top of an existing transport, with a transport's interface.

`connection` makes one when a client requests TLS or starts with it. OpenSSL works in memory: `receive`
takes ciphertext and returns plaintext; writes go to the transport below. It replaces asyncio's TLS,
which cannot take over bytes that were already read (a client that starts with TLS at once) and reserves
256 kB for each connection.

Promises: at most one chunk is buffered above the transport below, whose flow control applies to both.
Every failure is an `ssl.SSLError` from `receive`; afterwards only `abort` and `close` are valid.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from tidemill.engine.api import Encryption

# The size of one read: a TLS record holds at most 16 kB.
_PIECE = 65_536


class SecureTransport(asyncio.Transport):
    """The methods of a transport that a connection uses."""

    def __init__(self, below: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        # The handshake is complete: data may be sent to the client.
        self.established = False
        # The client announced that it will send nothing more.
        self.ended = False
        # The client started with TLS at once, without a request.
        self.direct = False

    def receive(self, data: bytes) -> bytes:
        """Decrypt `data`, which the transport below received."""
        self._incoming.write(data)
        try:
            if not self.established:
                self._tls.do_handshake()
                self.established = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        finally:
            # Our part of the handshake, or the alert with the reason of the end.
            self._flush()

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            try:
                piece = self._tls.read(_PIECE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.ended = True
                break
            pieces.append(piece)
        return b"".join(pieces)

    def _flush(self) -> None:
        if self._outgoing.pending and not self._below.is_closing():
            self._below.write(self._outgoing.read())

    def write(self, data: Any) -> None:
        if not self.established or not len(data):
            return
        self._tls.write(data)
        self._flush()

    def close(self) -> None:
        if self.established and not self._below.is_closing():
            try:
                # Marks a regular end, as opposed to a lost connection. The answer is not awaited.
                self._tls.unwrap()
            except ssl.SSLError:
                pass
            self._flush()
        self._below.close()

    @property
    def version(self) -> str:
        """The TLS version, such as `TLSv1.3`."""
        return self._tls.version() or ""

    @property
    def protocol(self) -> str | None:
        """The protocol negotiated in TLS (ALPN); None if the client did not ask."""
        return self._tls.selected_alpn_protocol()

    def peer_certificate(self) -> object:
        """The client's certificate as `getpeercert` returns it; None if it sent none."""
        return self._tls.getpeercert() or None

    @property
    def encryption(self) -> Encryption:
        name, _, bits = self._tls.cipher() or (None, None, None)
        return Encryption(self._tls.version(), name, bits)

    # -- what the transport below does

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._below.is_closing()

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)
