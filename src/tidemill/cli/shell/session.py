"""The connection of the shell: statements out, events in; Ctrl-C becomes a cancel request.

Results are read in chunks, so a result of any size needs the memory of one block. The module uses libpq
directly: psycopg's cursors would hold a whole result, and the shell shows PostgreSQL's own text of every
value.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.pq import abc

from tidemill.cli.shell.display_settings import ColumnLook, Row
from tidemill.cli.shell.events import CopyInEvent, CopyOutEvent, Done, Event, Failed, Head, RowsEvent
from tidemill.cli.shell.interrupts import Interrupts
from tidemill.client.errors import ConnectionLost

# The rows that libpq holds at once, and the rows and bytes of one drawn block. The columns of a table are as
# wide as its first block needs. Ten thousand rows fill two hundred screens; 16 MB are enough for rows of 1.6
# kB.
CHUNK_ROWS = 100
BLOCK_ROWS = 10_000
BLOCK_BYTES = 16 << 20
# A cancel request needs its own connection. A server that does not accept it within this time never will.
CANCEL_SECONDS = 10
# After this many Ctrl-C for one statement the shell gives up the connection.
PATIENCE = 3

# Part of a notice that Tidemill sends with a SUBSCRIBE, to clients that buffer all rows before they show any.
_FOR_OTHERS = "rows are sent as they come, and there is no end to them"

_ROWS = (pq.ExecStatus.SINGLE_TUPLE, pq.ExecStatus.TUPLES_CHUNK, pq.ExecStatus.TUPLES_OK)
_FIELDS = pq.DiagnosticField


class _Text(Loader):
    """Values stay as the server's text. A database without an encoding may hold any bytes."""

    def load(self, data: abc.Buffer) -> str:
        return bytes(data).decode(errors="replace")


def _bytes(sql: str) -> bytes:
    """The bytes as they were in the file. The server, not the shell, rejects invalid UTF-8."""
    try:
        return sql.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return sql.encode(errors="surrogatepass")


