"""The values of a session's functions (current_user, now(), current_setting and so on).

One per session. Queries are bound and run with `info`, whose last result is kept.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill import caches
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.engine.session.identity import Identity
from tidemill.engine.session.system_parameters import SystemParameters
from tidemill.engine.session.transactions import Transactions
from tidemill.engine.session.variables import SESSION_VARIABLES, SYSTEM_PARAMETERS, VERSION, Variables
from tidemill.errors import UndefinedObject
from tidemill.sql.bind import SessionInfo


class SessionValues:
    def __init__(
        self,
        process_id: int,
        catalog: Catalog,
        identity: Identity,
        variables: Variables,
        transactions: Transactions,
        parameters: SystemParameters,
    ) -> None:
        self.process_id = process_id
        self._catalog = catalog
        self._identity = identity
        self._variables = variables
        self._transactions = transactions
        self._parameters = parameters
        # The last result of `info`, with the variables, the catalog and the time that it was made from.
        self._info: SessionInfo | None = None
        self._info_at = (0, 0)

    def setting(self, name: str) -> str | None:
        """A variable's value as SHOW prints it; None if it does not exist."""
        if name in SESSION_VARIABLES:
            return self._variables.get(name)
        if name in SYSTEM_PARAMETERS:
            return self._parameters.get(name)
        try:
            return self._variables.get(self._variables.find(name).name)
        except UndefinedObject:
            return None

    def info(self) -> SessionInfo:
        """The values now; `now` is the transaction's."""
        transaction = self._transactions.open
        started = transaction.started if transaction is not None else datetime.now(UTC)
        known, catalog = self._info, self._catalog.state
        at = (self._variables.generation, catalog.time)
        if known is None or known.now != started or self._info_at != at or not caches.ENABLED:
            known = self._info = SessionInfo(
                database=self._variables.get("database"),
                schemas=self._schemas(catalog),
                user=self._identity.acting_name(),
                session_user=self._identity.login_name,
                backend_pid=self.process_id,
                now=started,
                time_zone=self._variables.get("timezone"),
                setting=self.setting,
                version=VERSION,
                statement=lambda: self._transactions.statement_began,
            )
            self._info_at = at
        return known

    def _schemas(self, catalog: CatalogState) -> tuple[str, ...]:
        """The schemas of the search path that exist."""
        database = catalog.find_database(self._variables.get("database"))
        if database is None:
            return ()
        path = self._variables.search_path()
        return tuple(name for name in path if catalog.find_schema(database.id, name) is not None)
