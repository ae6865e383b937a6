"""One connection to the server without blocking waits: statements, descriptions, COPY.

Generators that yield a `Ready` whenever they must wait for the socket. The drivers (`sync`, `aio`) wait
in their own way, so both clients share all code that uses libpq.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.pq import abc

from tidemill.client.errors import ConnectionLost, ProtocolViolation, server_error
from tidemill.client.forms import ClientField, described

# Rows are decoded in blocks of this size. Measured for rows of 85 bytes: 0.9 µs each in blocks of one
# megabyte; 10 in blocks of 20 kB, where the work per block dominates; and 1.5 in those of four megabytes,
# which exceed the cache.
BLOCK_BYTES = 1 << 20
_COPY = (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH)


@dataclass(frozen=True, slots=True)
class Ready:
    """Wait until the socket is readable, or also writable."""

    fd: int
    write: bool = False


# Either kind of connection: only its libpq object is used.
Connection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
T = TypeVar("T")
Waits = Generator[Ready, object, T]


class Link:
    def __init__(self, connection: Connection) -> None:
        """Take ownership of the connection: closing the link closes it."""
        self._owner = connection  # receives the notices
        self._conn = connection.pgconn
        self._conn.nonblocking = 1
        # The last row of the COPY was returned; its final result is still to be read.
        self._copied = False

    @property
    def alive(self) -> bool:
        return self._conn.status == pq.ConnStatus.OK

    @property
    def busy(self) -> bool:
        """A statement was started and not finished."""
        return self._conn.transaction_status == pq.TransactionStatus.ACTIVE

    def close(self) -> None:
        """Close without waiting for the server. Idempotent."""
        self._conn.finish()

    def run(self, sql: str) -> Waits[list[abc.PGresult]]:
        """Run any number of statements; return their results in text. Raises the first error, once the
        connection is ready for the next statement."""
        with _lost():
            self._conn.send_query(sql.encode())
        return (yield from self._results())

    def describe(self, sql: str) -> Waits[tuple[ClientField, ...]]:
        """The result columns of one statement, without running it; empty if it returns no rows."""
        with _lost():
            self._conn.send_prepare(b"", sql.encode())
        yield from self._results()
        with _lost():
            self._conn.send_describe_prepared(b"")
        (result,) = yield from self._results()
        return described(result)

    def copy(self, sql: str) -> Waits[None]:
        """Start a COPY ... TO STDOUT; then call `block` until it returns an empty list."""
        self._copied = False
        with _lost():
            self._conn.send_query(sql.encode())
        yield from self._flush()
        result = yield from self._result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise ProtocolViolation("COPY ... TO STDOUT did not start a copy")

    def block(self, enough: Callable[[memoryview], bool] = lambda _: False) -> Waits[list[memoryview]]:
        """Return the next rows: up to BLOCK_BYTES, the end of the COPY, or, if no more are available now, a
        row that is `enough`. Returns an empty list at the end of the COPY; raises its error if it failed."""
        rows: list[memoryview] = []
        size = 0
        while size < BLOCK_BYTES and not self._copied:
            with _lost():
                size += self._drain(rows, BLOCK_BYTES - size)
            if rows and enough(rows[-1]):
                break
            if size < BLOCK_BYTES and not self._copied:
                yield from self._input()
        if not rows:
            yield from self._results()
        return rows

    def _drain(self, rows: list[memoryview], limit: int) -> int:
        """Read rows that are available without waiting, up to a number of bytes; return their bytes."""
        take, size = self._conn.get_copy_data, 0
        looked = False
        while size < limit:
            count, data = take(1)
            if count > 0:
                rows.append(data)
                size += count
                looked = False
            elif count < 0:
                self._copied = True
                break
            elif looked:
                break
            else:
                # Reads what the operating system has buffered, some kilobytes at a time, without waiting.
                self._conn.consume_input()
                looked = True
        return size

    def _flush(self) -> Waits[None]:
        while True:
            with _lost():
                if not self._conn.flush():
                    return
            yield Ready(self._conn.socket, write=True)
            with _lost():
                self._conn.consume_input()

    def _input(self) -> Waits[None]:
        with _lost():
            socket = self._conn.socket
        yield Ready(socket)
        with _lost():
            self._conn.consume_input()

    def _result(self) -> Waits[abc.PGresult | None]:
        while self._conn.is_busy():
            yield from self._input()
        with _lost():
            result = self._conn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            error = server_error(result)
            if self.alive and not isinstance(error, ConnectionLost):
                while (yield from self._result()) is not None:
                    pass
            raise error
        return result

    def _results(self) -> Waits[list[abc.PGresult]]:
        yield from self._flush()
        results: list[abc.PGresult] = []
        while (result := (yield from self._result())) is not None:
            if result.status in _COPY:
                raise ProtocolViolation("COPY is not for query() and execute(): use psycopg")
            results.append(result)
        return results


@contextmanager
def _lost() -> Generator[None]:
    """A failure of libpq means that the connection is lost."""
    try:
        yield
    except psycopg.Error as e:
        raise ConnectionLost(str(e).strip() or "the connection ended") from e
