"""CREATE SOURCE, CREATE TABLE ... FROM SOURCE, ALTER SOURCE: what is the same for every kind of upstream."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import SyntaxError_, Unsupported
from tidemill.sql.ast import (
    AlterSource,
    CreateSource,
    CreateTableFromSource,
    ForTables,
    Ident,
    Include,
    Name,
    SetRetainHistory,
    SetTimestampInterval,
    SourceAction,
    SourceOutput,
    Statement,
)
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.parser.upstreams import upstream
from tidemill.sql.tokens import Kind

_INCLUDES = ("key", "partition", "offset", "timestamp", "headers")
_ENVELOPES = ("none", "upsert")
_ENVELOPES_NOT_YET = ("debezium", "materialize")
_OPTIONS_HINT = "The options are RETAIN HISTORY FOR '...' and TIMESTAMP INTERVAL '...'."


def create_source(cursor: Cursor) -> Statement:
    """After CREATE SOURCE."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    columns = cursor.idents_in_parentheses() if cursor.peek_symbol("(") else ()
    cluster = cursor.ident() if cursor.accept("in", "cluster") else None
    cursor.expect("from")
    read = upstream(cursor)
    tables = for_tables(cursor)
    include = includes(cursor)
    said = envelope(cursor)
    progress = cursor.name() if cursor.accept("expose", "progress", "as") else None
    history = interval = None
    if cursor.peek_words("with"):
        cursor.expect("with")
        history, interval = _with_options(cursor)
    return CreateSource(
        name, read, columns, if_not_exists, cluster, tables, include, said, progress, history, interval
    )


def create_table_from_source(
    cursor: Cursor, name: Name, columns: Sequence[Ident], if_not_exists: bool
) -> Statement:
    """After CREATE TABLE name [(columns)] FROM."""
    cursor.expect("source")
    source = cursor.name()
    cursor.expect_symbol("(")
    cursor.expect("reference")
    cursor.accept_symbol("=")
    reference = cursor.name()
    cursor.expect_symbol(")")
    if cursor.peek_any("format", "key", "include", "envelope", "with"):
        raise cursor.unsupported(f"CREATE TABLE ... FROM SOURCE ... {cursor.token.value.upper()}")
    return CreateTableFromSource(name, source, reference, tuple(columns), if_not_exists)


def for_tables(cursor: Cursor) -> ForTables | None:
    """[FOR ALL TABLES | FOR TABLES (output [AS name], ...)]"""
    if not cursor.accept("for"):
        return None
    if cursor.accept("all", "tables"):
        return ForTables(None)
    if cursor.peek_any("schemas"):
        raise cursor.unsupported("FOR SCHEMAS", hint="Use FOR ALL TABLES or FOR TABLES (...).")
    cursor.expect("tables")
    cursor.expect_symbol("(")
    found = [_output(cursor)]
    while cursor.accept_symbol(","):
        found.append(_output(cursor))
    cursor.expect_symbol(")")
    return ForTables(tuple(found))


def _output(cursor: Cursor) -> SourceOutput:
    output = cursor.name()
    return SourceOutput(output, cursor.name() if cursor.accept("as") else None)


def includes(cursor: Cursor) -> tuple[Include, ...]:
    """[INCLUDE what [AS name], ...]"""
    if not cursor.accept("include"):
        return ()
    found = [_include(cursor)]
    while cursor.accept_symbol(","):
        found.append(_include(cursor))
    return tuple(found)


def _include(cursor: Cursor) -> Include:
    offset = cursor.offset
    for what in _INCLUDES:
        if cursor.accept(what):
            return Include(what.upper(), cursor.ident() if cursor.accept("as") else None, offset)
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    raise cursor.unsupported(
        f"INCLUDE {cursor.token.value.upper()}",
        hint="What can be included is KEY, PARTITION, OFFSET, TIMESTAMP and HEADERS.",
    )


def envelope(cursor: Cursor) -> str | None:
    """[ENVELOPE NONE | UPSERT]"""
    if not cursor.accept("envelope"):
        return None
    for word in _ENVELOPES:
        if cursor.accept(word):
            return word.upper()
    if cursor.peek_any(*_ENVELOPES_NOT_YET):
        raise Unsupported(
            f"ENVELOPE {cursor.token.value.upper()} is not supported yet",
            hint="Use ENVELOPE NONE or ENVELOPE UPSERT.",
            position=cursor.offset + 1,
        )
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    raise SyntaxError_(
        f"unknown envelope: {cursor.token.value.upper()}",
        hint="Use ENVELOPE NONE or ENVELOPE UPSERT.",
        position=cursor.offset + 1,
    )


def _with_options(cursor: Cursor) -> tuple[str | None, str | None]:
    """(RETAIN HISTORY FOR '...', TIMESTAMP INTERVAL '...'), each at most once, in any order."""
    history = interval = None
    for action in _source_options(cursor, values=True):
        if isinstance(action, SetRetainHistory):
            history = action.duration
        else:
            interval = action.duration
    return history, interval


def _source_options(cursor: Cursor, *, values: bool) -> tuple[SourceAction, ...]:
    """The options in parentheses, with their values or (RESET) only their names."""
    cursor.expect_symbol("(")
    found: list[SourceAction] = []
    while True:
        offset = cursor.offset
        action = _source_option(cursor, values=values)
        if any(isinstance(action, type(other)) for other in found):
            raise SyntaxError_("an option was specified more than once", position=offset + 1)
        found.append(action)
        if cursor.accept_symbol(")"):
            return tuple(found)
        cursor.expect_symbol(",")


def _source_option(cursor: Cursor, *, values: bool) -> SourceAction:
    if cursor.accept("retain", "history"):
        if not values:
            return SetRetainHistory(None)
        cursor.accept_symbol("=")
        cursor.accept("for")
        return SetRetainHistory(cursor.string())
    if cursor.accept("timestamp", "interval"):
        if not values:
            return SetTimestampInterval(None)
        cursor.accept_symbol("=")
        return SetTimestampInterval(cursor.string())
    if cursor.token.kind is not Kind.WORD:
        raise cursor.error()
    raise cursor.unsupported(f"option {cursor.token.value.upper()}", hint=_OPTIONS_HINT)


def alter_source(cursor: Cursor, name: Name, if_exists: bool) -> Statement:
    """After ALTER SOURCE [IF EXISTS] name, where no RENAME follows."""
    if cursor.peek_symbol("(", 1):
        if cursor.accept("set"):
            return AlterSource(name, _source_options(cursor, values=True), if_exists)
        if cursor.accept("reset"):
            return AlterSource(name, _source_options(cursor, values=False), if_exists)
    if cursor.peek_any("set", "reset", "owner", "add", "drop"):
        raise cursor.unsupported(f"ALTER SOURCE ... {cursor.token.value.upper()}")
    raise cursor.error()
