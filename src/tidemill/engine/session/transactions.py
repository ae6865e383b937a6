"""The transactions of a session: how they begin and end, and the state of the running statement in its
transaction.

Owned by `session.EngineSession`. Promises that the end of a transaction ends its variables and portals too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from tidemill.engine.dml.commits import Commits
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.transaction import Mode, Transaction
from tidemill.engine.session.variables import Variables
from tidemill.errors import Internal, Notice


class Transactions:
    def __init__(
        self, commits: Commits, variables: Variables, portals: Portals, notice: Callable[[Notice], None]
    ) -> None:
        self.commits = commits
        self._variables = variables
        self._portals = portals
        self.notice = notice
        self.open: Transaction | None = None
        # Other statements of the client are part of the implicit transaction (see `api.Session.execute`).
        self._in_implicit_block = False
        # Whether the running statement is the only one of its implicit transaction (see `execute`).
        self.alone = False
        # Its start time: statement_timestamp(). The first statement of a transaction starts it.
        self.statement_began = datetime.now(UTC)
        # The change that the running statement has committed on its own (`CatalogChanges.by_itself`).
        self.at_once: str | None = None

    @property
    def current(self) -> Transaction:
        if self.open is None:
            raise Internal("a statement runs outside of any transaction")
        return self.open

    @property
    def status(self) -> str:
        """As `api.Session.transaction_status`."""
        if self.open is None or not self.open.explicit:
            return "I"
        return "E" if self.open.failed else "T"

    @property
    def failed(self) -> bool:
        """Whether the transaction block has failed."""
        return self.open is not None and self.open.failed

    @property
    def read_only(self) -> bool:
        """Whether the transaction, or the next one if none is open, is read-only."""
        if self.open is None:
            return self._variables.flag("default_transaction_read_only")
        return self.open.read_only

    @property
    def in_block(self) -> bool:
        """Whether the running statement is in a transaction block. Several statements of one simple query or
        pipeline are an implicit block."""
        return self.current.explicit or self._in_implicit_block

    def warn_outside_block(self, what: str) -> None:
        if not self.in_block:
            self.notice(Notice(f"{what} can only be used in transaction blocks", "WARNING", "25P01"))

    def enter_execute(self) -> None:
        """The statement that EXECUTE runs counts as inside a block, as in PostgreSQL."""
        self._in_implicit_block = True

    def begin_statement(self, *, alone: bool, in_block: bool) -> None:
        transaction = self.open
        if transaction is None:
            transaction = self._begin(explicit=False)
            self.statement_began = transaction.started
        else:
            self.statement_began = datetime.now(UTC)
        self.alone = alone and not transaction.explicit and not transaction.writes
        self._in_implicit_block = in_block
        self.at_once = None

    def end_statement(self) -> None:
        """The statement has succeeded."""
        if self.at_once is not None and self.open is not None and not self.open.explicit:
            self.open.lasting.append(self.at_once)

    def _begin(self, *, explicit: bool) -> Transaction:
        self._variables.begin()
        self.open = Transaction(
            explicit=explicit,
            started=datetime.now(UTC),
            read_only=self._variables.flag("default_transaction_read_only"),
            isolation=self._variables.get("transaction_isolation"),
        )
        return self.open

    def begin(self) -> Transaction:
        """BEGIN. As in PostgreSQL, the block includes what an implicit transaction (earlier statements of a
        query or a pipeline) has written. What it has read does not bind the block."""
        current = self.open
        if current is None:
            return self._begin(explicit=True)
        if current.explicit:
            self.notice(Notice("there is already a transaction in progress", "WARNING", "25001"))
        elif current.mode is Mode.READ:
            current.mode, current.read_ts = Mode.OPEN, None
            current.on_timelines.clear()
        current.explicit = True
        return current

    async def commit(self) -> bool:
        """COMMIT of the open transaction, if any; returns False if it had failed and was rolled back
        instead."""
        transaction = self.open
        if transaction is None:
            return True
        if transaction.failed:
            self.end(committed=False)
            return False
        try:
            for cursor in self._portals.held():
                await cursor.keep()
            if transaction.writes:
                await self.commits.commit(transaction)
            for each in transaction.after:
                await each()
        except BaseException:
            self.end(committed=False)
            raise
        self.end(committed=True)
        return True

    def end(self, *, committed: bool) -> None:
        self._variables.end(committed=committed)
        ended, self.open = self.open, None
        if ended is not None and not committed:
            for verb in dict.fromkeys(ended.lasting):
                self.notice(Notice(f"{verb} took effect at once and was not rolled back", "WARNING"))
        self._portals.end(committed=committed)

    def end_implicit(self) -> bool:
        """Ends the implicit transaction, if one is open. Returns True if it must be committed instead."""
        if self.open is None:
            self._portals.end(committed=True)
        elif not self.open.explicit:
            if self.open.writes or self.open.failed or self.open.after or self._portals.held():
                return True
            self.end(committed=True)
        return False

    def fail(self) -> None:
        """As `api.Session.fail`."""
        if self.open is None:
            self._portals.end(committed=False)
        elif self.open.explicit:
            self.open.failed = True
            self.open.writes.clear()
            # Settings are restored at once, and the client gets the new values.
            if marks := self.open.savepoints:
                self._variables.restore(marks[-1].variables)
                self._portals.fail(marks[-1].portals)
            else:
                self._variables.take_back()
                self._portals.fail(frozenset())
        else:
            self.end(committed=False)

    def set_isolation(self) -> None:
        """SET TRANSACTION ISOLATION and similar statements apply to the running transaction."""
        if self.open is not None:
            self.open.isolation = self._variables.get("transaction_isolation")
