"""Open the HTTP port inside the running event loop, and close it again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Generator, Iterable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemill.config import Address
from tidemill.engine.api import Engine
from tidemill.errors import Unavailable
from tidemill.server.http.app import Api, build_app
from tidemill.server.http.limits import HEAD_SECONDS, MAX_CONNECTIONS, SHUTDOWN_SECONDS


class HttpServer:
    """The open port. `address` is where it really listens (the port that was chosen where 0 was asked
    for)."""

    def __init__(self, server: uvicorn.Server, api: Api, address: Address, task: asyncio.Task[None]) -> None:
        self.address = address
        self._server = server
        self._api = api
        self._task = task

    async def close(self) -> None:
        """Take no more connections, cancel what runs, and wait for its end. Idempotent."""
        self._api.stop()
        self._server.should_exit = True
        await asyncio.wait({self._task}, timeout=2 * SHUTDOWN_SECONDS)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def serve_http(
    engine: Engine, address: Address, *, hosts: Iterable[str] = (), sql: Address | None = None
) -> HttpServer:
    """Listen on `address`; returns when connections are taken. `hosts` are the names of `--http-hosts`, `sql`
    is where the SQL port listens. Raises Unavailable when the address cannot be had."""
    sock = _listen(address)
    # Bytes that are no HTTP are answered 400; a log line for each would let anybody fill the disk.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    api = Api(engine, sql)
    server = _Server(
        uvicorn.Config(
            build_app(api, hosts),
            http=_Protocol,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(SHUTDOWN_SECONDS),
        )
    )
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
        raise Unavailable(f"cannot listen for HTTP on {address}: {e.strerror or e}") from e
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        in_use = e.errno == errno.EADDRINUSE
        raise Unavailable(
            f"cannot listen for HTTP on {address}: {e.strerror or e}",
            hint="Stop the program that uses the port, or choose another with --http-addr."
            if in_use
            else None,
        ) from e
    return sock


class _Server(uvicorn.Server):
    """Signals belong to the process that runs the server, not to its HTTP port."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Protocol(H11Protocol):
    """Closes a connection that does not send a request's head in time; uvicorn itself would wait for ever."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _waiting(self) -> bool:
        # uvicorn declares `cycle` as never None and starts with None.
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

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
