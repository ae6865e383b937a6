"""DROP, ALTER of relations, schemas and databases, and COMMENT ON."""

from __future__ import annotations

from tidemill.sql.ast import (
    AddColumn,
    AlterMaterializedView,
    AlterTable,
    CommentOn,
    Drop,
    Ident,
    Name,
    ObjectKind,
    Rename,
    RenameColumn,
    ResetSubscription,
    SetDefault,
    SetNotNull,
    SetRetainHistory,
    Statement,
    TableAction,
)
from tidemill.sql.parser.columns import column_def, default_expression, retain_history_option
from tidemill.sql.parser.connections import alter_connection, alter_secret
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.query import query_to_end
from tidemill.sql.parser.roles import alter_owner
from tidemill.sql.parser.sources import alter_source

_MAX_PARTS = {
    ObjectKind.TABLE: 3,
    ObjectKind.VIEW: 3,
    ObjectKind.MATERIALIZED_VIEW: 3,
    ObjectKind.SCHEMA: 2,
    ObjectKind.DATABASE: 1,
    ObjectKind.SOURCE: 3,
    ObjectKind.SINK: 3,
    ObjectKind.SUBSCRIPTION: 3,
    ObjectKind.CONNECTION: 3,
    ObjectKind.SECRET: 3,
}


def drop(cursor: TokenCursor, kind: ObjectKind) -> Statement:
    """After DROP kind."""
    if_exists = cursor.accept_if_exists()
    names = [cursor.name(_MAX_PARTS[kind])]
    while cursor.accept_symbol(","):
        names.append(cursor.name(_MAX_PARTS[kind]))
    if kind is ObjectKind.DATABASE and (cursor.peek_any("with") or cursor.peek_symbol("(")):
        raise cursor.unsupported("an option of DROP DATABASE")
    cascade = cursor.accept("cascade")
    if not cascade:
        cursor.accept("restrict")
    return Drop(kind, tuple(names), if_exists, cascade)


def alter(cursor: TokenCursor, kind: ObjectKind) -> Statement:
    """After ALTER kind."""
    if_exists = cursor.accept_if_exists()
    if kind is ObjectKind.TABLE:
        cursor.accept("only")
    name = cursor.name(_MAX_PARTS[kind])
    if cursor.accept("rename", "to"):
        return Rename(kind, name, cursor.ident(), if_exists)
    if (owner := alter_owner(cursor, kind, name, if_exists)) is not None:
        return owner
    if kind is ObjectKind.SOURCE:
        return alter_source(cursor, name, if_exists)
    if kind is ObjectKind.CONNECTION:
        return alter_connection(cursor, name, if_exists)
    if kind is ObjectKind.SECRET:
        return alter_secret(cursor, name, if_exists)
    if kind is ObjectKind.SUBSCRIPTION and cursor.accept("reset"):
        return ResetSubscription(name, if_exists)
    if kind is ObjectKind.MATERIALIZED_VIEW and cursor.accept("as"):
        return AlterMaterializedView(name, query_to_end(cursor, allow_as_of=False), if_exists)
    if kind is ObjectKind.MATERIALIZED_VIEW and (history := _history_action(cursor)) is not None:
        return AlterMaterializedView(name, history, if_exists)
    if kind is not ObjectKind.TABLE:
        if cursor.peek_words("rename", "column"):
            raise cursor.unsupported(
                f"ALTER {kind.value} ... RENAME COLUMN", hint="Make another view that names it as you like."
            )
        if cursor.peek_any("owner", "set", "alter", "reset"):
            raise cursor.unsupported(f"ALTER {kind.value} ... {cursor.token.value.upper()}")
        raise cursor.error()
    action = _table_action(cursor)
    if cursor.peek_symbol(","):
        raise cursor.unsupported("several actions in one ALTER TABLE", hint="Write one ALTER TABLE for each.")
    return AlterTable(name, action, if_exists)


