"""Statements about the session itself: transactions, variables, DISCARD."""

from __future__ import annotations

from tidemill.catalog import ops
from tidemill.catalog.items import SYSTEM_ROLE
from tidemill.catalog.privileges import PermissionDenied
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.ddl.catalog_changes import CatalogChanges, find
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.prepared_statements import Statements
from tidemill.engine.session.settings import SessionSettings
from tidemill.engine.session.transactions import Transactions
from tidemill.engine.session.variables import SYSTEM_PARAMETERS, setting_text, unknown_parameter
from tidemill.engine.subscribe.reading import Readings
from tidemill.errors import InvalidTransactionState, Notice
from tidemill.sql import ast


async def begin(settings: SessionSettings, statement: ast.Begin) -> Outcome:
    if settings.transactions.current.explicit:
        settings.transactions.begin()
        settings.apply_modes(statement.modes)
    else:
        # Modes that are set too late start no block.
        settings.apply_modes(statement.modes)
        settings.transactions.begin()
    return Complete("START TRANSACTION" if statement.start else "BEGIN")


async def commit(settings: SessionSettings, statement: ast.Commit) -> Outcome:
    modes = _ending(settings.transactions, "COMMIT", chain=statement.chain)
    done = await settings.transactions.commit()
    _chain(settings, modes)
    return Complete("COMMIT" if done else "ROLLBACK")


async def rollback(settings: SessionSettings, statement: ast.Rollback) -> Outcome:
    modes = _ending(settings.transactions, "ROLLBACK", chain=statement.chain)
    settings.transactions.end(committed=False)
    _chain(settings, modes)
    return Complete("ROLLBACK")


def _ending(transactions: Transactions, verb: str, *, chain: bool) -> ast.TransactionModes | None:
    """Called before the block ends. Returns the modes of the chained block; None if there is no chain."""
    block = transactions.open
    if block is None or not block.explicit:
        if chain:
            text = f"{verb} AND CHAIN can only be used in transaction blocks"
            raise InvalidTransactionState(text, sqlstate="25P01")
        transactions.notice(Notice("there is no transaction in progress", "WARNING", "25P01"))
        return None
    return ast.TransactionModes(isolation=block.isolation, read_only=block.read_only) if chain else None


def _chain(settings: SessionSettings, modes: ast.TransactionModes | None) -> None:
    if modes is not None:
        settings.transactions.begin()
        settings.apply_modes(modes)


async def set_transaction(settings: SessionSettings, statement: ast.SetTransaction) -> Outcome:
    if statement.session:
        if statement.modes.isolation is not None:
            settings.set_default_isolation(statement.modes.isolation)
        if statement.modes.read_only is not None:
            settings.variables.set(
                "default_transaction_read_only", "on" if statement.modes.read_only else "off"
            )
    else:
        settings.transactions.warn_outside_block("SET TRANSACTION")
        settings.apply_modes(statement.modes)
    return Complete("SET")


async def set_variable(settings: SessionSettings, statement: ast.SetVariable) -> Outcome:
    if statement.local:
        settings.transactions.warn_outside_block("SET LOCAL")
    value = None if statement.values is None else setting_text(statement.name, statement.values)
    settings.set(statement.name, value, local=statement.local)
    return Complete("SET")


async def reset_variable(settings: SessionSettings, statement: ast.ResetVariable) -> Outcome:
    if statement.name is None:
        settings.variables.reset_all()
    else:
        settings.set(statement.name, None, local=False)
    return Complete("RESET")


async def alter_system(view: CatalogView, ddl: CatalogChanges, statement: ast.AlterSystem) -> Outcome:
    if not view.privileges().superuser:
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
    await ddl.execution.blocking(ddl.transact_now, "ALTER SYSTEM", changes)
    return Complete("ALTER SYSTEM")


async def discard(
    settings: SessionSettings,
    statements: Statements,
    portals: Portals,
    readings: Readings,
    statement: ast.Discard,
) -> Outcome:
    if statement.kind is ast.DiscardKind.ALL:
        if settings.transactions.in_block:
            raise InvalidTransactionState(
                "DISCARD ALL cannot run inside a transaction block", sqlstate="25001"
            )
        statements.clear()
        portals.clear(active=True)
        readings.close()
        settings.variables.reset_all(role=True)
        settings.variables.begin()  # it is committed at once
    return Complete(f"DISCARD {statement.kind.value}")


def plan_no_op(view: CatalogView, transactions: Transactions, statement: ast.NoOp) -> Action:
    for name in statement.relations:
        if statement.kind is None:
            view.resolver().any_item(name, "relation")
        else:
            find(view, statement.kind, name)

    async def act() -> Outcome:
        if statement.tag == "VACUUM" and transactions.in_block:
            raise InvalidTransactionState("VACUUM cannot run inside a transaction block", sqlstate="25001")
        if statement.tag == "SET CONSTRAINTS":
            transactions.warn_outside_block(statement.tag)
        for notice in statement.notices:
            transactions.notice(Notice(notice))
        return Complete(statement.tag)

    return Action(act)
