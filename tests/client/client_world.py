"""What the tests of the client against a real server share: names of their own, a writer, and the truth."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import psycopg

from support.server import ServerProcess

SECONDS = 150.0
T = TypeVar("T")
# Enough that connections are cut within a transaction's rows.
KS = [k for k in range(-8, 9) if k]
Update = tuple[int, int, tuple[Any, ...]]  # time, diff, row


def url(server: ServerProcess) -> str:
    return f"postgresql://materialize@127.0.0.1:{server.sql_port}/materialize"


def name(prefix: str = "t") -> str:
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


def wait_for(what: Callable[[], object], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def truth(server: ServerProcess, table: str, as_of: int, up_to: int) -> list[Update]:
    """Every change after `as_of` and before `up_to`, by a client that knows nothing of ours."""
    text = f"SUBSCRIBE {table} WITH (SNAPSHOT = false) AS OF {as_of} UP TO {up_to}"
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        return [
            (int(t), diff, row)
            for t, diff, *rest in connection.cursor().stream(text.encode())
            for row in [tuple(rest)]
        ]


class Background(Generic[T]):
    """Work on a thread; its result, or what it raised, is had with `result()`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> T:
        self._thread.join(SECONDS)
        if self._error is not None:
            raise self._error
        assert self._results, "it did not end in time"
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as e:
            self._error = e


class Writer:
    """Inserts rows whose k come to nothing, KS for each n, until it is told to stop; then those of -1. A
    server that goes away is waited for."""

    def __init__(self, server: ServerProcess, table: str) -> None:
        self._server = server
        self._table = table
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[int] = []
        self.error: BaseException | None = None

    def start(self) -> Writer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive() and self.error is None, self.error

    def _run(self) -> None:
        try:
            n = 0
            while not self._stop.is_set():
                n = self._write(n)
            while self._write(-1) == -1:
                pass
        except BaseException as e:
            self.error = e

    def _write(self, n: int) -> int:
        """One connection, as long as it lives; the next number."""
        try:
            with psycopg.connect(self._server.sql_dsn, autocommit=True) as connection:
                while n < 0 or not self._stop.is_set():
                    values = ", ".join(f"({n}, {k})" for k in KS)
                    connection.execute(f"INSERT INTO {self._table} VALUES {values}".encode())
                    self.acknowledged.append(n)
                    if n < 0:
                        return 0
                    n += 1
        except psycopg.OperationalError:
            time.sleep(0.02)  # the server is away
            return n if n < 0 else n + 1
        return n
