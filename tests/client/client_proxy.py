"""A proxy that cuts connections: after so many bytes from the server, the client's line is dead.

Faults are data: `budgets` has one number for each connection to come; after the last one, connections live.
The port stays the same while the server behind it is killed and started on another.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)


class Proxy:
    def __init__(self, target: Callable[[], int], budgets: Iterable[int] = ()) -> None:
        """`target` gives the server's port now."""
        self._target = target
        self._budgets = iter(budgets)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        # Connections that were cut because their bytes were used up.
        self.cuts = 0
        # While set, connections are closed as they come.
        self.away = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        return f"postgresql://materialize@127.0.0.1:{self.port}/materialize"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone would not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        self._thread.join(30)

    def cut_next(self, budgets: Iterable[int]) -> None:
        """Every connection of now, and each of the next ones after so many bytes."""
        self._budgets = iter(budgets)
        self.cut_all()

    def cut_all(self) -> None:
        """Every connection of now."""
        with self._lock:
            ended, self._open = self._open, set()
        for sock in ended:
            _kill(sock)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.away:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target()), timeout=30)
                server.settimeout(None)
            except OSError:
                _kill(client)
                continue
            budget = next(self._budgets, None)
            with self._lock:
                self._open |= {client, server}
            for work, args in ((self._up, (client, server)), (self._down, (server, client, budget))):
                threading.Thread(target=work, args=args, daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        self._end(client, server)

    def _down(self, server: socket.socket, client: socket.socket, budget: int | None) -> None:
        with contextlib.suppress(OSError):
            while budget is None or budget > 0:
                data = server.recv(1 << 16 if budget is None else min(budget, 1 << 16))
                if not data:
                    break
                client.sendall(data)
                budget = None if budget is None else budget - len(data)
        if budget == 0:
            with self._lock:
                self.cuts += 1
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open -= set(sockets)
        for sock in sockets:
            _kill(sock)


def _kill(sock: socket.socket) -> None:
    """At once, without a farewell: what was on its way is lost, and whoever waits on it wakes."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