class ShellSession:
    """One connection, for one thread. Every method raises `ConnectionLost` when the connection is lost."""

    def __init__(
        self, connection: psycopg.Connection[Any], interrupts: Interrupts, on_notice: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._conn = connection.pgconn
        self._conn.nonblocking = 1
        self._conn.notice_handler = self._told
        self._interrupts = interrupts
        self._on_notice = on_notice
        adapters = AdaptersMap()
        adapters.register_loader(0, _Text)
        self._texts = Transformer(_Context(adapters))
        # Ctrl-C was pressed during the last statement.
        self.was_cancelled = False

    def _told(self, result: abc.PGresult) -> None:
        text = _text(result.error_message)
        if _FOR_OTHERS not in text:
            self._on_notice(text)

    @property
    def conn(self) -> abc.PGconn:
        return self._conn

    @property
    def alive(self) -> bool:
        """Also checks the socket, to notice a server that disconnected while the session was idle."""
        if self._conn.status != pq.ConnStatus.OK:
            return False
        try:
            # An unread message and the end of the stream may be pending; the end makes the next read fail.
            while select.select([self._conn.socket], [], [], 0)[0]:
                self._conn.consume_input()
        except (psycopg.Error, OSError, ValueError):
            return False
        return self._conn.status == pq.ConnStatus.OK

    @property
    def transaction(self) -> str:
        """For the prompt: empty, * within a transaction, ! in a failed one, ? unknown."""
        signs = {
            pq.TransactionStatus.IDLE: "",
            pq.TransactionStatus.INTRANS: "*",
            pq.TransactionStatus.INERROR: "!",
        }
        return signs.get(pq.TransactionStatus(self._conn.transaction_status), "?")

    def parameter(self, name: str) -> str:
        value = self._conn.parameter_status(name.encode())
        return "" if value is None else _text(value)

    def close(self) -> None:
        self._connection.close()

    def run(self, sql: str, *, stream: bool = False) -> Iterator[Event]:
        """Send the text as one message and yield its events. `stream` yields rows as soon as no more are
        available. The caller must exhaust or close it; closing cancels the statement and discards the rest.
        """
        self._call(lambda: self._conn.send_query(_bytes(sql)))
        if stream or not psycopg.capabilities.has_stream_chunked():
            self._conn.set_single_row_mode()
        else:
            self._conn.set_chunked_rows_mode(CHUNK_ROWS)
        self._flush()
        self.was_cancelled = False
        cancels = _Cancels(self._connection, self._on_notice)
        finished = False
        try:
            yield from self._events(cancels, stream)
            finished = True
        finally:
            if not finished and self._conn.status == pq.ConnStatus.OK:
                cancels.send(told=False)
                for _ in self._events(cancels, stream=False):
                    pass

    def _events(self, cancels: _Cancels, stream: bool) -> Iterator[Event]:
        columns: tuple[ColumnLook, ...] | None = None
        rows: list[Row] = []
        size, tag = 0, ""
        while True:
            if stream and rows and self._conn.is_busy() and not self._readable():
                yield RowsEvent(rows, last=False)
                rows, size = [], 0
            result = self._result(cancels)
            if result is None:
                return
            status = pq.ExecStatus(result.status)
            if status in _ROWS:
                if columns is None:
                    columns = _columns(result)
                    yield Head(columns)
                taken = self._rows(result)
                # In chunked mode the tag is on the last rows, not on the end.
                tag = _text(result.command_status or b"") or tag
                rows += taken
                size += sum(map(len, filter(None, chain.from_iterable(taken))))
                if status == pq.ExecStatus.TUPLES_OK:
                    yield RowsEvent(rows, last=True)
                    yield Done(tag)
                    columns, rows, size, tag = None, [], 0, ""
                elif len(rows) >= BLOCK_ROWS or size >= BLOCK_BYTES:
                    yield RowsEvent(rows, last=False)
                    rows, size = [], 0
            elif status == pq.ExecStatus.FATAL_ERROR:
                if columns is not None:
                    yield RowsEvent(rows, last=True)
                    columns, rows, size, tag = None, [], 0, ""
                yield _failed(result)
                if self._conn.status != pq.ConnStatus.OK:
                    raise ConnectionLost("the connection to the server was lost")
            elif status == pq.ExecStatus.COPY_OUT:
                data = self._copied_out(cancels)
                yield CopyOutEvent(data)
                for _ in data:  # discarded
                    pass
            elif status == pq.ExecStatus.COPY_IN:
                sent = _Once(self._send, cancels)
                yield CopyInEvent(sent)
                if not sent.called:
                    sent(())
            elif status == pq.ExecStatus.COMMAND_OK:
                yield Done(_text(result.command_status or b""))

    def _rows(self, result: abc.PGresult) -> list[Row]:
        self._texts.set_pgresult(result)
        return self._texts.load_rows(0, result.ntuples, tuple)

    def _copied_out(self, cancels: _Cancels) -> Iterator[bytes]:
        while True:
            size, data = self._call(lambda: self._conn.get_copy_data(1))
            if size > 0:
                yield bytes(data)
            elif size < 0:
                return
            else:
                self._wait(cancels)

    def _send(self, data: Iterable[bytes], cancels: _Cancels) -> None:
        error: bytes | None = None
        try:
            for block in data:
                if self._interrupts.take():
                    error = b"canceled by user"
                    break
                self._call(lambda block=block: self._conn.put_copy_data(block))
                # Before the next block: otherwise libpq buffers what the server does not read.
                self._flush()
        except KeyboardInterrupt:
            error = b"canceled by user"
        except (OSError, UnicodeError) as e:
            error = str(e).encode(errors="replace")
        self._call(lambda: self._conn.put_copy_end(error))
        self._flush()

    def _result(self, cancels: _Cancels) -> abc.PGresult | None:
        while self._conn.is_busy():
            self._wait(cancels)
        return self._call(self._conn.get_result)

    def _wait(self, cancels: _Cancels) -> None:
        """Wait until the server sends data; forward a Ctrl-C meanwhile."""
        ready, _, _ = select.select([self._conn.socket, self._interrupts.fd], [], [])
        if self._interrupts.take():
            self.was_cancelled = True
            cancels.send(told=True)
        if self._conn.socket in ready:
            self._call(self._conn.consume_input)

    def _readable(self) -> bool:
        """Read the available bytes of the socket; return whether there were any."""
        if not select.select([self._conn.socket], [], [], 0)[0]:
            return False
        self._call(self._conn.consume_input)
        return not self._conn.is_busy()

    def _flush(self) -> None:
        while self._call(self._conn.flush):
            readable, _, _ = select.select([self._conn.socket], [self._conn.socket], [])
            if readable:
                self._call(self._conn.consume_input)

    def _call(self, function: Callable[[], Any]) -> Any:
        """A failure of libpq means that the connection is lost."""
        try:
            return function()
        except psycopg.Error as e:
            self._conn.finish()
            raise ConnectionLost(str(e).strip() or "the connection to the server was lost") from None


class _Context:
    """The adaptation context that psycopg's `Transformer` needs."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None


class _Cancels:
    """The cancel requests of one statement."""

    def __init__(self, connection: psycopg.Connection[Any], say: Callable[[str], None]) -> None:
        self._connection = connection
        self._say = say
        self._count = 0

    def send(self, *, told: bool) -> None:
        self._count += 1
        if self._count > PATIENCE:
            self._connection.close()
            raise ConnectionLost("the server did not end the statement; the connection was given up")
        try:
            self._connection.cancel_safe(timeout=CANCEL_SECONDS)
        except psycopg.Error as e:
            self._say(f"Could not send cancel request: {e}\n")
        else:
            if told:
                self._say("Cancel request sent\n")


class _Once:
    def __init__(self, send: Callable[[Iterable[bytes], _Cancels], None], cancels: _Cancels) -> None:
        self._send = send
        self._cancels = cancels
        self.called = False

    def __call__(self, data: Iterable[bytes]) -> None:
        self.called = True
        self._send(data, self._cancels)


def _columns(result: abc.PGresult) -> tuple[ColumnLook, ...]:
    return tuple(ColumnLook(_text(result.fname(i) or b""), result.ftype(i)) for i in range(result.nfields))


def _failed(result: abc.PGresult) -> Failed:
    def field(which: _FIELDS) -> str:
        return _text(result.error_field(which) or b"")

    place = [field(_FIELDS.SOURCE_FUNCTION), field(_FIELDS.SOURCE_FILE), field(_FIELDS.SOURCE_LINE)]
    location = f"{place[0]}, {place[1]}:{place[2]}" if place[0] else ""
    message = _text(result.error_message) if result.error_message else "unknown error\n"
    return Failed(message, field(_FIELDS.SQLSTATE), field(_FIELDS.MESSAGE_PRIMARY), location)


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode(errors="replace")
