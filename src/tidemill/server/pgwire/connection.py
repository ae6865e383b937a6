"""The socket of one client: transport callbacks, login, and the task that runs its messages.

`listener` makes one for every TCP connection. It is an `asyncio.Protocol` and not a stream, because
thousands of connections are mostly idle and streams keep buffers for each. The task starts with the
startup packet. Promises: the socket is read while a statement runs (up to the limit of the inbox), so
that a Terminate or a closed socket is noticed. An error ends only this connection. The session of the
engine is closed exactly once.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import shlex
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import cast

from tidemill.engine.api import Engine, Session, StartupOptions
from tidemill.errors import QueryCanceled, TidemillError, UndefinedObject, Unsupported
from tidemill.server import limits
from tidemill.server.auth import LoginRefused, Peer
from tidemill.server.metrics import BYTES_RECEIVED
from tidemill.server.pgwire import messages as m
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.auth import Authentication
from tidemill.server.pgwire.client_line import ClientLine, ConnectionEnds, Inbox, Outbox
from tidemill.server.pgwire.copying import next_message
from tidemill.server.pgwire.error_reports import client_error, log
from tidemill.server.pgwire.message_loop import Conductor
from tidemill.server.pgwire.protocol import Conversation, Event, Protocol, ProtocolFailure
from tidemill.server.pgwire.secure import SecureTransport
from tidemill.server.shared import Encodings
from tidemill.server.tls import ALPN, Tls, common_name

# Seconds that a closing connection may take to send its last bytes to the client.
_LINGER_SECONDS = 5.0

# The first byte of a client that starts with TLS at once. No startup packet is long enough to start with it.
_HANDSHAKE = 0x16


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The state that all connections of a listener share."""

    engine: Engine
    pool: Executor
    encodings: Encodings
    authentication: Authentication
    # None: without a certificate, a request for TLS is refused.
    tls: Tls | None
    # (process id, key): cancels the running statement of that session if the key is correct.
    cancel: Callable[[int, bytes], None]
    # True if there are so many connections that not even the first packet is read.
    crowded: Callable[[], bool]
    # Raises (53300) if the connection with this id may not log in as this role.
    admit: Callable[[int, str], None]
    # Called when the connection with this id is closed.
    forget: Callable[[int], None]


