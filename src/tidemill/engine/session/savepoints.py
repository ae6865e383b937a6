"""SAVEPOINT, RELEASE and ROLLBACK TO: marks within a transaction block to which it can roll back.

A savepoint keeps the state of the transaction at its creation: its writes, its mode and the session's
variables. A rollback to it discards everything later, an error included, and closes cursors that were opened
since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidemill.catalog.items import Table
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.settings import SessionSettings
from tidemill.engine.session.transaction import Mode, Transaction
from tidemill.engine.session.transactions import Transactions
from tidemill.engine.session.variables import Variables
from tidemill.errors import InvalidTransactionState, LimitExceeded, TidemillError
from tidemill.sql import ast

# Each holds a list of the writes before it. Drivers nest a handful; a loop that never releases creates more.
MAX_SAVEPOINTS = 1000


@dataclass(frozen=True, slots=True)
class SavedState:
    """The saved state of the transaction. Lists of updates only grow at their ends, so their lengths identify
    their contents."""

    name: str
    mode: Mode
    read_only: bool
    read_ts: int | None
    writes: Mapping[str, tuple[pa.Table, ...]]
    write_bytes: int
    tables: Mapping[str, Table]
    reads: frozenset[str]
    variables: tuple[Mapping[str, str], Mapping[str, str]]
    # The names of the portals that were open.
    portals: frozenset[str]


async def savepoint(settings: SessionSettings, portals: Portals, statement: ast.Savepoint) -> Outcome:
    transaction = _block(settings.transactions, "SAVEPOINT")
    if len(transaction.savepoints) >= MAX_SAVEPOINTS:
        raise LimitExceeded(f"too many savepoints (limit {MAX_SAVEPOINTS})", hint="RELEASE some.")
    transaction.savepoints.append(_taken(settings.variables, portals, transaction, statement.name.value))
    return Complete("SAVEPOINT")


async def release(transactions: Transactions, statement: ast.ReleaseSavepoint) -> Outcome:
    transaction = _block(transactions, "RELEASE SAVEPOINT")
    at = _index(transaction, statement.name)
    # READ ONLY lasts as long as the savepoint in which it was set, as in PostgreSQL.
    transaction.read_only = transaction.savepoints[at].read_only
    del transaction.savepoints[at:]
    return Complete("RELEASE")


async def rollback_to(settings: SessionSettings, portals: Portals, statement: ast.RollbackTo) -> Outcome:
    transaction = _block(settings.transactions, "ROLLBACK TO SAVEPOINT")
    at = _index(transaction, statement.name)
    _restore(settings.variables, portals, transaction, transaction.savepoints[at])
    del transaction.savepoints[at + 1 :]
    return Complete("ROLLBACK")


def _block(transactions: Transactions, what: str) -> Transaction:
    if transactions.open is None or not transactions.open.explicit:
        raise InvalidTransactionState(f"{what} can only be used in transaction blocks", sqlstate="25P01")
    return transactions.open


def _index(transaction: Transaction, name: ast.Ident) -> int:
    """The latest of that name."""
    for at in reversed(range(len(transaction.savepoints))):
        if transaction.savepoints[at].name == name.value:
            return at
    raise TidemillError(f'savepoint "{name.value}" does not exist', sqlstate="3B001")


def _taken(variables: Variables, portals: Portals, t: Transaction, name: str) -> SavedState:
    return SavedState(
        name,
        t.mode,
        t.read_only,
        t.read_ts,
        {shard: tuple(updates) for shard, updates in t.writes.items()},
        t.write_bytes,
        dict(t.tables),
        frozenset(t.reads),
        variables.snapshot(),
        portals.names(),
    )


def _restore(variables: Variables, portals: Portals, t: Transaction, saved: SavedState) -> None:
    t.failed = False
    t.mode = saved.mode
    t.read_only = saved.read_only
    t.read_ts = saved.read_ts
    t.writes = {shard: list(updates) for shard, updates in saved.writes.items()}
    t.write_bytes = saved.write_bytes
    t.tables = dict(saved.tables)
    t.reads = set(saved.reads)
    t.after.clear()
    variables.restore(saved.variables)
    portals.close_new(saved.portals)
