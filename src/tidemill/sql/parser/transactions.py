"""BEGIN, COMMIT, ROLLBACK, savepoints, SET TRANSACTION."""

from __future__ import annotations

from dataclasses import replace

from tidemill.sql.ast import (
    Begin,
    Commit,
    ReleaseSavepoint,
    Rollback,
    RollbackTo,
    Savepoint,
    SetTransaction,
    Statement,
    TransactionModes,
)
from tidemill.sql.parser.cursor import TokenCursor

_LEVELS = (
    ("strict", "serializable"),
    ("serializable",),
    ("repeatable", "read"),
    ("read", "committed"),
    ("read", "uncommitted"),
)


def begin(cursor: TokenCursor) -> Statement:
    """After BEGIN."""
    _transaction_word(cursor)
    return Begin(_modes(cursor, needed=False))


def start_transaction(cursor: TokenCursor) -> Statement:
    """After START."""
    cursor.expect("transaction")
    return Begin(_modes(cursor, needed=False), start=True)


def commit(cursor: TokenCursor) -> Statement:
    """After COMMIT or END."""
    if cursor.peek_any("prepared"):
        raise cursor.unsupported("COMMIT PREPARED")
    return Commit(_chained(cursor))


def rollback(cursor: TokenCursor) -> Statement:
    """After ROLLBACK or ABORT."""
    if cursor.peek_any("prepared"):
        raise cursor.unsupported("ROLLBACK PREPARED")
    chain = _chained(cursor)
    if not chain and cursor.accept("to"):
        cursor.accept("savepoint")
        return RollbackTo(cursor.ident())
    return Rollback(chain)


def savepoint(cursor: TokenCursor) -> Statement:
    """After SAVEPOINT."""
    return Savepoint(cursor.ident())


def release(cursor: TokenCursor) -> Statement:
    """After RELEASE."""
    cursor.accept("savepoint")
    return ReleaseSavepoint(cursor.ident())


def set_transaction(cursor: TokenCursor, session: bool) -> Statement:
    """After SET TRANSACTION, or SET SESSION CHARACTERISTICS AS TRANSACTION."""
    if cursor.peek_any("snapshot"):
        raise cursor.unsupported("SET TRANSACTION SNAPSHOT")
    return SetTransaction(_modes(cursor, needed=True), session)


def _transaction_word(cursor: TokenCursor) -> None:
    if not cursor.accept("transaction"):
        cursor.accept("work")


def _chained(cursor: TokenCursor) -> bool:
    """[WORK | TRANSACTION] [AND [NO] CHAIN]"""
    _transaction_word(cursor)
    if not cursor.accept("and"):
        return False
    chain = not cursor.accept("no")
    cursor.expect("chain")
    return chain


def _modes(cursor: TokenCursor, needed: bool) -> TransactionModes:
    modes = TransactionModes()
    if cursor.at_end and not needed:
        return modes
    while True:
        modes = _mode(cursor, modes)
        # The comma between modes may be left out.
        if not cursor.accept_symbol(",") and cursor.at_end:
            return modes


def _mode(cursor: TokenCursor, modes: TransactionModes) -> TransactionModes:
    if cursor.accept("isolation", "level"):
        for words in _LEVELS:
            if cursor.accept(*words):
                return replace(modes, isolation=" ".join(words))
        raise cursor.error()
    if cursor.accept("read", "only"):
        return replace(modes, read_only=True)
    if cursor.accept("read", "write"):
        return replace(modes, read_only=False)
    if cursor.accept("deferrable") or cursor.accept("not", "deferrable"):
        return modes  # of no consequence: nothing waits for a safe snapshot
    raise cursor.error()
