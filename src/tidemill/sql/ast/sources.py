"""Statements that make and change sources. A kind of upstream is one more dataclass in `Upstream`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.sql.ast.base import Ident, Name, Statement, offset_field
from tidemill.sql.ast.tables import SetRetainHistory

OptionValue: TypeAlias = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Option:
    """NAME [=] value. Whole numbers and true or false are such; everything else is text; None where no value
    was given."""

    name: str  # upper case, one blank between its words
    value: OptionValue
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class LoadGenerator:
    """FROM LOAD GENERATOR kind [(options)]."""

    kind: str  # upper case, one blank between its words; which there are is not the parser's to know
    options: tuple[Option, ...] = ()
    offset: int = offset_field()


Upstream: TypeAlias = LoadGenerator


@dataclass(frozen=True, slots=True)
class SourceOutput:
    """An output of the upstream and the name that its subsource gets (None: the same)."""

    output: Name
    alias: Name | None = None


@dataclass(frozen=True, slots=True)
class ForTables:
    """FOR TABLES (a AS b, ...), or FOR ALL TABLES where `tables` is None."""

    tables: tuple[SourceOutput, ...] | None


@dataclass(frozen=True, slots=True)
class Include:
    """INCLUDE what [AS alias]: a column of the message's metadata."""

    what: str  # KEY, PARTITION, OFFSET, TIMESTAMP or HEADERS
    alias: Ident | None = None
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class CreateSource(Statement):
    """CREATE SOURCE [IF NOT EXISTS] name [(columns)] [IN CLUSTER c] FROM upstream [FOR ...] [INCLUDE ...]
    [ENVELOPE ...] [EXPOSE PROGRESS AS p] [WITH (...)]."""

    name: Name
    upstream: Upstream
    columns: tuple[Ident, ...] = ()  # new names for all of its columns
    if_not_exists: bool = False
    cluster: Ident | None = None  # read and not used: there is one
    tables: ForTables | None = None
    include: tuple[Include, ...] = ()
    envelope: str | None = None  # NONE or UPSERT; None = not said
    progress: Name | None = None
    retain_history: str | None = None  # an interval, as text; None = the default
    interval: str | None = None  # TIMESTAMP INTERVAL, likewise


@dataclass(frozen=True, slots=True)
class CreateTableFromSource(Statement):
    """CREATE TABLE [IF NOT EXISTS] name [(columns)] FROM SOURCE source (REFERENCE output)."""

    name: Name
    source: Name
    reference: Name
    columns: tuple[Ident, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetTimestampInterval:
    """SET (TIMESTAMP INTERVAL '...'), or RESET (TIMESTAMP INTERVAL) where `duration` is None."""

    duration: str | None


SourceAction: TypeAlias = SetRetainHistory | SetTimestampInterval


@dataclass(frozen=True, slots=True)
class AlterSource(Statement):
    """ALTER SOURCE [IF EXISTS] name SET (...) or RESET (...): one action per option, all of one kind."""

    name: Name
    actions: tuple[SourceAction, ...]
    if_exists: bool = False
