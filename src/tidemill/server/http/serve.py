"""Opens and closes the HTTP port in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator, Iterable

import uvicorn

from tidemill.config import Address
from tidemill.engine.api import Engine
from tidemill.errors import Unavailable
from tidemill.server.auth import TRUSTING, Gate
from tidemill.server.http.app import Api, build_app
from tidemill.server.http.limits import (
    MAX_CONNECTIONS,
    MAX_MESSAGE_BYTES,
    PING_SECONDS,
    PONG_SECONDS,
    SEND_BUFFER_BYTES,
    SHUTDOWN_SECONDS,
)
from tidemill.server.http.protocols import HttpProtocol, WebSocketProtocol
from tidemill.server.ports import cannot_listen
from tidemill.server.tls import Tls


class HttpServer:
    """The open port. `address` is the actual address (with the chosen port, if 0 was requested)."""

    def __init__(self, server: uvicorn.Server, api: Api, address: Address, task: asyncio.Task[None]) -> None:
        self.address = address
        self._server = server
        self._api = api
        self._task = task

    async def close(self) -> None:
        """Accepts no more connections, cancels running statements, and waits for their end. Idempotent."""
        self._api.stop()
        await self._api.stopped()
        self._server.should_exit = True
        await asyncio.wait({self._task}, timeout=2 * SHUTDOWN_SECONDS)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._api.close()


async def serve_http(
    engine: Engine,
    address: Address,
    *,
    hosts: Iterable[str] = (),
    sql: Address | None = None,
    gate: Gate = TRUSTING,
    tls: Tls | None = None,
) -> HttpServer:
    """Listens on `address`; returns when the port accepts connections. `hosts` are the names of
    `--http-hosts`, `sql` is the address of the SQL port, `gate` authenticates clients; with `tls` the
    protocol is HTTPS. Raises Unavailable if the address is not available."""
    sock = _listen(address)
    # Bytes that are not HTTP get status 400. With a log line for each, any client could fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    api = Api(engine, sql, gate)
    config = uvicorn.Config(
        build_app(api, hosts),
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        # Each connection would hold a compressor of some 100 kB, and rows could not be framed by column.
        ws_per_message_deflate=False,
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
    )
    # Loading would create a TLS context from files; ours exists already.
    config.load()
    config.ssl = None if tls is None else tls.http
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    while not server.started:
        if task.done():
            sock.close()
            await task
            raise Unavailable(f"the HTTP server did not start on {address}")
        await asyncio.sleep(0.005)
    host, port = sock.getsockname()[:2]
    return HttpServer(server, api, Address(host, port), task)


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as e:
        raise cannot_listen(address, "HTTP", "--http-addr", e) from e
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind(where)
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise cannot_listen(address, "HTTP", "--http-addr", e) from e
    return sock


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers: the server process handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
