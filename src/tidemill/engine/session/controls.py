"""Statements about the session itself: transactions, variables, DISCARD."""

from __future__ import annotations

from tidemill.catalog import ops
from tidemill.catalog.items import SYSTEM_ROLE
from tidemill.catalog.privileges import PermissionDenied, members_of
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import find, transact_now
from tidemill.engine.session.plan import Action
from tidemill.engine.session.session import EngineSession
from tidemill.engine.session.transaction import Mode
from tidemill.engine.session.variables import ALIASES, SYSTEM_PARAMETERS, setting_text, unknown_parameter
from tidemill.errors import InvalidTransactionState, Notice, TidemillError, Unsupported
from tidemill.sql import ast


def plan_begin(statement: ast.Begin) -> Action:
    async def act(s: EngineSession) -> Outcome:
        if s.current.explicit:
            await s.begin()
            _apply_modes(s, statement.modes)
        else:
            # Modes that are set too late start no block.
            _apply_modes(s, statement.modes)
            await s.begin()
        return Complete("START TRANSACTION" if statement.start else "BEGIN")

    return Action(act)


def plan_commit(statement: ast.Commit) -> Action:
    async def act(s: EngineSession) -> Outcome:
        modes = _ending(s, "COMMIT", chain=statement.chain)
        done = await s.commit()
        await _chain(s, modes)
        return Complete("COMMIT" if done else "ROLLBACK")

    return Action(act)


def plan_rollback(statement: ast.Rollback) -> Action:
    async def act(s: EngineSession) -> Outcome:
        modes = _ending(s, "ROLLBACK", chain=statement.chain)
        s.rollback()
        await _chain(s, modes)
        return Complete("ROLLBACK")

    return Action(act)


def _ending(s: EngineSession, verb: str, *, chain: bool) -> ast.TransactionModes | None:
    """Called before the block ends. Returns the modes of the chained block; None if there is no chain."""
    block = s.transaction
    if block is None or not block.explicit:
        if chain:
            text = f"{verb} AND CHAIN can only be used in transaction blocks"
            raise InvalidTransactionState(text, sqlstate="25P01")
        s.notice(Notice("there is no transaction in progress", "WARNING", "25P01"))
        return None
    return ast.TransactionModes(isolation=block.isolation, read_only=block.read_only) if chain else None


async def _chain(s: EngineSession, modes: ast.TransactionModes | None) -> None:
    if modes is not None:
        await s.begin()
        _apply_modes(s, modes)


def plan_set_transaction(statement: ast.SetTransaction) -> Action:
    async def act(s: EngineSession) -> Outcome:
        if statement.session:
            if statement.modes.isolation is not None:
                _set_default_isolation(s, statement.modes.isolation)
            if statement.modes.read_only is not None:
                s.variables.set("default_transaction_read_only", "on" if statement.modes.read_only else "off")
        else:
            if not s.in_block:
                s.notice(Notice("SET TRANSACTION can only be used in transaction blocks", "WARNING", "25P01"))
            _apply_modes(s, statement.modes)
        return Complete("SET")

    return Action(act)


def _apply_modes(s: EngineSession, modes: ast.TransactionModes) -> None:
    transaction = s.current
    if modes.isolation is not None:
        if transaction.queried or transaction.mode is not Mode.OPEN:
            raise InvalidTransactionState(
                "SET TRANSACTION ISOLATION LEVEL must be called before any query", sqlstate="25001"
            )
        s.variable_set(s.variables.set("transaction_isolation", modes.isolation, local=True))
    if modes.read_only is not None:
        _set_read_only(s, read_only=modes.read_only)


def _set_read_only(s: EngineSession, *, read_only: bool) -> None:
    """Sets the mode until the transaction, or the savepoint in which it is set, ends. A transaction that has
    read as a read-only one stays read-only."""
    transaction = s.current
    if not read_only and transaction.read_only and transaction.savepoints:
        raise InvalidTransactionState(
            "cannot set transaction read-write mode inside a read-only transaction", sqlstate="25001"
        )
    if transaction.read_only and not read_only and transaction.queried:
        raise InvalidTransactionState(
            "transaction read-write mode must be set before any query", sqlstate="25001"
        )
    transaction.read_only = read_only


def plan_set(statement: ast.SetVariable) -> Action:
    async def act(s: EngineSession) -> Outcome:
        value = None if statement.values is None else setting_text(statement.name, statement.values)
        set_variable(s, statement.name, value, local=statement.local)
        if statement.local and not s.in_block:
            s.notice(Notice("SET LOCAL can only be used in transaction blocks", "WARNING", "25P01"))
        return Complete("SET")

    return Action(act)


