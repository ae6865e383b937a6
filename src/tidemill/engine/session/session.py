"""One client's session: its variables, its transaction, its cursors and prepared statements.

The server layer drives it through `api.Session`: one statement at a time on the event loop; only `cancel` may
be called in between. Parsing and planning run on worker threads. The modules that `planner` dispatches to
execute the statements; this module keeps the state between statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

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
from tidemill.engine.ddl.catalog_changes import CatalogChanges
from tidemill.engine.dml.writer import StatementWriter
from tidemill.engine.live_system import situation
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.result_stream import GuardedRows
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.client_events import ClientEvents
from tidemill.engine.session.execution import StatementExecution
from tidemill.engine.session.identity import Identity
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.plan import Value, decode_params, no_parameter
from tidemill.engine.session.planner import plan
from tidemill.engine.session.planning_pool import SHORT
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.prepared_statements import Statements
from tidemill.engine.session.preparer import Preparer, aborted
from tidemill.engine.session.settings import SessionSettings
from tidemill.engine.session.statement_cache import KeptStatement, PlanInputs
from tidemill.engine.session.transactions import Transactions
from tidemill.engine.session.values import SessionValues
from tidemill.engine.session.variables import (
    SESSION_VARIABLES,
    Variables,
    unknown_parameter,
)
from tidemill.engine.subscribe.reading import Readings
from tidemill.errors import (
    Internal,
    Notice,
    TidemillError,
)
from tidemill.sql import ast

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine

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
        self.encryption = options.encryption
        self.connected_at = datetime.now(UTC)
        computed = {
            "is_superuser": lambda: "on" if self.identity.is_superuser(engine.catalog.state) else "off",
            "transaction_read_only": lambda: "on" if self.transactions.read_only else "off",
        }
        self.variables = variables = Variables(self._initial(options), computed)
        self.identity = Identity(role, variables, options.client_address)
        # Ends the session from outside; set by the server layer.
        self._on_terminate: Callable[[TidemillError], None] | None = None
        self.portals = Portals()  # of DECLARE and of Bind
        self.statements = Statements()  # of PREPARE and of the protocol
        self.readings = Readings()  # of durable subscriptions
        self.interrupt = Interrupt()
        self._events = ClientEvents(variables)
        self.execution = execution = StatementExecution(engine.workers, self.interrupt, self._events)
        self.transactions = transactions = Transactions(
            engine.commits, variables, self.portals, execution.notice
        )
        catalog, parameters = engine.catalog, engine.parameters
        self.settings = SessionSettings(variables, transactions, self.identity, catalog)
        self.values = SessionValues(process_id, catalog, self.identity, variables, transactions, parameters)
        self.reader = Reader(
            execution,
            transactions,
            self.values,
            engine.queries,
            engine.readiness,
            partial(situation, engine, self),
            engine.subscriptions,
        )
        self.writer = StatementWriter(self.reader, engine.write_locks, parameters)
        self.ddl = CatalogChanges(execution, transactions, self.identity, catalog, engine.audit)
        self._inputs = PlanInputs(catalog, variables, transactions, self.statements, self.portals)
        self.preparer = Preparer(engine.planning, partial(plan, self), self._inputs, self.interrupt)
        # Methods of `api.Session`.
        self.parse = self.preparer.parse
        self.prepare = self.preparer.prepare
        self.prepare_subscribe = self.preparer.prepare_subscribe
        self.describe = self.preparer.describe
        self.bind = self.preparer.bind
        self.events = self._events.take
        self.setting = self.values.setting
        self.cancel = self.interrupt.cancel
        self._closed = False
        self._start_others(options)

    def _initial(self, options: StartupOptions) -> dict[str, str]:
        initial = {
            "database": options.database,
            "session_authorization": options.user,
        }
        if options.application_name:
            label = SESSION_VARIABLES["application_name"]
            initial[label.name] = label.checked(options.application_name)
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
                self._events.notice(Notice(f"{unknown_parameter(name).primary}; ignored", "WARNING"))
            elif variable.read_only:
                self._events.notice(Notice(f'parameter "{name}" cannot be changed; ignored', "WARNING"))

    # -- interface of the server layer ----------------------------------------------------------------

    @property
    def transaction_status(self) -> str:
        return self.transactions.status

    @property
    def parameters(self) -> Mapping[str, str]:
        return self._events.parameters

    async def read_params(self, prepared: PreparedStatement, params: Sequence[Param]) -> Bound:
        if not params:
            return NO_PARAMS
        zone = self.variables.get("timezone")
        size = sum(len(p.data or b"") for p in params)
        if size <= SHORT:
            return Bound(decode_params(prepared.param_types, params, zone))
        values = await self.execution.blocking(decode_params, prepared.param_types, params, zone)
        return Bound(values)

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
            self.transactions.begin_statement(alone=alone, in_block=in_block)
            outcome = await self.run(prepared, params)
            self.transactions.end_statement()
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
        planned = statement.plan(self._inputs)
        if planned is None:
            planned = await self.preparer.plan(prepared)
        if planned is None or statement.parsed is None:
            raise Internal("a statement without a plan")
        if not isinstance(params, Bound):
            params = await self.read_params(prepared, params)
        if planned.param_types and not params.values:
            raise no_parameter(statement.parsed)
        if isinstance(statement.parsed.statement, _QUERIES):
            self.transactions.current.queried = True
        return await planned.run(cast("Sequence[Value]", params.values))

    async def fetch(self, name: str, count: int | None) -> Rows:
        if self.transactions.failed:
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
        if self.transactions.end_implicit():
            await self.transactions.commit()

    async def fail(self) -> None:
        self.interrupt.end()
        self.transactions.fail()

    def on_event(self, wake: object) -> None:
        self._events.wake = cast("Callable[[], None]", wake)

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
        if self.transactions.open is not None:
            self.transactions.open.lasting.clear()  # the client is gone
        self.interrupt.cancel()
        self.transactions.end(committed=False)
        self.readings.close()
        self.statements.clear()
        self.preparer.clear()
        self.engine.forget_session(self)

    # -- for statements ----------------------------------------------------------------------------

    def view(self, catalog: CatalogState) -> CatalogView:
        return CatalogView(catalog, self.identity, self.variables, self.values, self.engine.parameters)
