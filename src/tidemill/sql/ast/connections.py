"""Statements that create and alter secrets and connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.sql.ast.base import Name, Statement, offset_field


@dataclass(frozen=True, slots=True)
class CreateSecret(Statement):
    """CREATE SECRET [IF NOT EXISTS] name AS '...'."""

    name: Name
    value: str = field(repr=False)  # never in a log or a trace
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterSecret(Statement):
    """ALTER SECRET [IF EXISTS] name AS '...'."""

    name: Name
    value: str = field(repr=False)
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SecretName:
    """SECRET name, in place of a value."""

    name: Name


# The name of an option with several texts ends in S; one text is written without it.
ConnectionValue: TypeAlias = str | int | tuple[str, ...] | SecretName


@dataclass(frozen=True, slots=True)
class ConnectionOption:
    """NAME [=] value. BROKER 'x' is BROKERS of one address."""

    name: str  # upper case, one blank between its words
    value: ConnectionValue = field(repr=False)
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class CreateConnection(Statement):
    """CREATE CONNECTION [IF NOT EXISTS] name TO kind (options) [WITH (VALIDATE = false)]."""

    name: Name
    kind: str  # its words, in lower case and with hyphens: `confluent-schema-registry`
    options: tuple[ConnectionOption, ...]
    if_not_exists: bool = False
    validate: bool = True


@dataclass(frozen=True, slots=True)
class AlterConnection(Statement):
    """ALTER CONNECTION [IF EXISTS] name {SET (options) | RESET (names)}, ... [WITH (VALIDATE = false)]."""

    name: Name
    changed: tuple[ConnectionOption, ...] = ()
    reset: tuple[str, ...] = ()  # names of options
    if_exists: bool = False
    validate: bool = True