def _table_action(cursor: TokenCursor) -> TableAction:
    if cursor.accept("add"):
        if cursor.peek_any("constraint", "primary", "unique", "check", "foreign", "exclude"):
            raise cursor.unsupported(
                "ALTER TABLE ... ADD CONSTRAINT", hint="Declare keys when the table is created."
            )
        cursor.accept("column")
        return AddColumn(if_not_exists=cursor.accept_if_not_exists(), column=column_def(cursor))
    if cursor.accept("alter"):
        cursor.accept("column")
        return _column_action(cursor)
    if cursor.accept("rename"):
        if cursor.peek_any("constraint"):
            raise cursor.unsupported("ALTER TABLE ... RENAME CONSTRAINT")
        cursor.accept("column")
        column = cursor.ident()
        cursor.expect("to")
        return RenameColumn(column, cursor.ident())
    if (history := _history_action(cursor)) is not None:
        return history
    if cursor.peek_words("drop", "constraint"):
        raise cursor.unsupported("ALTER TABLE ... DROP CONSTRAINT")
    if cursor.peek_any("drop"):
        raise cursor.unsupported(
            "ALTER TABLE ... DROP COLUMN", hint="Make a view of the columns that are wanted."
        )
    if cursor.peek_any(
        "set", "owner", "enable", "disable", "cluster", "inherit", "attach", "detach", "validate", "replica"
    ):
        raise cursor.unsupported(f"ALTER TABLE ... {cursor.token.value.upper()}")
    raise cursor.error()


def _history_action(cursor: TokenCursor) -> SetRetainHistory | None:
    """SET (RETAIN HISTORY FOR '...') or RESET (RETAIN HISTORY); None, without moving, for anything else."""
    if cursor.peek_words("set") and cursor.peek_symbol("(", 1):
        cursor.expect("set")
        return SetRetainHistory(retain_history_option(cursor))
    if cursor.peek_words("reset") and cursor.peek_symbol("(", 1):
        cursor.expect("reset")
        cursor.expect_symbol("(")
        if not cursor.peek_words("retain", "history") and cursor.token.value:
            raise cursor.unsupported(
                f"option {cursor.token.value.upper()}", hint="The option is RETAIN HISTORY."
            )
        cursor.expect("retain", "history")
        cursor.expect_symbol(")")
        return SetRetainHistory(None)
    return None


def _column_action(cursor: TokenCursor) -> TableAction:
    column = cursor.ident()
    if cursor.accept("set", "default"):
        return SetDefault(column, default_expression(cursor, ","))
    if cursor.accept("drop", "default"):
        return SetDefault(column, None)
    if cursor.accept("set", "not", "null"):
        return SetNotNull(column, True)
    if cursor.accept("drop", "not", "null"):
        return SetNotNull(column, False)
    if cursor.peek_any("type") or cursor.peek_words("set", "data", "type"):
        raise cursor.unsupported("ALTER COLUMN ... TYPE")
    if cursor.peek_any("set", "drop", "add", "reset", "restart"):
        raise cursor.unsupported(f"ALTER COLUMN ... {cursor.token.value.upper()}")
    raise cursor.error()


def comment_on(cursor: TokenCursor) -> Statement:
    """After COMMENT."""
    cursor.expect("on")
    column = None
    kind: ObjectKind | None = None
    if cursor.accept("role"):
        name = cursor.name(max_parts=1)
    elif cursor.accept("column"):
        kind = ObjectKind.TABLE
        full = cursor.name(max_parts=4)
        if len(full.parts) < 2:
            raise cursor.error()
        # The last part is the column; its own place is not kept apart from the name's.
        name = Name(full.parts[:-1], full.offset)
        column = Ident(full.parts[-1], full.offset)
    else:
        kind = _comment_kind(cursor)
        name = cursor.name(_MAX_PARTS[kind])
    cursor.expect("is")
    text = None if cursor.accept("null") else cursor.string()
    return CommentOn(kind, name, text, column)


def _comment_kind(cursor: TokenCursor) -> ObjectKind:
    for kind in ObjectKind:
        if cursor.accept(*kind.value.lower().split()):
            return kind
    if cursor.at_end:
        raise cursor.error()
    raise cursor.unsupported(f"COMMENT ON {cursor.token.value.upper()}")
