"""The SQL port: accepts and counts connections, routes cancel requests, and shuts all connections down.

Started by the command line (and by tests) with an engine. Promises: at most `max_connections` sessions.
A cancel request is accepted when the server is full. `stop` sends 57P01 to every client, waits briefly
for running statements, and leaves no task.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidemill.engine.api import Engine
from tidemill.errors import LimitExceeded, Unavailable
from tidemill.server import limits
from tidemill.server.metrics import CANCEL_REQUESTS, CONNECTIONS, CONNECTIONS_REFUSED, CONNECTIONS_TOTAL
from tidemill.server.pgwire.auth import Authentication, trust
from tidemill.server.pgwire.connection import PgConnection, ServerContext
from tidemill.server.pgwire.error_reports import log
from tidemill.server.shared import Encodings
from tidemill.server.tls import Tls

# Threads that encode and decode. Arrow releases the GIL in its kernels, so two threads use more than one
# core.
_THREADS = 4

# Connections that the kernel may queue while the loop is busy, for example when a pool reconnects all at
# once.
_BACKLOG = 1_024

_MAX_PROCESS_ID = 2**31 - 1


class Listener:
    """One listening address."""

    def __init__(
        self,
        engine: Engine,
        *,
        authentication: Authentication = trust,
        tls: Tls | None = None,
        max_connections: Callable[[], int] = lambda: limits.MAX_CONNECTIONS,
        reserved_role: str = "",
    ) -> None:
        """`max_connections` is called at every login. A few more connections may log in as `reserved_role`,
        so that a full server can be inspected."""
        self._max_connections = max_connections
        self._reserved_role = reserved_role
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="pgwire")
        self._house = ServerContext(
            engine=engine,
            pool=self._pool,
            encodings=Encodings(self._pool),
            authentication=authentication,
            tls=tls,
            cancel=self._cancel,
            crowded=self._crowded,
            admit=self._admit,
            forget=self._forget,
        )
        # Every open connection by its process id.
        self._connections: dict[int, PgConnection] = {}
        # Those that were accepted for login; these count against the limit.
        self._admitted: set[int] = set()
        self._process_ids = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._stopping = False

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (chosen by the system if 0 was given)."""
        _allow_open_files(2 * self._max_connections())
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, backlog=_BACKLOG)
        bound = self._server.sockets[0].getsockname()[1]
        log.info("listening for PostgreSQL clients on %s port %s", host, bound)
        return bound

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def stop(self, *, grace: float = limits.SHUTDOWN_SECONDS) -> None:
        """Close the port and end every connection. Idempotent."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
            self._server = None
        error = Unavailable("terminating connection due to administrator command", sqlstate="57P01")
        open_ = list(self._connections.values())
        tasks = [task for c in open_ if (task := c.shut_down(error)) is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            if late:
                log.warning("%d statements did not end within %s s of the shutdown", len(late), grace)
                await asyncio.wait(late, timeout=grace)
        for connection in open_:
            # Output that a client has not read by now is discarded.
            connection.abort()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what connections call

    def _accept(self) -> PgConnection:
        process_id = self._next_process_id()
        connection = PgConnection(self._house, process_id)
        self._connections[process_id] = connection
        CONNECTIONS.set(len(self._connections))
        CONNECTIONS_TOTAL.inc()
        return connection

    def _next_process_id(self) -> int:
        while True:
            process_id = next(self._process_ids)
            if process_id > _MAX_PROCESS_ID:
                self._process_ids = itertools.count(1)
            elif process_id not in self._connections:
                return process_id

    def _crowded(self) -> bool:
        return self._stopping or len(self._connections) > self._max_connections() + limits.CONNECTION_SLACK

    def _admit(self, process_id: int, role: str) -> None:
        most = self._max_connections()
        reserved = limits.RESERVED_CONNECTIONS if role and role == self._reserved_role else 0
        if len(self._admitted) >= most + reserved:
            CONNECTIONS_REFUSED.inc()
            raise LimitExceeded(
                "sorry, too many clients already",
                detail=f"The limit is {most} connections.",
                sqlstate="53300",
            )
        self._admitted.add(process_id)

    def _forget(self, process_id: int) -> None:
        self._connections.pop(process_id, None)
        self._admitted.discard(process_id)
        CONNECTIONS.set(len(self._connections))

    def _cancel(self, process_id: int, key: bytes) -> None:
        connection = self._connections.get(process_id)
        if connection is not None and connection.cancel(key):
            CANCEL_REQUESTS.inc()


def _allow_open_files(wanted: int) -> None:
    """Each connection needs a descriptor, and the usual soft limit of 1,024 is far below our limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
