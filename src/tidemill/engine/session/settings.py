"""Changes of a session's settings: SET, RESET, set_config and the modes of transactions.

One per session. Promises that a role, a database or a mode of the transaction is checked before it is set.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.catalog.privileges import PermissionDenied, members_of
from tidemill.catalog.store import Catalog
from tidemill.engine.session.identity import Identity
from tidemill.engine.session.transaction import Mode
from tidemill.engine.session.transactions import Transactions
from tidemill.engine.session.variables import ALIASES, Variables
from tidemill.errors import InvalidTransactionState, TidemillError, Unsupported
from tidemill.sql import ast


@dataclass(frozen=True, slots=True)
class SessionSettings:
    variables: Variables
    transactions: Transactions
    identity: Identity
    catalog: Catalog

    def set(self, name: str, value: str | None, *, local: bool) -> str:
        """Sets the variable, or resets it if there is no value. Returns the value as SHOW prints it."""
        known = ALIASES.get(name.lower(), name.lower())
        if known == "default_transaction_isolation":
            # The defaults of transactions are stored in one place.
            self.set_default_isolation(value, local=local)
        if value is None:
            if known == "transaction_read_only":
                raise Unsupported(f'parameter "{known}" cannot be reset')
            variable = self.variables.reset(name, local=local)
        else:
            if known == "database":
                self.catalog.state.database(value)
            elif known == "role":
                self.check_role(value)
            elif known == "transaction_read_only":
                checked = self.variables.find(known).checked(value)
                self._set_read_only(read_only=checked == "on")
                return checked
            variable = self.variables.set(name, value, local=local)
        if variable.name == "transaction_isolation":
            self.transactions.set_isolation()
        return self.variables.get(variable.name)

    def set_default_isolation(self, value: str | None, *, local: bool = False) -> None:
        for name in ("default_transaction_isolation", "transaction_isolation"):
            if value is None:
                self.variables.reset(name, local=local)
            else:
                self.variables.set(name, value, local=local)

    def check_role(self, name: str) -> None:
        """Checks that the login role may act as the role."""
        catalog = self.catalog.state
        if name == "none":
            return
        role = catalog.find_role(name)
        if role is None:
            raise TidemillError(f'role "{name}" does not exist', sqlstate="22023")
        own = self.identity.login_role(catalog)
        if not own.superuser and role.id not in members_of(catalog, own):
            raise PermissionDenied(f'permission denied to set role "{name}"')
        self.identity.may_act_as(role)

    def apply_modes(self, modes: ast.TransactionModes) -> None:
        """The modes of BEGIN and SET TRANSACTION, to the running transaction."""
        transaction = self.transactions.current
        if modes.isolation is not None:
            if transaction.queried or transaction.mode is not Mode.OPEN:
                raise InvalidTransactionState(
                    "SET TRANSACTION ISOLATION LEVEL must be called before any query", sqlstate="25001"
                )
            self.variables.set("transaction_isolation", modes.isolation, local=True)
            self.transactions.set_isolation()
        if modes.read_only is not None:
            self._set_read_only(read_only=modes.read_only)

    def _set_read_only(self, *, read_only: bool) -> None:
        """Sets the mode until the transaction, or the savepoint in which it is set, ends. A transaction that
        has read as a read-only one stays read-only."""
        transaction = self.transactions.current
        if not read_only and transaction.read_only and transaction.savepoints:
            raise InvalidTransactionState(
                "cannot set transaction read-write mode inside a read-only transaction", sqlstate="25001"
            )
        if transaction.read_only and not read_only and transaction.queried:
            raise InvalidTransactionState(
                "transaction read-write mode must be set before any query", sqlstate="25001"
            )
        transaction.read_only = read_only