def set_variable(s: EngineSession, name: str, value: str | None, *, local: bool) -> str:
    """Sets the variable, or resets it if there is no value. Returns the value as SHOW prints it."""
    known = ALIASES.get(name.lower(), name.lower())
    if known == "default_transaction_isolation":
        # The defaults of transactions are stored in one place.
        _set_default_isolation(s, value, local=local)
    if value is None:
        _check_reset(known)
        variable = s.variables.reset(name, local=local)
    else:
        if known == "database":
            s.engine.catalog.state.database(value)
        elif known == "role":
            check_set_role(s, value)
        elif known == "transaction_read_only":
            checked = s.variables.find(known).checked(value)
            _set_read_only(s, read_only=checked == "on")
            return checked
        variable = s.variables.set(name, value, local=local)
    s.variable_set(variable)
    return s.variables.get(variable.name)


def _check_reset(known: str) -> None:
    if known == "transaction_read_only":
        raise Unsupported(f'parameter "{known}" cannot be reset')


def _set_default_isolation(s: EngineSession, value: str | None, *, local: bool = False) -> None:
    for name in ("default_transaction_isolation", "transaction_isolation"):
        if value is None:
            s.variables.reset(name, local=local)
        else:
            s.variables.set(name, value, local=local)


def check_set_role(s: EngineSession, name: str) -> None:
    """Checks that the login role may act as the role."""
    catalog = s.engine.catalog.state
    if name == "none":
        return
    role = catalog.find_role(name)
    if role is None:
        raise TidemillError(f'role "{name}" does not exist', sqlstate="22023")
    own = s.identity.login_role(catalog)
    if not own.superuser and role.id not in members_of(catalog, own):
        raise PermissionDenied(f'permission denied to set role "{name}"')
    s.identity.may_act_as(role)


def plan_reset(statement: ast.ResetVariable) -> Action:
    async def act(s: EngineSession) -> Outcome:
        if statement.name is None:
            s.variables.reset_all()
        else:
            set_variable(s, statement.name, None, local=False)
        return Complete("RESET")

    return Action(act)


def plan_alter_system(statement: ast.AlterSystem) -> Action:
    async def act(s: EngineSession) -> Outcome:
        if not s.identity.privileges(s.engine.catalog.state).superuser:
            raise PermissionDenied(
                "permission denied to alter system", hint=f"Connect as the role {SYSTEM_ROLE}."
            )
        if statement.name is None:
            changes = [ops.AlterSystemOp(name, None) for name in SYSTEM_PARAMETERS]
        else:
            parameter = SYSTEM_PARAMETERS.get(statement.name)
            if parameter is None:
                raise unknown_parameter(statement.name)
            value = None
            if statement.values is not None:
                value = parameter.checked(", ".join(statement.values))
            changes = [ops.AlterSystemOp(parameter.name, value)]
        await s.blocking(transact_now, s, "ALTER SYSTEM", changes)
        return Complete("ALTER SYSTEM")

    return Action(act)


def plan_discard(statement: ast.Discard) -> Action:
    async def act(s: EngineSession) -> Outcome:
        if statement.kind is ast.DiscardKind.ALL:
            if s.in_block:
                raise InvalidTransactionState(
                    "DISCARD ALL cannot run inside a transaction block", sqlstate="25001"
                )
            s.statements.clear()
            s.portals.clear(active=True)
            s.variables.reset_all(role=True)
            s.variables.begin()  # it is committed at once
        return Complete(f"DISCARD {statement.kind.value}")

    return Action(act)


def plan_no_op(session: EngineSession, statement: ast.NoOp, catalog: CatalogState) -> Action:
    for name in statement.relations:
        if statement.kind is None:
            session.resolver(catalog).any_item(name, "relation")
        else:
            find(session, statement.kind, name, catalog)

    async def act(s: EngineSession) -> Outcome:
        if statement.tag == "VACUUM" and s.in_block:
            raise InvalidTransactionState("VACUUM cannot run inside a transaction block", sqlstate="25001")
        if statement.tag == "SET CONSTRAINTS" and not s.in_block:
            text = "SET CONSTRAINTS can only be used in transaction blocks"
            s.notice(Notice(text, "WARNING", "25P01"))
        for notice in statement.notices:
            s.notice(Notice(notice))
        return Complete(statement.tag)

    return Action(act)
