"""Column definitions, table constraints and relation options, for CREATE TABLE and ALTER TABLE."""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import ColumnDef, ConstraintKind, Expr, Ident, TableConstraint
from tidemill.sql.parser.cursor import TokenCursor

# A DEFAULT expression ends where another column constraint starts.
_CONSTRAINT_STARTS = (
    "not",
    "null",
    "default",
    "primary",
    "unique",
    "check",
    "references",
    "generated",
    "constraint",
    "collate",
)
_TABLE_CONSTRAINT_STARTS = ("constraint", "primary", "unique", "check", "foreign", "exclude", "like")
_REFUSED = {
    "check": "CHECK",
    "references": "REFERENCES",
    "foreign": "FOREIGN KEY",
    "exclude": "EXCLUDE",
    "like": "LIKE in CREATE TABLE",
    "generated": "GENERATED",
    "collate": "COLLATE in a column definition",
    "compression": "COMPRESSION",
    "deferrable": "DEFERRABLE",
    "include": "INCLUDE",
    "initially": "INITIALLY",
    "nulls": "UNIQUE NULLS [NOT] DISTINCT",
    "storage": "STORAGE",
    "using": "USING",
}
_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_HINTS = {
    "generated": "Compute the column in a view, or give its values yourself.",
    "like": "Use CREATE TABLE ... AS SELECT ... WITH NO DATA.",
}


def column_def(cursor: TokenCursor) -> ColumnDef:
    """name type [constraints], up to a comma, a closing parenthesis or the end."""
    name = cursor.ident()
    type_offset = cursor.offset
    type_text = cursor.type_text()
    if type_text == "interval" and cursor.peek_any(*_FIELDS):
        raise cursor.unsupported(
            "an interval of certain fields", hint="Use interval: values keep all fields."
        )
    not_null: bool | None = None
    primary_key = unique = False
    default = None
    while not cursor.at_end and not cursor.peek_symbol(",") and not cursor.peek_symbol(")"):
        if cursor.accept("constraint"):
            cursor.ident()
        if cursor.peek_words("not", "deferrable"):
            raise cursor.unsupported("NOT DEFERRABLE")
        if cursor.peek_words("not", "null") or cursor.peek_words("null"):
            said = cursor.accept("not")
            if not_null is not None and not_null != said:
                raise cursor.error()
            cursor.expect("null")
            not_null = said
        elif cursor.peek_words("default") and default is None:
            cursor.expect("default")
            default = default_expression(cursor, ",", *_CONSTRAINT_STARTS)
        elif cursor.accept("primary", "key"):
            primary_key = True
        elif cursor.accept("unique"):
            unique = True
        elif cursor.peek_any(*_REFUSED):
            raise _refused(cursor)
        else:
            raise cursor.error()
    return ColumnDef(name, type_text, type_offset, bool(not_null), default, primary_key, unique)


def default_expression(cursor: TokenCursor, *stops: str) -> Expr:
    """The expression of DEFAULT, without outer parentheses: they only delimit constraint words."""
    found = cursor.expression(*stops)
    tree = found.tree
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return Expr(tree.pop() if tree.parent else tree, found.offset)


def table_elements(cursor: TokenCursor) -> tuple[tuple[ColumnDef, ...], tuple[TableConstraint, ...]]:
    """( column or constraint, ... )"""
    cursor.expect_symbol("(")
    columns: list[ColumnDef] = []
    constraints: list[TableConstraint] = []
    if cursor.accept_symbol(")"):
        return (), ()
    while True:
        if cursor.peek_any(*_TABLE_CONSTRAINT_STARTS):
            constraints.append(_table_constraint(cursor))
        else:
            columns.append(column_def(cursor))
        if cursor.accept_symbol(")"):
            return tuple(columns), tuple(constraints)
        cursor.expect_symbol(",")


def _table_constraint(cursor: TokenCursor) -> TableConstraint:
    name: Ident | None = cursor.ident() if cursor.accept("constraint") else None
    kind = None
    if cursor.accept("primary", "key"):
        kind = ConstraintKind.PRIMARY_KEY
    elif cursor.accept("unique"):
        kind = ConstraintKind.UNIQUE
    columns = cursor.idents_in_parentheses() if kind is not None and cursor.peek_symbol("(") else ()
    if cursor.peek_any(*_REFUSED):
        raise _refused(cursor)
    if kind is None or not columns:
        raise cursor.error()
    return TableConstraint(kind, columns, name)


def _refused(cursor: TokenCursor) -> Unsupported:
    word = cursor.token.value
    return cursor.unsupported(_REFUSED[word], hint=_HINTS.get(word))


def retain_history(cursor: TokenCursor) -> str | None:
    """[WITH (RETAIN HISTORY [=] FOR '...')]: the interval's text."""
    if not cursor.peek_words("with") or not cursor.peek_symbol("(", 1):
        return None
    cursor.expect("with")
    return retain_history_option(cursor)


def view_options(cursor: TokenCursor) -> tuple[str | None, bool]:
    """[WITH (RETAIN HISTORY [=] [FOR] '...', INCREMENTAL [=] 'required')], in any order."""
    history: str | None = None
    incremental = False
    if not cursor.accept("with"):
        return history, incremental
    cursor.expect_symbol("(")
    while True:
        offset = cursor.offset
        if cursor.accept("retain", "history"):
            again = history is not None
            cursor.accept_symbol("=")
            cursor.accept("for")
            history = cursor.string()
        elif cursor.accept("incremental"):
            again = incremental
            cursor.accept_symbol("=")
            value = cursor.offset
            if cursor.string() != "required":
                raise SyntaxError_("INCREMENTAL can only be 'required'", position=value + 1)
            incremental = True
        elif cursor.token.value:
            raise cursor.unsupported(f"option {cursor.token.value.upper()}", hint=_VIEW_OPTIONS)
        else:
            raise cursor.error()
        if again:
            raise SyntaxError_("an option was specified more than once", position=offset + 1)
        if cursor.accept_symbol(")"):
            return history, incremental
        cursor.expect_symbol(",")


_VIEW_OPTIONS = "The options are RETAIN HISTORY FOR '...' and INCREMENTAL = 'required'."


def retain_history_option(cursor: TokenCursor) -> str:
    """( RETAIN HISTORY [=] [FOR] '...' )"""
    cursor.expect_symbol("(")
    if not cursor.accept("retain", "history"):
        if cursor.token.value:
            raise cursor.unsupported(
                f"option {cursor.token.value.upper()}", hint="The option is RETAIN HISTORY FOR '...'."
            )
        raise cursor.error()
    cursor.accept_symbol("=")
    cursor.accept("for")
    duration = cursor.string()
    cursor.expect_symbol(")")
    return duration
