"""The execution of one prepared statement, shared by the simple and the extended protocol.

Called by `message_loop` and `extended`. Promises: every execution is counted and timed. A read-only
statement does not run for a client that has disconnected. A failed transaction block accepts only the
statements that end it.
"""

from __future__ import annotations

import time

from tidemill.engine.api import NO_PARAMS, Bound, Outcome, PreparedStatement, Session
from tidemill.errors import QueryCanceled
from tidemill.server.metrics import STATEMENTS
from tidemill.server.pgwire.client_line import ClientLine
from tidemill.server.pgwire.error_reports import transaction_aborted

# Read-only statements, which are cancelled when the client disconnects. All others complete, as in
# PostgreSQL.
READING_VERBS = frozenset(
    {"SELECT", "VALUES", "TABLE", "WITH", "SUBSCRIBE", "FETCH", "SHOW", "EXPLAIN", "COPY"}
)


class Execution:
    """The running statement of a session; at most one at a time."""

    __slots__ = ("_began", "_line", "_session", "verb")

    def __init__(self, session: Session, line: ClientLine) -> None:
        self._session = session
        self._line = line
        # The verb of the running statement, "" between statements; and its start time.
        self.verb = ""
        self._began = 0.0

    def running(self, prepared: PreparedStatement) -> Execution:
        """Wrap a statement, from its start (or the resumption of its portal) to its last byte. Raises if it
        may not run."""
        if self._session.transaction_status == "E" and not prepared.allowed_when_failed:
            raise transaction_aborted()
        return self._reading(prepared.verb)

    def reading(self) -> Execution:
        """The same for rows of a cursor of DECLARE."""
        if self._session.transaction_status == "E":
            raise transaction_aborted()
        return self._reading("FETCH")

    def _reading(self, verb: str) -> Execution:
        if self._line.inbox.departed and verb in READING_VERBS:
            raise QueryCanceled("canceling statement because the client has left")
        self.verb = verb
        return self

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        timing = STATEMENTS.of(self.verb)
        self.verb = ""
        timing.add(time.perf_counter() - self._began)

    async def start(
        self, prepared: PreparedStatement, params: Bound = NO_PARAMS, *, alone: bool, in_block: bool
    ) -> Outcome:
        # A simple query has no parameters; the engine rejects a statement that needs some.
        outcome = await self._session.execute(prepared, params, alone=alone, in_block=in_block)
        self._line.timezone = self._session.parameters.get("TimeZone", "UTC")
        return outcome

    @property
    def reads_only(self) -> bool:
        return self.verb in READING_VERBS
