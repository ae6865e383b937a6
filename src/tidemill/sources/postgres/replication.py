"""The replication protocol on a connection of libpq: commands, and the stream in both directions.

Used by `receiver` (the stream) and `exporter` (slots and snapshots). psycopg has no interface of its own for
replication, but the whole of libpq (`psycopg.pq`): TLS, every way of authentication and the framing of
messages are libpq's. What is left is START_REPLICATION and the two small messages below.
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres.connect import connect, upstream_error
from tidemill.sources.postgres.definition import quoted
from tidemill.sources.postgres.failures import StreamEnded
from tidemill.sources.postgres.lsn import lsn_text, parse_lsn

DATA, KEEPALIVE = b"wk"
# After the letter: end of the log that was sent, the server's clock, whether an answer is wanted.
_KEEPALIVE = struct.Struct("!QqB")
# Written, flushed, applied; clock; whether an answer is wanted.
_STATUS = struct.Struct("!cQQQqB")
_EPOCH_MICROS = 946_684_800_000_000

_IN_USE = "55006"
_DROP_AGAIN_SECONDS = 0.1

# The lowest version of the protocol: higher ones add open and prepared transactions, which are not asked for.
PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    system: str
    timeline: int
    position: int


@dataclass(frozen=True, slots=True)
class ExportedSlot:
    """A slot with what the tables were where it begins, as long as the connection has no other command."""

    lsn: int
    snapshot: str


@dataclass(frozen=True, slots=True)
class Keepalive:
    """All transactions that end up to `position` were sent."""

    position: int
    reply: bool


def parse_keepalive(message: bytes) -> Keepalive:
    position, _, reply = _KEEPALIVE.unpack_from(message, 1)
    return Keepalive(position, bool(reply))


class ReplicationConnection:
    """Of one thread, except `cancel`. Every method raises UpstreamError."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._session: psycopg.Connection[Any] = connect(options, replication=True)
        self._pg = self._session.pgconn
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)

    @property
    def process(self) -> int:
        """The server's process for this connection."""
        return self._pg.backend_pid

    def identify(self) -> ServerIdentity:
        system, timeline, position = self._row("IDENTIFY_SYSTEM")[:3]
        return ServerIdentity(str(system), int(timeline or 0), parse_lsn(str(position)))

    def create_slot(self, slot: str, *, temporary: bool) -> ExportedSlot:
        """Waits for all transactions that are open upstream."""
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        row = self._row(f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind} pgoutput EXPORT_SNAPSHOT")
        return ExportedSlot(parse_lsn(str(row[1])), str(row[2]))

    def drop_slot(self, slot: str, seconds: float) -> None:
        """Waits so long until nobody reads from it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._execute(f"DROP_REPLICATION_SLOT {quoted(slot)}")
                return
            except UpstreamError as e:
                if e.sqlstate != _IN_USE or time.monotonic() > deadline:
                    raise
            time.sleep(_DROP_AGAIN_SECONDS)

    def start(self, slot: str, lsn: int, publication: str) -> None:
        """Begin the stream with the first transaction that commits at `lsn` or later, or where the slot is
        confirmed, if that is later."""
        # A list of names, each quoted, as a literal.
        names = quoted(publication).replace("'", "''")
        result = self._pg.exec_(
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(lsn)} "
            f"(proto_version '{PROTOCOL_VERSION}', publication_names '{names}')".encode()
        )
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise upstream_error(error_from_result(result, encoding="utf-8"), self._options)

    def receive(self) -> bytes | memoryview | None:
        """The next message that has arrived; None if there is none yet."""
        try:
            count, message = self._pg.get_copy_data(1)
            if count > 0:
                return message
            if count == 0:
                self._pg.consume_input()
                count, message = self._pg.get_copy_data(1)
                if count > 0:
                    return message
        except psycopg.Error as e:
            raise self._ended(str(e)) from None
        if count == 0:
            return None
        raise self._outcome()

    def wait(self, seconds: float) -> None:
        """Until something arrives, at most so long."""
        self._poll.poll(seconds * 1000)

    def confirm(self, written: int, durable: int, *, reply: bool = False) -> None:
        """Tell the server how far we are: the slot moves to `durable`. `reply`: ask for a keepalive."""
        now = time.time_ns() // 1000 - _EPOCH_MICROS
        try:
            self._pg.put_copy_data(_STATUS.pack(b"r", written, durable, durable, now, reply))
            # The socket takes so little at once, or the server is gone.
            self._pg.flush()
        except psycopg.Error as e:
            raise self._ended(str(e)) from None

    @property
    def alive(self) -> bool:
        """Whether the server has not ended the connection. Nothing must be expected from it."""
        try:
            if self._poll.poll(0):
                self._pg.consume_input()
            return self._pg.status == pq.ConnStatus.OK and not self._poll.poll(0)
        except (psycopg.Error, OSError):
            return False

    def cancel(self) -> None:
        """Any thread."""
        with contextlib.suppress(psycopg.Error):
            self._session.cancel_safe(timeout=2)

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._session.close()

    def _execute(self, command: str) -> pq.abc.PGresult:
        result = self._pg.exec_(command.encode())
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise upstream_error(error_from_result(result, encoding="utf-8"), self._options)
        return result

    def _row(self, command: str) -> list[str | None]:
        result = self._execute(command)
        values = [result.get_value(0, n) for n in range(result.nfields)]
        return [None if value is None else bytes(value).decode() for value in values]

    def _outcome(self) -> UpstreamError:
        """Why the server ended the stream."""
        try:
            result = self._pg.get_result()
        except psycopg.Error as e:
            return self._ended(str(e))
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return upstream_error(error_from_result(result, encoding="utf-8"), self._options)
        return self._ended("The server ended the stream.")

    def _ended(self, said: str) -> StreamEnded:
        return StreamEnded(
            "the connection to PostgreSQL was lost",
            detail=" ".join(said.split()),
            hint="It is opened again, and continues where it was.",
        )
