"""Dispatch from the first words of a statement to the parser of its family.

`parse` calls `statement` with a cursor on the first token. `statement` leaves the cursor at the end of the
statement or raises an error. A new family of statements is one file and one line in a table here.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.sql.ast import ObjectKind, Statement
from tidemill.sql.parser import (
    alter,
    compatibility,
    connections,
    copy,
    create,
    cursors,
    explain,
    prepared,
    roles,
    settings,
    show,
    sinks,
    sources,
    subscribe,
    subscriptions,
    transactions,
    writes,
)
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import at_query, query_alone, with_before_insert
from tidemill.sql.parser.refused import refuse_object, refuse_statement

Parser = Callable[[TokenCursor], Statement]


def statement(cursor: TokenCursor) -> Statement:
    """The statement that the cursor's tokens form, all of them."""
    if at_query(cursor):
        ctes = with_before_insert(cursor)
        if ctes is None:
            return query_alone(cursor)
        parsed = writes.insert(cursor, ctes)
        cursor.expect_end()
        return parsed
    parser = _STATEMENTS.get(cursor.token.value) if cursor.peek_any(*_STATEMENTS) else None
    if parser is None:
        raise refuse_statement(cursor)
    cursor.advance()
    parsed = parser(cursor)
    cursor.expect_end()
    return parsed


def _create(cursor: TokenCursor) -> Statement:
    if cursor.accept("or", "replace"):
        if cursor.accept("view"):
            return create.create_view(cursor, or_replace=True)
        if cursor.accept("materialized"):
            return create.create_materialized_view(cursor, or_replace=True)
        raise refuse_object(cursor, "CREATE OR REPLACE")
    for word, parser in _CREATE.items():
        if cursor.accept(word):
            return parser(cursor)
    done = compatibility.no_op(cursor, "CREATE")
    if done is None:
        raise refuse_object(cursor, "CREATE")
    return done


def _drop(cursor: TokenCursor) -> Statement:
    for kind in ObjectKind:
        if cursor.accept(*kind.value.lower().split()):
            return alter.drop(cursor, kind)
    for word, parser in roles.DROP.items():
        if cursor.accept(word):
            return parser(cursor)
    done = compatibility.no_op(cursor, "DROP") or compatibility.drop_absent(cursor)
    if done is None:
        raise refuse_object(cursor, "DROP")
    return done


def _alter(cursor: TokenCursor) -> Statement:
    if cursor.accept("system"):
        return settings.alter_system(cursor)
    for kind in ObjectKind:
        if cursor.accept(*kind.value.lower().split()):
            return alter.alter(cursor, kind)
    for word, parser in roles.ALTER.items():
        if cursor.accept(word):
            return parser(cursor)
    done = compatibility.no_op(cursor, "ALTER")
    if done is None:
        raise refuse_object(cursor, "ALTER")
    return done


def _prepare(cursor: TokenCursor) -> Statement:
    return prepared.prepare(cursor, statement)


_CREATE: dict[str, Parser] = {
    "table": create.create_table,
    "view": create.create_view,
    "materialized": create.create_materialized_view,
    "schema": create.create_schema,
    "database": create.create_database,
    "source": sources.create_source,
    "sink": sinks.create_sink,
    "subscription": subscriptions.create_subscription,
    "connection": connections.create_connection,
    "secret": connections.create_secret,
    **roles.CREATE,
}
_STATEMENTS: dict[str, Parser] = {
    "abort": transactions.rollback,
    "acknowledge": subscriptions.acknowledge,
    "alter": _alter,
    "analyse": compatibility.analyze,
    "analyze": compatibility.analyze,
    "begin": transactions.begin,
    "checkpoint": compatibility.checkpoint,
    "close": cursors.close,
    "comment": alter.comment_on,
    "commit": transactions.commit,
    "copy": copy.copy,
    "create": _create,
    "deallocate": prepared.deallocate,
    "declare": cursors.declare,
    "delete": writes.delete,
    "discard": settings.discard,
    "drop": _drop,
    "end": transactions.commit,
    "execute": prepared.execute,
    "explain": explain.explain,
    "fetch": cursors.fetch,
    "move": cursors.move,
    "grant": roles.grant,
    "insert": writes.insert,
    "prepare": _prepare,
    "reassign": roles.reassign,
    "refresh": compatibility.refresh,
    "reindex": compatibility.reindex,
    "reset": settings.reset,
    "release": transactions.release,
    "revoke": roles.revoke,
    "rollback": transactions.rollback,
    "savepoint": transactions.savepoint,
    "set": settings.set_,
    "show": show.show,
    "start": transactions.start_transaction,
    "subscribe": subscribe.subscribe,
    "truncate": writes.truncate,
    "unlisten": compatibility.unlisten,
    "update": writes.update,
    "vacuum": compatibility.vacuum,
}
