"""One client's session: its variables, its transaction, its cursors and prepared statements.

The server layer drives it through `api.Session`: one statement at a time on the event loop; only `cancel` may
be called in between. Parsing and planning run on worker threads. The modules that `planner` dispatches to
execute the statements; this module keeps the state between statements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar, cast

from tidemill import caches
from tidemill.catalog.items import Role
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import (
    NO_PARAMS,
    Bound,
    CopyIn,
    CopyOut,
    EmptyQuery,
    Outcome,
    Param,
    PreparedStatement,
    Rows,
    StartupOptions,
)
from tidemill.engine.read.result_stream import GuardedRows
from tidemill.engine.relations.resolver import Resolver
from tidemill.engine.session.client_events import ClientEvents
from tidemill.engine.session.identity import Identity
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.plan import Value, decode_params, no_parameter
from tidemill.engine.session.planning_pool import SHORT
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.prepared_statements import Statements
from tidemill.engine.session.preparer import Preparer, aborted
from tidemill.engine.session.statement_cache import KeptStatement
from tidemill.engine.session.transaction import Mode, Transaction
from tidemill.engine.session.variables import (
    SESSION_VARIABLES,
    SYSTEM_PARAMETERS,
    VERSION,
    Variable,
    Variables,
    unknown_parameter,
)
from tidemill.errors import (
    Internal,
    Notice,
    TidemillError,
    UndefinedObject,
)
from tidemill.sql import ast
from tidemill.sql.bind import SessionInfo
from tidemill.types.model import Column

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine

T = TypeVar("T")

# Statements after which the modes of their transaction cannot change.
_QUERIES = (
    ast.Query,
    ast.Insert,
    ast.Update,
    ast.Delete,
    ast.Subscribe,
    ast.Declare,
    ast.CopyTo,
    ast.CopyFrom,
)


class EngineSession:
    """Implements `api.Session`."""

    def __init__(self, engine: TidemillEngine, options: StartupOptions, process_id: int, role: Role) -> None:
        self.engine = engine
        self.process_id = process_id
        # The login role; `identity` has the current role (SET ROLE).
        self.role = role.name
        self.client_address = options.client_address
        self.encryption = options.encryption
        self.connected_at = datetime.now(UTC)
        computed = {"is_superuser": self._is_superuser, "transaction_read_only": self._is_read_only}
        self.variables = Variables(self._initial(options), computed)
        self.identity = Identity(role, self.variables)
        # Ends the session from outside; set by the server layer.
        self._on_terminate: Callable[[TidemillError], None] | None = None
        self.transaction: Transaction | None = None
        self.portals = Portals()  # of DECLARE and of Bind
        self.statements = Statements()  # of PREPARE and of the protocol
        self.preparer = Preparer(self, self.statements)
        self.interrupt = Interrupt()
        self._events = ClientEvents(self.variables)
        # Methods of `api.Session`.
        self.parse = self.preparer.parse
        self.prepare = self.preparer.prepare
        self.prepare_subscribe = self.preparer.prepare_subscribe
        self.describe = self.preparer.describe
        self.bind = self.preparer.bind
        self.events = self._events.take
        # The last result of `info`, with the variables, the catalog and the time that it was made from.
        self._info: SessionInfo | None = None
        self._info_at = (0, 0)
        # Other statements of the client are part of the implicit transaction (see `execute`).
        self._in_implicit_block = False
        # Whether the running statement is the only one of its implicit transaction (see `execute`).
        self.alone = False
        # Its start time: statement_timestamp(). The first statement of a transaction starts it.
        self._statement_began = self.connected_at
        # The change that the running statement has committed on its own (`changes.by_itself`).
        self.at_once: str | None = None
        self._closed = False
        self._start_others(options)

    def _initial(self, options: StartupOptions) -> dict[str, str]:
        initial = {
            "database": options.database,
            "session_authorization": options.user,
        }
        if options.application_name:
            initial["application_name"] = options.application_name
        for name, value in options.settings.items():
            variable = SESSION_VARIABLES.get(name.lower())
            if variable is not None and not variable.read_only:
                initial[variable.name] = variable.checked(value)
        if "default_transaction_isolation" in initial:
            initial.setdefault("transaction_isolation", initial["default_transaction_isolation"])
        return initial

    def _start_others(self, options: StartupOptions) -> None:
        """Start-up settings that belong to the application, or cannot be set. They do not refuse the
        connection (pools and drivers set PostgreSQL's jit and the like), but the client gets a notice."""
        for name, value in options.settings.items():
            if name.lower() not in SESSION_VARIABLES and "." in name:
                self.variables.start_own(name, value)
                continue
            variable = SESSION_VARIABLES.get(name.lower())
            if variable is None:
                self.notice(Notice(f"{unknown_parameter(name).primary}; ignored", "WARNING"))
            elif variable.read_only:
                self.notice(Notice(f'parameter "{name}" cannot be changed; ignored', "WARNING"))

    # -- interface of the server layer ----------------------------------------------------------------

    @property
    def transaction_status(self) -> str:
        if self.transaction is None or not self.transaction.explicit:
            return "I"
        return "E" if self.transaction.failed else "T"

    @property
    def parameters(self) -> Mapping[str, str]:
        return self._events.parameters

    def setting(self, name: str) -> str | None:
        """A variable's value as SHOW prints it; None if it does not exist. The server reads the idle
        time-outs and the limit of a result here."""
        if name in SESSION_VARIABLES:
            return self.variables.get(name)
        if name in SYSTEM_PARAMETERS:
            return self.engine.system_value(name)
        try:
            return self.variables.get(self.variables.find(name).name)
        except UndefinedObject:
            return None

    async def read_params(self, prepared: PreparedStatement, params: Sequence[Param]) -> Bound:
        if not params:
            return NO_PARAMS
        zone = self.variables.get("timezone")
        size = sum(len(p.data or b"") for p in params)
        return Bound(await self._computing(size, decode_params, prepared.param_types, params, zone))

    async def execute(
        self,
        prepared: PreparedStatement,
        params: Sequence[Param] | Bound = (),
        *,
        alone: bool = False,
        in_block: bool = False,
    ) -> Outcome:
        statement = cast(KeptStatement, prepared.statement)
        if statement.parsed is None:
            return EmptyQuery()
        self.preparer.check_allowed(prepared)
        self.interrupt.begin(self.variables.milliseconds("statement_timeout"))
        streaming = False
        try:
            if self.transaction is None:
                self._statement_began = self._begin(explicit=False).started
            else:
                self._statement_began = datetime.now(UTC)
            self.alone = alone and not self.current.explicit and not self.current.writes
            self._in_implicit_block = in_block
            self.at_once = None
            outcome = await self.run(prepared, params)
            if self.at_once is not None and self.transaction is not None and not self.transaction.explicit:
                self.transaction.lasting.append(self.at_once)
            if isinstance(outcome, (Rows, CopyOut)):
                streaming = True
                outcome.batches = watched = GuardedRows(outcome.batches, self.interrupt)
                if isinstance(outcome, Rows) and watched.at_hand:
                    outcome.take = watched.take
            elif isinstance(outcome, CopyIn):
                streaming = True  # ends with the copy's sink, at `sync` or `fail`
            return outcome
        finally:
            if not streaming:
                self.interrupt.end()

    async def run(self, prepared: PreparedStatement, params: Sequence[Param] | Bound) -> Outcome:
        """Within a statement: the query that a FETCH starts runs in the FETCH's statement."""
        statement = cast(KeptStatement, prepared.statement)
        # Most plans are current: a coroutine for the look would cost a small statement too much.
        planned = statement.plan(self, self.engine.catalog.state)
        if planned is None:
            planned = await self.preparer.plan(prepared)
        if planned is None or statement.parsed is None:
            raise Internal("a statement without a plan")
        if not isinstance(params, Bound):
            params = await self.read_params(prepared, params)
        if planned.param_types and not params.values:
            raise no_parameter(statement.parsed)
        if isinstance(statement.parsed.statement, _QUERIES):
            self.current.queried = True
        return await planned.run(self, cast("Sequence[Value]", params.values))

    async def fetch(self, name: str, count: int | None) -> Rows:
        if self.in_failed_block:
            raise aborted()
        portal = self.portals.find(name)
        if portal is None or portal.cursor is None or portal.columns is None:
            raise Internal(f"nothing to fetch from {name}")
        self.resume()
        rows = GuardedRows(portal.cursor.fetch(count), self.interrupt)
        return Rows(portal.columns, rows, tag=portal.tag, counted=portal.counted)

    def resume(self) -> None:
        self.interrupt.begin(self.variables.milliseconds("statement_timeout"))

    async def sync(self) -> None:
        self.interrupt.end()
        if self.transaction is None:
            self.portals.end(committed=True)
        elif not self.transaction.explicit:
            if self.transaction.writes or self.transaction.failed or self.portals.held():
                await self.commit()
            else:
                self._end(committed=True)

    async def fail(self) -> None:
        self.interrupt.end()
        if self.transaction is None:
            self.portals.end(committed=False)
        elif self.transaction.explicit:
            self.transaction.failed = True
            self.transaction.writes.clear()
            # Settings are restored at once, and the client gets the new values.
            if marks := self.transaction.savepoints:
                self.variables.restore(marks[-1].variables)
                self.portals.fail(marks[-1].portals)
            else:
                self.variables.take_back()
                self.portals.fail(frozenset())
        else:
            self._end(committed=False)

    def cursor_columns(self, name: str) -> tuple[Column, ...] | None:
        portal = self.portals.find(name)
        return None if portal is None else portal.columns

    def on_event(self, wake: object) -> None:
        self._events.wake = cast("Callable[[], None]", wake)

    def cancel(self) -> None:
        self.interrupt.cancel()

    def on_terminate(self, end: object) -> None:
        self._on_terminate = cast("Callable[[TidemillError], None]", end)

    def terminate(self, error: TidemillError) -> bool:
        """Ends the session with `error` (pg_terminate_backend), on the event loop; returns False if that is
        not possible."""
        if self._on_terminate is None:
            return False
        self._on_terminate(error)
        return True

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.transaction is not None:
            self.transaction.lasting.clear()  # the client is gone
        self.interrupt.cancel()
        self._end(committed=False)
        self.statements.clear()
        self.preparer.clear()
        self.engine.forget_session(self)

    # -- for statements ----------------------------------------------------------------------------

    async def blocking(self, fn: Callable[..., T], *args: object) -> T:
        """Runs it on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.engine.workers, fn, *args)

    async def _computing(self, size: int, fn: Callable[..., T], *args: object) -> T:
        """Runs a pure computation: on the event loop if it is short, else on a worker thread."""
        return fn(*args) if size <= SHORT else await self.blocking(fn, *args)

    def notice(self, notice: Notice) -> None:
        """Sends the notice to the client if its level passes client_min_messages."""
        self._events.notice(notice)

    @property
    def database(self) -> str:
        return self.variables.get("database")

    def resolver(self, catalog: CatalogState, *, unread: str | None = None) -> Resolver:
        mine = self.identity.privileges(catalog)
        path = self.variables.search_path()
        return Resolver(catalog, self.database, path, privileges=mine, unread=unread)

    @property
    def read_only(self) -> bool:
        """Whether the transaction, or the next one if none is open, is read-only."""
        if self.transaction is None:
            return self.variables.flag("default_transaction_read_only")
        return self.transaction.read_only

    def _is_read_only(self) -> str:
        return "on" if self.read_only else "off"

    def _is_superuser(self) -> str:
        return "on" if self.identity.is_superuser(self.engine.catalog.state) else "off"

    def info(self) -> SessionInfo:
        """The values of session functions; `now` is the transaction's."""
        started = self.transaction.started if self.transaction is not None else datetime.now(UTC)
        known, catalog = self._info, self.engine.catalog.state
        at = (self.variables.generation, catalog.time)
        if known is None or known.now != started or self._info_at != at or not caches.ENABLED:
            known = self._info = SessionInfo(
                database=self.database,
                schemas=self._schemas(catalog),
                user=self.identity.acting_name(),
                session_user=self.role,
                backend_pid=self.process_id,
                now=started,
                time_zone=self.variables.get("timezone"),
                setting=self.setting,
                version=VERSION,
                statement=lambda: self._statement_began,
            )
            self._info_at = at
        return known

    def _schemas(self, catalog: CatalogState) -> tuple[str, ...]:
        """The schemas of the search path that exist."""
        database = catalog.find_database(self.database)
        if database is None:
            return ()
        path = self.variables.search_path()
        return tuple(name for name in path if catalog.find_schema(database.id, name) is not None)

    def enter_execute(self) -> None:
        """The statement that EXECUTE runs counts as inside a block, as in PostgreSQL."""
        self._in_implicit_block = True

    @property
    def in_block(self) -> bool:
        """Whether the running statement is in a transaction block. Several statements of one simple query or
        pipeline are an implicit block."""
        return self.current.explicit or self._in_implicit_block

    @property
    def current(self) -> Transaction:
        if self.transaction is None:
            raise Internal("a statement runs outside of any transaction")
        return self.transaction

    # -- transactions ------------------------------------------------------------------------------

    def _begin(self, *, explicit: bool) -> Transaction:
        self.variables.begin()
        self.transaction = Transaction(
            explicit=explicit,
            started=datetime.now(UTC),
            read_only=self.variables.flag("default_transaction_read_only"),
            isolation=self.variables.get("transaction_isolation"),
        )
        return self.transaction

    async def begin(self) -> Transaction:
        """BEGIN. As in PostgreSQL, the block includes what an implicit transaction (earlier statements of a
        query or a pipeline) has written. What it has read does not bind the block."""
        current = self.transaction
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
        transaction = self.transaction
        if transaction is None:
            return True
        if transaction.failed:
            self._end(committed=False)
            return False
        try:
            for cursor in self.portals.held():
                await cursor.keep()
            if transaction.writes:
                await self.engine.commits.commit(transaction)
        except BaseException:
            self._end(committed=False)
            raise
        self._end(committed=True)
        return True

    def rollback(self) -> None:
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        self.variables.end(committed=committed)
        ended, self.transaction = self.transaction, None
        if ended is not None and not committed:
            for verb in dict.fromkeys(ended.lasting):
                self.notice(Notice(f"{verb} took effect at once and was not rolled back", "WARNING"))
        self.portals.end(committed=committed)

    @property
    def in_failed_block(self) -> bool:
        return self.transaction is not None and self.transaction.failed

    # -- telling the client ------------------------------------------------------------------------

    def variable_set(self, variable: Variable) -> None:
        """SET TRANSACTION ISOLATION and similar statements apply to the running transaction."""
        if self.transaction is None:
            return
        if variable.name == "transaction_isolation":
            self.transaction.isolation = self.variables.get(variable.name)