class PgConnection(asyncio.Protocol):
    """One client, from accept to close."""

    __slots__ = (
        "_conductor",
        "_house",
        "_inbox",
        "_login_timer",
        "_outbox",
        "_protocol",
        "_secure",
        "_silent",
        "_task",
        "_transport",
        "key",
        "process_id",
    )

    def __init__(self, house: ServerContext, process_id: int) -> None:
        self._house = house
        self.process_id = process_id
        # The secret for cancel requests. It is set at the login, because its length depends on the protocol
        # version.
        self.key = b""
        self._protocol = Protocol()
        self._transport: asyncio.Transport | None = None
        # TLS over that transport, once the client has requested it; then messages pass through it.
        self._secure: SecureTransport | None = None
        # No byte has arrived yet.
        self._silent = True
        # These three are set after the startup packet.
        self._inbox: Inbox | None = None
        self._outbox: Outbox | None = None
        self._task: asyncio.Task[None] | None = None
        # Set after a successful login.
        self._conductor: Conductor | None = None
        self._login_timer: asyncio.TimerHandle | None = None

    # -- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._house.crowded():
            self._transport.abort()
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            # Keepalive detects a machine that vanished silently.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SEND_BYTES)
        loop = asyncio.get_running_loop()
        self._login_timer = loop.call_later(limits.LOGIN_SECONDS, self._login_too_slow)

    def data_received(self, data: bytes) -> None:
        BYTES_RECEIVED.value += len(data)
        if self._silent:
            self._silent = False
            if data[0] == _HANDSHAKE and self._house.tls is not None:
                self._begin_tls(self._house.tls, direct=True)
        if self._secure is None:
            self._heard(data)
            return
        began = self._secure.established
        try:
            said = self._secure.receive(data)
            if not began and self._secure.established:
                self._tls_established(self._secure)
        except ssl.SSLError as e:
            # A client that does not trust the certificate, or not a PostgreSQL client. One log line for each
            # would let anyone fill the disk.
            log.debug("a TLS connection failed: %s", e.reason or e)
            self.abort()
            return
        if said:
            self._heard(said)
        if self._secure.ended:
            self.eof_received()
            if self._inbox is None:
                self._close()

    def _heard(self, data: bytes) -> None:
        events = self._protocol.receive(data)
        for at, event in enumerate(events):
            if isinstance(event, m.SslRequest) and self._house.tls is not None:
                if at + 1 < len(events) or self._protocol.buffered:
                    # A man in the middle may have inserted these bytes to pass them off as the client's.
                    self._before_startup(ProtocolFailure(m.MalformedMessage(_TOO_EARLY)))
                    return
                self._begin_tls(self._house.tls)
            elif self._inbox is None:
                self._before_startup(event)
            else:
                self._inbox.put(event)
                if isinstance(event, m.Terminate):
                    self._client_left(self._inbox)

    def eof_received(self) -> bool:
        if self._inbox is None:
            return False
        self._inbox.close()
        self._client_left(self._inbox)
        # The transport stays open until all requests are answered; the task closes it.
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._login_timer is not None:
            self._login_timer.cancel()
        if self._outbox is not None:
            self._outbox.lose()
        if self._inbox is not None:
            self._inbox.end(None)
            self._client_left(self._inbox)
        if self._task is None:
            self._house.forget(self.process_id)

    def pause_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.pause()

    def resume_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.resume()

    # -- what the listener calls

    def cancel(self, key: bytes) -> bool:
        """Cancel the running statement if `key` is this session's secret. Returns whether it is."""
        if self._conductor is None or not hmac.compare_digest(key, self.key):
            return False
        self._conductor.cancel()
        return True

    def shut_down(self, error: TidemillError) -> asyncio.Task[None] | None:
        """Send `error` to the client and end; a running statement is cancelled. Returns the task to
        wait for."""
        if self._inbox is None:
            self._close()
            return None
        self._inbox.end(error)
        if self._conductor is not None:
            self._conductor.cancel()
        return self._task

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- TLS

    def _begin_tls(self, tls: Tls, *, direct: bool = False) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not direct:
            transport.write(replies.TLS_FOLLOWS)
        self._secure = SecureTransport(transport, tls.sql)
        self._secure.direct = direct
        self._transport = self._secure

    def _tls_established(self, secure: SecureTransport) -> None:
        if secure.direct and secure.protocol != ALPN:
            # The client may mistake us for a server of another protocol, and could be tricked into sending us
            # requests.
            failure = m.MalformedMessage(
                "received direct SSL connection request without ALPN protocol negotiation extension"
            )
            self._before_startup(ProtocolFailure(failure))

    @property
    def _peer(self) -> Peer:
        transport = self._transport
        name = None if transport is None else transport.get_extra_info("peername")
        address = name[0] if isinstance(name, tuple) else ""
        if self._secure is None:
            return Peer(address)
        return Peer(address, tls=True, certificate_name=common_name(self._secure.peer_certificate()))

    def _check_encryption(self, peer: Peer) -> None:
        """If there is a certificate, connections from other machines must use TLS."""
        if self._house.tls is not None and not peer.tls and not peer.local:
            raise LoginRefused(
                "this server takes connections from other machines by TLS only",
                hint="Connect with sslmode=require, better verify-full.",
                sqlstate="28000",
            )

    # -- before the startup packet

    def _before_startup(self, event: Event) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        match event:
            case m.SslRequest() | m.GssRequest():
                transport.write(replies.NO_ENCRYPTION)
            case m.CancelRequest():
                self._house.cancel(event.process_id, event.key)
                self._close()
            case m.Startup():
                self._inbox = Inbox(self._set_reading)
                self._outbox = Outbox(transport)
                line = ClientLine(self._inbox, self._outbox, self._house.pool, self._house.encodings)
                self._task = asyncio.get_running_loop().create_task(self._serve(event, line))
            case ProtocolFailure():
                transport.write(
                    replies.error_response(client_error(event.error, "connecting"), severity="FATAL")
                )
                self._close()
            case _:
                self._close()

    def _login_too_slow(self) -> None:
        if self._inbox is None:
            # PostgreSQL does not answer either if a client never sent a byte.
            self._close()
        else:
            self._inbox.end(QueryCanceled("canceling authentication due to timeout"))

    def _client_left(self, inbox: Inbox) -> None:
        inbox.departed = True
        if self._conductor is not None:
            self._conductor.client_left()

    def _set_reading(self, on: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if on:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _close(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.close()
        if transport.get_write_buffer_size():
            # Closing waits until the client has read the rest. A client that does not read must not keep the
            # socket open.
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)

    # -- the task

    async def _serve(self, startup: m.Startup, line: ClientLine) -> None:
        said: TidemillError | None = None
        try:
            await self._converse(startup, line)
        except ConnectionEnds as e:
            said = e.error
        except TidemillError as e:
            said = e
        except asyncio.CancelledError:
            # The grace period of the listener is over.
            self.abort()
        except Exception as e:
            said = client_error(e, "serving a connection")
        finally:
            if said is not None:
                line.outbox.put(replies.error_response(said, severity="FATAL"))
            line.outbox.flush()
            self._close()
            self._conductor = None
            self._house.forget(self.process_id)

    async def _converse(self, startup: m.Startup, line: ClientLine) -> None:
        conversation = Conversation()
        self._house.admit(self.process_id, startup.parameters.get("user", ""))
        self._negotiate(startup, line)
        await self._authenticate(startup, line, conversation)
        options = replace(
            startup_options(startup),
            client_address=self._peer.address,
            encryption=None if self._secure is None else self._secure.encryption,
        )
        session = self._house.engine.open_session(options, process_id=self.process_id)
        session.on_terminate(self.shut_down)
        try:
            if self._login_timer is not None:
                self._login_timer.cancel()
                self._login_timer = None
            self._protocol.logged_in()
            conversation.logged_in()
            line.outbox.put(replies.AUTHENTICATION_OK)
            for name, value in session.parameters.items():
                line.outbox.put(replies.parameter_status(name, value))
            line.outbox.put(replies.backend_key_data(self.process_id, self.key))
            self._conductor = Conductor(session, line, conversation)
            await self._conductor.run()
        finally:
            await _close_session(session)

    def _negotiate(self, startup: m.Startup, line: ClientLine) -> None:
        """Answer newer minor versions and unknown extensions (we support none) with the version that we
        support."""
        minor = min(startup.minor, m.NEWEST_MINOR)
        if minor != startup.minor or startup.extensions:
            line.outbox.put(replies.negotiate_protocol_version(minor, startup.extensions))
        # Version 3.2 allows keys longer than the 4 bytes that all earlier clients expect.
        self.key = secrets.token_bytes(32 if minor >= 2 else 4)

    async def _authenticate(self, startup: m.Startup, line: ClientLine, conversation: Conversation) -> None:
        peer, tls = self._peer, self._house.tls
        self._check_encryption(peer)
        binding = tls.end_point if tls is not None and self._secure is not None else None
        exchange = self._house.authentication(startup, peer, binding)
        try:
            request = next(exchange)
            while True:
                line.outbox.put(request)
                line.outbox.flush()
                message = await next_message(line, conversation)
                if not isinstance(message, m.AuthenticationReply):
                    raise ConnectionEnds(None)
                request = exchange.send(message.data)
        except StopIteration as end:
            if end.value is not None:
                line.outbox.put(end.value)


_TOO_EARLY = "received unencrypted data after SSL request"


async def _close_session(session: Session) -> None:
    try:
        await session.close()
    except Exception:
        log.exception("closing a session failed")


def startup_options(startup: m.Startup) -> StartupOptions:
    """The client's startup options for the engine. Raises if one cannot be met."""
    settings = dict(startup.parameters)
    user = settings.pop("user", "")
    if not user:
        raise UndefinedObject("no PostgreSQL user name specified in startup packet", sqlstate="28000")
    database = settings.pop("database", "") or StartupOptions().database
    if settings.pop("replication", "off").lower() not in ("off", "false", "no", "0"):
        raise Unsupported("replication connections are not supported")
    for name, value in _command_line_settings(settings.pop("options", "")):
        settings[name] = value
    return StartupOptions(
        user=user,
        database=database,
        application_name=settings.pop("application_name", ""),
        settings=settings,
    )


def _command_line_settings(options: str) -> list[tuple[str, str]]:
    """`-c name=value`, `-cname=value` and `--name=value`, as PostgreSQL accepts them in the option
    `options`."""
    found: list[tuple[str, str]] = []
    try:
        words = shlex.split(options)
    except ValueError:
        raise m.MalformedMessage("invalid options in startup packet", detail=options) from None
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word = words.pop(0)
        elif word.startswith(("--", "-c")):
            word = word[2:]
        else:
            raise m.MalformedMessage(
                f"invalid command-line argument for server process: {word}", sqlstate="42601"
            )
        name, equals, value = word.partition("=")
        if not equals:
            raise m.MalformedMessage(f"-c {word} requires a value", sqlstate="42601")
        found.append((name.replace("-", "_"), value))
    return found
