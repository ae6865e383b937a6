"""Statements that make and change sources. A kind of upstream is one more dataclass in `Upstream`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.sql.ast.base import Ident, Name, Statement, offset_field
from tidemill.sql.ast.formats import NO_MESSAGES, Messages
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


@dataclass(frozen=True, slots=True)
class Kafka:
    """FROM KAFKA CONNECTION k (TOPIC 't', ...), or (an older spelling) FROM KAFKA BROKER 'h:p' TOPIC 't'."""

    connection: Name | None = None
    brokers: tuple[str, ...] = ()  # of the older spelling
    topic: str | None = None
    start_offset: tuple[int, ...] | None = None  # by partition
    start_timestamp: int | None = None  # in milliseconds; before now where it is negative
    group_id_prefix: str | None = None
    refresh_interval: str | None = None  # TOPIC METADATA REFRESH INTERVAL, as text
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Files:
    """FROM FILES 'path': the files of a folder."""

    path: str
    offset: int = offset_field()


Upstream: TypeAlias = LoadGenerator | Kafka | Files


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
class CreateSource(Statement):
    """CREATE SOURCE [IF NOT EXISTS] name [(columns)] [IN CLUSTER c] FROM upstream [FOR ...] [FORMAT ...]
    [INCLUDE ...] [ENVELOPE ...] [EXPOSE PROGRESS AS p] [WITH (...)]."""

    name: Name
    upstream: Upstream
    columns: tuple[Ident, ...] = ()  # new names for all of its columns
    if_not_exists: bool = False
    cluster: Ident | None = None  # read and not used: there is one
    tables: ForTables | None = None
    messages: Messages = NO_MESSAGES
    progress: Name | None = None
    retain_history: str | None = None  # an interval, as text; None = the default
    interval: str | None = None  # TIMESTAMP INTERVAL, likewise
    validate: bool = True  # whether the upstream is asked if all is well
    timeline: str | None = None  # whose times the rows have; None = ours


@dataclass(frozen=True, slots=True)
class CreateTableFromSource(Statement):
    """CREATE TABLE [IF NOT EXISTS] name [(columns)] FROM SOURCE source (REFERENCE output) [FORMAT ...]
    [INCLUDE ...] [ENVELOPE ...]."""

    name: Name
    source: Name
    reference: Name
    columns: tuple[Ident, ...] = ()
    if_not_exists: bool = False
    messages: Messages = NO_MESSAGES


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
