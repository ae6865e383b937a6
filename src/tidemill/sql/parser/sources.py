"""CREATE SOURCE, CREATE TABLE ... FROM SOURCE, ALTER SOURCE: the syntax common to all kinds of upstream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.ast import (
    NO_CHOICE,
    AddSubsources,
    AlterSource,
    ColumnChoice,
    CreateSource,
    CreateTableFromSource,
    DropSubsources,
    ForTables,
    GiveUpTransaction,
    Ident,
    Name,
    SetRetainHistory,
    SetTimestampInterval,
    SourceAction,
    SourceOption,
    SourceOutput,
    Statement,
)
from tidemill.sql.parser.column_choice import COLUMN_OPTIONS, column_choice
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.formats import end_of_clauses, messages
from tidemill.sql.parser.named_options import accept_fields, boolean, nearest
from tidemill.sql.parser.upstreams import upstream
from tidemill.sql.tokens import TokenKind

T = TypeVar("T")

_FROM_SOURCE = (
    "Write CREATE TABLE name FROM SOURCE source (REFERENCE which), with a table of the source, or its topic."
)
NAMES_ALONE = "Write names alone: types come from the upstream. They name the first columns."
_WITH = "Write WITH (option, ...)."
_ORDER = (
    "Behind FROM ... stand, in this order: FORMAT, INCLUDE, ENVELOPE and ON ERROR (in any order), EXPOSE "
    "PROGRESS AS name, WITH (option, ...)."
)
_TABLE_ORDER = (
    "Behind (REFERENCE ...) stand FORMAT, INCLUDE, ENVELOPE and ON ERROR (in any order), WITH (...)."
)
_OPTIONS = "RETAIN HISTORY FOR '...' and TIMESTAMP INTERVAL '...'"
_ALTERED = "RETAIN HISTORY FOR '...', TIMESTAMP INTERVAL '...' and GIVE UP TRANSACTION '...'"


def create_source(cursor: TokenCursor) -> Statement:
    """After CREATE SOURCE."""
    if_not_exists = cursor.accept_if_not_exists()
    name = cursor.name()
    columns = cursor.idents_in_parentheses(NAMES_ALONE) if cursor.peek_symbol("(") else ()
    cluster = cursor.ident() if cursor.accept("in", "cluster") else None
    cursor.expect("from", hint="Write CREATE SOURCE name FROM ..., such as FROM KAFKA CONNECTION.")
    read = upstream(cursor)
    tables = for_tables(cursor)
    said = messages(cursor)
    progress = None
    if cursor.accept("expose"):
        cursor.expect("progress", "as", hint="Write EXPOSE PROGRESS AS name.")
        progress = cursor.name()
    options = _with_options(cursor)
    end_of_clauses(cursor, _ORDER)
    return CreateSource(name, read, columns, if_not_exists, cluster, tables, said, progress, *options)


def create_table_from_source(
    cursor: TokenCursor, name: Name, columns: Sequence[Ident], if_not_exists: bool
) -> Statement:
    """After CREATE TABLE name [(columns)] FROM."""
    cursor.expect("source", hint=_FROM_SOURCE)
    source = cursor.name()
    cursor.expect_symbol("(", _FROM_SOURCE)
    cursor.expect("reference", hint=_FROM_SOURCE)
    cursor.accept_symbol("=")
    if cursor.token.kind is TokenKind.STRING:
        raise cursor.error("It is a name: write it in double quotes, or in none.")
    reference = cursor.name()
    cursor.expect_symbol(")", _FROM_SOURCE)
    said = messages(cursor)
    choice = table_options(cursor)
    end_of_clauses(cursor, _TABLE_ORDER)
    return CreateTableFromSource(name, source, reference, tuple(columns), if_not_exists, said, choice)


def table_options(cursor: TokenCursor) -> ColumnChoice:
    """[WITH (TEXT COLUMNS (a, ...), EXCLUDE COLUMNS (b, ...))]"""
    if not cursor.accept("with"):
        return NO_CHOICE
    return column_choice(accept_fields(cursor, COLUMN_OPTIONS, "a table of a source"))


def for_tables(cursor: TokenCursor) -> ForTables | None:
    """[FOR ALL TABLES | FOR TABLES (output [AS name], ...) | FOR SCHEMAS (name, ...)]"""
    if not cursor.accept("for"):
        return None
    if cursor.accept("all", "tables"):
        return ForTables(None)
    if cursor.accept("schemas"):
        return ForTables(None, cursor.idents_in_parentheses("Write FOR SCHEMAS (name, ...)."))
    cursor.expect("tables")
    cursor.expect_symbol("(")
    found = [_output(cursor)]
    while cursor.accept_symbol(","):
        found.append(_output(cursor))
    cursor.expect_symbol(")")
    return ForTables(tuple(found))


def _output(cursor: TokenCursor) -> SourceOutput:
    output = cursor.name()
    return SourceOutput(output, cursor.name() if cursor.accept("as") else None)


@dataclass(frozen=True, slots=True)
class _Validate:
    """VALIDATE [=] true | false."""

    value: bool


@dataclass(frozen=True, slots=True)
class _Timeline:
    """TIMELINE [=] 'name'."""

    name: str


def _with_options(cursor: TokenCursor) -> tuple[str | None, str | None, bool, str | None]:
    """[WITH (RETAIN HISTORY FOR '...', TIMESTAMP INTERVAL '...', VALIDATE = false, TIMELINE '...')], in any
    order."""
    history = interval = timeline = None
    validate = True
    for option in _options(cursor, _with_option) if cursor.accept("with") else ():
        match option:
            case SetRetainHistory():
                history = option.duration
            case SetTimestampInterval():
                interval = option.duration
            case _Validate():
                validate = option.value
            case _Timeline():
                timeline = option.name
    return history, interval, validate, timeline


def _options(cursor: TokenCursor, read: Callable[[TokenCursor], T]) -> tuple[T, ...]:
    """The options in parentheses, each at most once."""
    cursor.expect_symbol("(", _WITH)
    found: list[T] = []
    while True:
        offset = cursor.offset
        option = read(cursor)
        if any(type(option) is type(other) for other in found):
            raise SyntaxError_("an option was specified more than once", position=offset + 1)
        found.append(option)
        if cursor.accept_symbol(")"):
            return tuple(found)
        cursor.expect_symbol(",")


def _with_option(cursor: TokenCursor) -> SourceOption | _Validate | _Timeline:
    if cursor.accept("validate"):
        cursor.accept_symbol("=")
        return _Validate(boolean(cursor))
    if cursor.accept("timeline"):
        cursor.accept_symbol("=")
        return _Timeline(cursor.string())
    return _set_option(cursor, "RETAIN HISTORY FOR '...', TIMESTAMP INTERVAL '...', VALIDATE and TIMELINE")


def _set_option(cursor: TokenCursor, known: str = _OPTIONS) -> SourceOption:
    if cursor.accept("retain", "history"):
        cursor.accept_symbol("=")
        cursor.accept("for")
        return SetRetainHistory(cursor.string())
    if cursor.accept("timestamp", "interval"):
        cursor.accept_symbol("=")
        return SetTimestampInterval(cursor.string())
    raise _no_option(cursor, known)


def _add_subsources(cursor: TokenCursor, name: Name, if_exists: bool) -> Statement:
    found = [_output(cursor)]
    while cursor.accept_symbol(","):
        found.append(_output(cursor))
    return AddSubsources(name, tuple(found), table_options(cursor), if_exists)


def _drop_subsources(cursor: TokenCursor, name: Name, if_exists: bool) -> Statement:
    if_subsource_exists = cursor.accept_if_exists()
    names = cursor.names()
    cascade = cursor.accept("cascade")
    if not cascade:
        cursor.accept("restrict")
    return DropSubsources(name, names, if_exists, if_subsource_exists, cascade)


def _altered_option(cursor: TokenCursor) -> SourceAction:
    if cursor.accept("give", "up", "transaction"):
        cursor.accept_symbol("=")
        return GiveUpTransaction(cursor.string())
    return _set_option(cursor, _ALTERED)


def _reset_option(cursor: TokenCursor) -> SourceAction:
    if cursor.accept("retain", "history"):
        return SetRetainHistory(None)
    if cursor.accept("timestamp", "interval"):
        return SetTimestampInterval(None)
    raise _no_option(cursor)


def _no_option(cursor: TokenCursor, known: str = _OPTIONS) -> TidemillError:
    hint = f"The options are {known}."
    if cursor.token.kind is not TokenKind.WORD:
        return cursor.error(hint)
    name = cursor.token.value.upper()
    if cursor.following.kind is TokenKind.WORD:
        name += f" {cursor.following.value.upper()}"
    words = (_named(part) for part in known.replace(" and ", ", ").split(", "))
    return cursor.unsupported(f"option {cursor.token.value.upper()}", hint=nearest(name, words, hint))


def _named(shown: str) -> str:
    """An option without its value: RETAIN HISTORY of RETAIN HISTORY FOR '...'."""
    return shown.removesuffix(" '...'").removesuffix(" FOR")


def alter_source(cursor: TokenCursor, name: Name, if_exists: bool) -> Statement:
    """After ALTER SOURCE [IF EXISTS] name, where no RENAME follows."""
    if cursor.peek_symbol("(", 1):
        if cursor.accept("set"):
            return AlterSource(name, _options(cursor, _altered_option), if_exists)
        if cursor.accept("reset"):
            return AlterSource(name, _options(cursor, _reset_option), if_exists)
    for add in (True, False):
        for word in ("subsource", "table"):
            if cursor.accept("add" if add else "drop", word):
                changed = _add_subsources if add else _drop_subsources
                return changed(cursor, name, if_exists)
    if cursor.peek_any("set", "reset", "owner", "add", "drop"):
        raise cursor.unsupported(f"ALTER SOURCE ... {cursor.token.value.upper()}")
    raise cursor.error()
