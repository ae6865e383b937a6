"""The roles of a session: the login role, the role that it acts as, and the privileges of that role.

Owned by `session.EngineSession`. Promises that a role that was dropped and created again under its name is
another role.
"""

from __future__ import annotations

from tidemill import caches
from tidemill.catalog.items import Role
from tidemill.catalog.privileges import Privileges
from tidemill.catalog.state import CatalogState
from tidemill.engine.session.variables import Variables
from tidemill.errors import UndefinedObject


class Identity:
    def __init__(self, login: Role, variables: Variables, address: str) -> None:
        self.login_name = login.name
        # Where the client is.
        self.address = address
        self._variables = variables
        # The ids of the roles that the session may be, as checked, by name.
        self._role_ids = {login.name: login.id}
        # The last result of `privileges`, and its inputs.
        self._privileges: Privileges | None = None
        self._privileges_at = variables.generation

    def set_role(self) -> str | None:
        """The role of SET ROLE."""
        chosen = self._variables.get("role")
        return None if chosen == "none" else chosen

    def acting_name(self) -> str:
        """The role of SET ROLE, or else the login role."""
        return self.set_role() or self.login_name

    def acting_role(self, catalog: CatalogState) -> Role:
        """The role that the session acts as. Raises if the role was dropped."""
        return self._own(catalog, self.acting_name())

    def login_role(self, catalog: CatalogState) -> Role:
        """The role that logged in. Raises if the role was dropped."""
        return self._own(catalog, self.login_name)

    def may_act_as(self, role: Role) -> None:
        """Whether the session may act as the role. SET ROLE has checked that the login role may be this
        role."""
        self._role_ids[role.name] = role.id

    def _own(self, catalog: CatalogState, name: str) -> Role:
        role = catalog.find_role(name)
        if role is None or self._role_ids.get(name) != role.id:
            raise UndefinedObject(f'role "{name}" does not exist', sqlstate="42704")
        return role

    def privileges(self, catalog: CatalogState) -> Privileges:
        """The privileges of the acting role."""
        known = self._privileges
        at = self._variables.generation
        if known is None or known.state is not catalog or self._privileges_at != at or not caches.ENABLED:
            known = self._privileges = Privileges(catalog, self.acting_role(catalog))
            self._privileges_at = at
        return known

    def is_superuser(self, catalog: CatalogState) -> bool:
        try:
            return self.acting_role(catalog).superuser
        except UndefinedObject:
            return False
