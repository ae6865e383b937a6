"""The receiver: the one connection that reads a replication slot, and the thread that holds it.

Created by `source` in the server. It writes committed transactions into the spool, from which tasks read, and
tells the slot what is durable. After any failure it connects again and continues behind the last complete
transaction. While the tables are quiet it asks the server for its position, so that the frontier and the slot
move on, and PostgreSQL can remove old log.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.errors import TidemillError
from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres import failures
from tidemill.sources.postgres.definition import ReplicatedTable
from tidemill.sources.postgres.lag import LogClock
from tidemill.sources.postgres.lsn import aligned
from tidemill.sources.postgres.pgoutput import (
    BEGIN,
    COMMIT,
    DELETE,
    INSERT,
    MESSAGE,
    ORIGIN,
    RELATION,
    TRUNCATE,
    TYPE,
    UPDATE,
    parse_begin,
    parse_commit,
    parse_relation,
    refuse,
)
from tidemill.sources.postgres.replication import DATA, KEEPALIVE, ReplicationConnection, parse_keepalive
from tidemill.sources.postgres.segment import HEADER
from tidemill.sources.postgres.spool import Spool
from tidemill.sources.postgres.table_faults import TableFaults
from tidemill.sources.postgres.table_marks import MarksSpec
from tidemill.sources.postgres.table_watch import SlotState, TableWatch

log = logging.getLogger(__name__)

# How often the slot is told what is durable, and the server asked where it is. PostgreSQL ends a connection
# that says nothing for wal_sender_timeout (60 s by default, 1 s at the least).
STATUS_SECONDS = 0.5
# How long a complete transaction waits for others, to become visible in one block with them.
FLUSH_SECONDS = 0.02
# Messages between two looks at the clock: some milliseconds.
BATCH_MESSAGES = 512
# Behind an error of the stream, it works again if it has moved on, or was there for so long.
SETTLED_SECONDS = 1.0
# A server that was asked for its position, and does not say anything for so long, is gone: something in
# between still takes what we send. (Before version 15 it may be busy with a transaction that it leaves out.)
SILENT_SECONDS = 300.0
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.1, 10.0
# How long `close` waits for the thread. Its connection is closed then in any case.
CLOSE_SECONDS = 5.0

_CHANGES = frozenset((INSERT, UPDATE, DELETE))
# Behind the letter of a change.
_RELID = struct.Struct("!I")
_IGNORED = frozenset((TYPE, ORIGIN, MESSAGE))


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """`system` and `timeline` are those of the server that was read before; `bound` is how far its
    transactions have times already."""

    options: Mapping[str, Any]
    slot: str
    publication: str
    tables: tuple[ReplicatedTable, ...]
    system: str
    timeline: int
    bound: int


class Receiver:
    """`frontier` and the rest of the public methods may be called by any thread."""

    def __init__(self, settings: ReceiverSettings, spool: Spool) -> None:
        self._settings = settings
        self.spool = spool
        # Below this the shards have everything.
        self._durable = 0
        # The spool must reach it, whatever its size.
        self._required = settings.bound
        # Why there is no stream now; None while there is one.
        self._error: UpstreamError | None = failures.NotYet("the connection to PostgreSQL is being opened")
        # The end of the server's log as it said last; 0 before.
        self.server_position = 0
        # When it was there first.
        self.clock = LogClock()
        # Whether the publication has tables that are not read.
        self._foreign = False
        # Of the connection:
        # Whether a transaction is begun, maybe without any change yet.
        self._begun = False
        # When it began, when something came last, and where the one before failed.
        self._began = self._heard = 0.0
        self._failed_at = -1
        # The server's process for it, and for the one before.
        self._process: int | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._watch = TableWatch(settings.options, settings.publication, settings.slot, settings.tables)
        self._faults = TableFaults(settings.tables, settings.bound, self._watch, spool)
        self._thread = threading.Thread(target=self._run, name="postgres-receiver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The slot is free afterwards, or as soon as the server notices."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def frontier(self, seconds: float) -> int:
        """All transactions that end up to here are in the spool. Waits so long for the first connection.
        Raises UpstreamError while there is none."""
        with self._changed:
            self._changed.wait_for(lambda: not isinstance(self._error, failures.NotYet), seconds)
            if self._error is not None:
                raise self._error
            return self.spool.frontier

    def wait_for(self, lsn: int, seconds: float) -> bool:
        """Whether the frontier reaches `lsn` in this time. Raises UpstreamError."""
        deadline = time.monotonic() + seconds
        while self.frontier(seconds) < lsn:
            if time.monotonic() > deadline or self._stopping.is_set():
                return False
            time.sleep(FLUSH_SECONDS / 2)
        return True

    def durable(self, lsn: int) -> None:
        """Nothing below is needed again: the slot may move here."""
        self._durable = max(self._durable, lsn)

    @property
    def marks(self) -> Mapping[str, MarksSpec]:
        """What was learned about the tables, to be stored with the definition."""
        return self._watch.learned

    def require(self, lsn: int) -> None:
        """Receive up to here even if the spool is full."""
        self._required = max(self._required, lsn)

    # -- the thread

    def _run(self) -> None:
        wait = FIRST_RETRY_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._session()
            except UpstreamError as e:
                self._fail(e)
            except OSError as e:
                self._fail(
                    UpstreamError(
                        "transactions received from PostgreSQL cannot be stored",
                        detail=f"{e.strerror or e}: {self.spool.folder}.",
                        hint="Make room on the disk of temporary files (TMPDIR).",
                        sqlstate="53100",
                    )
                )
            except Exception as e:
                log.exception("receiving from slot %s failed for an unforeseen reason", self._settings.slot)
                self._fail(UpstreamError(f"{type(e).__name__}: {e}"))
            if time.monotonic() - began > LAST_RETRY_SECONDS:
                wait = FIRST_RETRY_SECONDS
            self._stopping.wait(wait)
            wait = min(2 * wait, LAST_RETRY_SECONDS)
        self._watch.close()

    def _fail(self, error: UpstreamError) -> None:
        try:
            self.spool.cut_off()
        except (OSError, TidemillError) as e:
            log.warning("the spool of slot %s: %s", self._settings.slot, e)
        self._failed_at = self.spool.reached
        if not self._stopping.is_set():
            self._tell(failures.of_start(error, self._settings.slot, self._settings.publication))

    def _tell(self, error: UpstreamError | None) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _session(self) -> None:
        """One connection, from its beginning to its end. Returns when the receiver is closed."""
        connection = ReplicationConnection(self._settings.options)
        try:
            self._check(connection)
            self._begun = False
            self._faults.connected()
            # What is new of the tables is in the stream before its first change.
            self._faults.look()
            connection.start(self._settings.slot, aligned(self.spool.frontier), self._settings.publication)
            self._process = connection.process
            self._began = self._heard = time.monotonic()
            if self._failed_at < 0:
                self._tell(None)
            self._pump(connection)
        finally:
            connection.close()

    def _check(self, connection: ReplicationConnection) -> None:
        """That the server and the slot are the ones that were read, and have all that is needed."""
        settings = self._settings
        identity = connection.identify()
        if identity.system != settings.system:
            raise failures.other_system(settings.system, identity.system)
        if identity.timeline != settings.timeline:
            raise failures.other_timeline(settings.timeline, identity.timeline)
        read = aligned(max(settings.bound, self.spool.frontier))
        self.server_position = self._watch.position()
        if self.server_position < read:
            raise failures.went_back(self.server_position, read)
        state = self._watch.slot()
        if state is None:
            raise failures.slot_missing(settings.slot)
        if state.invalidation is not None or state.wal_status == "lost":
            raise failures.slot_invalidated(settings.slot, state.invalidation)
        self._check_free(state)
        if self.spool.floor is None:
            if state.confirmed > settings.bound:
                raise failures.slot_moved(settings.slot, state.confirmed, settings.bound)
            self.spool.begin(state.confirmed)
        elif state.confirmed > self.spool.frontier:
            raise failures.slot_moved(settings.slot, state.confirmed, self.spool.frontier)

    def _check_free(self, state: SlotState) -> None:
        pid = state.active_pid
        if pid is None:
            return
        if pid == self._process:
            # The connection is lost, which the server would notice within wal_sender_timeout.
            self._watch.terminate(pid)
        raise failures.slot_active(self._settings.slot, pid)

    def _pump(self, connection: ReplicationConnection) -> None:
        spool = self.spool
        flushed = told = time.monotonic()
        while not self._stopping.is_set():
            received = self._receive(connection)
            now = time.monotonic()
            self.clock.look(max(self.server_position, spool.reached), now)
            if spool.stale and now - flushed >= FLUSH_SECONDS:
                spool.flush()
                flushed = now
            if now - told >= STATUS_SECONDS:
                self._report(connection, ask=not received)
                self._settle(now)
                told = now
            if spool.full and spool.frontier >= self._required:
                # PostgreSQL keeps the log meanwhile; it must only hear from us.
                self._heard = now
                self._stopping.wait(FLUSH_SECONDS)
            elif not received:
                connection.wait(FLUSH_SECONDS if spool.stale else STATUS_SECONDS / 2)

    def _settle(self, now: float) -> None:
        """An error that comes again at once is not taken back in between."""
        if now - self._heard > SILENT_SECONDS:
            raise failures.silent()
        with self._changed:
            failed = self._error is not None
        if failed and (self.spool.reached > self._failed_at or now - self._began > SETTLED_SECONDS):
            self._tell(None)

    def _report(self, connection: ReplicationConnection, *, ask: bool) -> None:
        """Tell the slot what is durable, and forget it here."""
        durable = aligned(self._durable)
        connection.confirm(max(aligned(self.spool.frontier), durable), durable, reply=ask)
        self.spool.discard(self._durable)
        if self._faults.due and not self._begun:
            self._faults.look()

    def _receive(self, connection: ReplicationConnection) -> bool:
        """Some messages. Returns False if there are no more now."""
        receive, add, wanted = connection.receive, self.spool.add, self._faults.outputs
        if self.spool.full and self.spool.frontier >= self._required and not self.spool.open:
            return False
        for number in range(BATCH_MESSAGES):
            message = receive()
            if message is None:
                self._heard = time.monotonic() if number else self._heard
                return False
            if message[0] == DATA:
                if message[HEADER] in _CHANGES:
                    if self._foreign and _RELID.unpack_from(message, HEADER + 1)[0] not in wanted:
                        continue
                    add(message)
                else:
                    self._control(message)
            elif message[0] == KEEPALIVE:
                keepalive = parse_keepalive(bytes(message))
                self.server_position = max(self.server_position, keepalive.position)
                if not self._begun and not self.spool.open:
                    self.spool.advance(keepalive.position)
                if keepalive.reply:
                    self._report(connection, ask=False)
        self._heard = time.monotonic()
        return True

    def _control(self, message: bytes | memoryview) -> None:
        """A message that is no row."""
        kind, body = message[HEADER], bytes(message[HEADER:])
        if kind == BEGIN:
            if not self.spool.open:
                # The next transaction that ends is this one.
                self.spool.advance(parse_begin(body).commit_lsn)
            if not self._faults.looked:
                self._faults.look()
            self._begun = True
        elif kind == COMMIT:
            self._begun = False
            self.spool.commit(parse_commit(body).end_lsn)
            self._faults.committed()
        elif kind == RELATION:
            relation = parse_relation(body)
            self._foreign = self._foreign or relation.relid not in self._faults.outputs
            self._faults.announced(relation, new=self.spool.describe(relation.relid, body))
        elif kind == TRUNCATE:
            self.spool.add(bytes(message))
        elif kind not in _IGNORED:
            raise refuse(kind)
