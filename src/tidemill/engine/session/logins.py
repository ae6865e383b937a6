"""Logins: roles, their passwords, and the databases that they may use.

Called by the server layer (`api.Engine`) and when a session is opened. Promises that a password leaves the
catalog only as a verifier, and that a restart does not reveal which roles exist.
"""

from __future__ import annotations

import secrets

from tidemill.access.scram import make_verifier
from tidemill.catalog.items import SYSTEM_ROLE, Role
from tidemill.catalog.ops import AlterSystemOp
from tidemill.catalog.privileges import PermissionDenied, Privileges
from tidemill.catalog.store import Catalog
from tidemill.config import Config
from tidemill.engine.api import StartupOptions
from tidemill.errors import Internal, UndefinedObject

# A hidden parameter of the catalog that cannot be set: `Logins.key`.
LOGIN_KEY = "login_key"


class Logins:
    def __init__(self, config: Config, catalog: Catalog) -> None:
        self._catalog = catalog
        self._system_verifier = (
            make_verifier(config.system_password).text() if config.system_password else None
        )
        if catalog.state.find_parameter(LOGIN_KEY) is None and config.authentication == "password":
            catalog.transact([AlterSystemOp(LOGIN_KEY, secrets.token_hex(32))])

    def verifier(self, role: str) -> str | None:
        """The verifier of the role's password; None if it has none."""
        if role == SYSTEM_ROLE:
            return self._system_verifier
        found = self._catalog.state.find_role(role)
        return None if found is None else found.verifier

    @property
    def key(self) -> bytes:
        """The key from which the verifiers of roles without a password are derived. It is stored in the
        catalog, so that a restart does not reveal which roles exist."""
        kept = self._catalog.state.find_parameter(LOGIN_KEY)
        if kept is None:
            raise Internal("there is no key for logins")
        return bytes.fromhex(kept.value)

    def role(self, options: StartupOptions) -> Role:
        """The role that may open this session. Raises if it does not exist."""
        state = self._catalog.state
        role = state.find_role(options.user)
        if role is None:
            raise UndefinedObject(
                f'role "{options.user}" does not exist',
                hint="SHOW ROLES lists those that are, CREATE ROLE ... LOGIN makes one.",
                sqlstate="28000",
            )
        if not role.login:
            raise PermissionDenied(f'role "{role.name}" is not permitted to log in', sqlstate="28000")
        database = state.database(options.database)
        if not Privileges(state, role).has(database, "USAGE"):
            raise PermissionDenied(
                f'permission denied for database "{database.name}"',
                detail="User does not have CONNECT privilege.",
            )
        return role
