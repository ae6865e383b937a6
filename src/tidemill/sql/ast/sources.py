"""Statements that create and alter sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

from tidemill.errors import Internal
from tidemill.sql.ast.base import Ident, Name, Statement, offset_field
from tidemill.sql.ast.formats import NO_MESSAGES, Messages
from tidemill.sql.ast.tables import SetRetainHistory

OptionValue: TypeAlias = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """NAME [=] value. Integers and booleans have their Python type; any other value is text; None without a
    value.
    """

    name: str  # upper case, one blank between its words
    value: OptionValue
    offset: int = offset_field()


class Upstream(ABC):
    """The upstream of a source's FROM. A kind is one dataclass, beside its parser (`parser.upstreams`)."""

    __slots__ = ()
    offset: int

    @abstractmethod
    def to_sql(self) -> str:
        """The text after FROM."""

    def through(self, connection: Name) -> Upstream:
        """The same upstream with its connection under this name. For kinds that have a connection."""
        raise Internal(f"{type(self).__name__} has no connection")

    def choosing(self, choice: ColumnChoice) -> Upstream:
        """The same upstream with these columns as text or left out, where it has such options."""
        return self


@dataclass(frozen=True, slots=True)
class SourceOutput:
    """An output of the upstream and the name of its subsource (None: the same)."""

    output: Name
    alias: Name | None = None


@dataclass(frozen=True, slots=True)
class ForTables:
    """FOR TABLES (a AS b, ...), or FOR SCHEMAS (a, ...), or FOR ALL TABLES where both are None."""

    tables: tuple[SourceOutput, ...] | None
    schemas: tuple[Ident, ...] | None = None


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """TEXT COLUMNS (a, ...) and EXCLUDE COLUMNS (b, ...): columns that are kept as text, and left out."""

    text: tuple[Name, ...] = ()
    exclude: tuple[Name, ...] = ()

    def to_sql(self) -> str:
        """The options in their parentheses; nothing if there are none."""
        clauses = (("TEXT COLUMNS", self.text), ("EXCLUDE COLUMNS", self.exclude))
        return ", ".join(f"{words} ({', '.join(map(str, names))})" for words, names in clauses if names)


NO_CHOICE = ColumnChoice()


@dataclass(frozen=True, slots=True)
class CreateSource(Statement):
    """CREATE SOURCE [IF NOT EXISTS] name [(columns)] [IN CLUSTER c] FROM upstream [FOR ...] [FORMAT ...]
    [INCLUDE ...] [ENVELOPE ...] [ON ERROR ...] [EXPOSE PROGRESS AS p] [WITH (...)]."""

    name: Name
    upstream: Upstream
    columns: tuple[Ident, ...] = ()  # new names for all of its columns
    if_not_exists: bool = False
    cluster: Ident | None = None  # parsed and ignored: only one cluster exists
    tables: ForTables | None = None
    messages: Messages = NO_MESSAGES
    progress: Name | None = None
    retain_history: str | None = None  # an interval, as text; None = the default
    interval: str | None = None  # TIMESTAMP INTERVAL, likewise
    validate: bool = True  # whether the statement checks the upstream
    timeline: str | None = None  # the timeline of the rows' times; None = the default one


@dataclass(frozen=True, slots=True)
class CreateTableFromSource(Statement):
    """CREATE TABLE [IF NOT EXISTS] name [(columns)] FROM SOURCE source (REFERENCE output) [FORMAT ...]
    [INCLUDE ...] [ENVELOPE ...] [WITH (TEXT COLUMNS (a, ...), EXCLUDE COLUMNS (b, ...))]."""

    name: Name
    source: Name
    reference: Name
    columns: tuple[Ident, ...] = ()
    if_not_exists: bool = False
    messages: Messages = NO_MESSAGES
    choice: ColumnChoice = NO_CHOICE


@dataclass(frozen=True, slots=True)
class SetTimestampInterval:
    """SET (TIMESTAMP INTERVAL '...'), or RESET (TIMESTAMP INTERVAL) where `duration` is None."""

    duration: str | None


@dataclass(frozen=True, slots=True)
class GiveUpTransaction:
    """SET (GIVE UP TRANSACTION 'id'): what came of it is shown, and nothing more of it is waited for."""

    transaction: str


# Also of CREATE SOURCE ... WITH (...).
SourceOption: TypeAlias = SetRetainHistory | SetTimestampInterval
SourceAction: TypeAlias = SourceOption | GiveUpTransaction


@dataclass(frozen=True, slots=True)
class AlterSource(Statement):
    """ALTER SOURCE [IF EXISTS] name SET (...) or RESET (...): one action per option, all of one kind."""

    name: Name
    actions: tuple[SourceAction, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddSubsources(Statement):
    """ALTER SOURCE [IF EXISTS] name ADD SUBSOURCE output [AS name], ... [WITH (TEXT COLUMNS (a, ...))]."""

    name: Name
    outputs: tuple[SourceOutput, ...]
    choice: ColumnChoice = NO_CHOICE
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropSubsources(Statement):
    """ALTER SOURCE [IF EXISTS] name DROP SUBSOURCE [IF EXISTS] names [CASCADE | RESTRICT]."""

    name: Name
    subsources: tuple[Name, ...]
    if_exists: bool = False  # of the source
    if_subsource_exists: bool = False
    cascade: bool = False
