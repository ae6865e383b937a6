"""An exported snapshot: the tables as they were at one position of the log, for readers in many tasks.

Created by `source`: with the permanent slot when the source begins, with a temporary one when a snapshot is
needed again or for another table. PostgreSQL waits for all transactions that are open upstream before it
gives one, so a thread waits for it. The snapshot lives as long as the connection and has no other use.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres.failures import NotYet
from tidemill.sources.postgres.replication import ExportedSlot, ReplicationConnection, ServerIdentity

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
_WAITS = NotYet(
    "PostgreSQL waits for the end of its open transactions",
    detail="A snapshot is consistent with the stream only when every transaction that was open has ended.",
    hint="See xact_start in pg_stat_activity upstream.",
)


class SnapshotExport:
    """`slot` is the name of a permanent slot that is made; None for a temporary one."""

    def __init__(self, options: Mapping[str, Any], slot: str | None) -> None:
        self._options = options
        self._slot = slot
        self._connection: ReplicationConnection | None = None
        self._found: tuple[ServerIdentity, ExportedSlot] | None = None
        self._error: UpstreamError | None = None
        self._done = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="postgres-snapshot", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> tuple[ServerIdentity, ExportedSlot]:
        """Raises UpstreamError: why it failed, or that it is not ready yet."""
        if not self._done.wait(seconds):
            raise _WAITS
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    @property
    def lsn(self) -> int:
        """Of a ready one."""
        return self.wait(0)[1].lsn

    @property
    def snapshot(self) -> str:
        return self.wait(0)[1].snapshot

    @property
    def usable(self) -> bool:
        """Whether it is waited for, or can be read."""
        if not self._done.is_set():
            return True
        return self._error is None and self._connection is not None and self._connection.alive

    def _run(self) -> None:
        try:
            connection = self._connection = ReplicationConnection(self._options)
            identity = connection.identify()
            name = self._slot or f"tidemill_tmp_{uuid.uuid4().hex[:16]}"
            if self._slot is not None:
                # Made by an earlier attempt of ours, before anybody knew.
                self._drop(connection, self._slot)
            self._found = (identity, connection.create_slot(name, temporary=self._slot is None))
        except UpstreamError as e:
            self._error = e
        except Exception as e:
            log.exception("a snapshot failed for an unforeseen reason")
            self._error = UpstreamError(f"{type(e).__name__}: {e}")
        self._done.set()
        if self._closed or self._error is not None:
            self._disconnect()

    @staticmethod
    def _drop(connection: ReplicationConnection, slot: str) -> None:
        try:
            connection.drop_slot(slot, CLOSE_SECONDS)
        except UpstreamError as e:
            if e.sqlstate != "42704":
                raise

    def close(self) -> None:
        """Idempotent. A permanent slot stays."""
        self._closed = True
        if not self._done.is_set() and self._connection is not None:
            self._connection.cancel()
        if self._done.wait(CLOSE_SECONDS):
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
