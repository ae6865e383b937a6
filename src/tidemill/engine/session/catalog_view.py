"""A state of the catalog as one session sees it: its names, its privileges, the values of its functions.

`planner` makes one for each statement and hands it to the module that plans the statement.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.catalog.privileges import Privileges
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.resolver import Resolver
from tidemill.engine.session.identity import Identity
from tidemill.engine.session.system_parameters import SystemParameters
from tidemill.engine.session.values import SessionValues
from tidemill.engine.session.variables import Variables
from tidemill.sql.bind import SessionInfo


@dataclass(frozen=True, slots=True)
class CatalogView:
    state: CatalogState
    identity: Identity
    variables: Variables
    values: SessionValues
    parameters: SystemParameters

    @property
    def database(self) -> str:
        return self.variables.get("database")

    def privileges(self) -> Privileges:
        return self.identity.privileges(self.state)

    def resolver(self, *, unread: str | None = None) -> Resolver:
        path = self.variables.search_path()
        return Resolver(self.state, self.database, path, privileges=self.privileges(), unread=unread)

    def info(self) -> SessionInfo:
        return self.values.info()
