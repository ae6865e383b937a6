"""Durable subscriptions: CREATE and ALTER SUBSCRIPTION, FETCH ... FROM SUBSCRIPTION, ACKNOWLEDGE."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.sql.ast.base import Expr, Ident, Name, Query, Statement
from tidemill.sql.ast.subscribe import EnvelopeDebezium, EnvelopeUpsert


@dataclass(frozen=True, slots=True)
class CreateSubscription(Statement):
    """CREATE SUBSCRIPTION [IF NOT EXISTS] name FOR relation | (query) [ENVELOPE ...] [WITH (...)]."""

    name: Name
    relation: Name | Query  # a query has no AS OF of its own
    envelope: EnvelopeUpsert | EnvelopeDebezium | None = None
    if_not_exists: bool = False
    snapshot: bool = True
    retain: str | None = None  # an interval, as text; None = the default
    retain_size: str | None = None  # a number of bytes with a unit, as text; None = the default
    shares: int = 1
    share_key: tuple[Ident, ...] = ()  # whose values decide which share has a row; () = the key of ENVELOPE


@dataclass(frozen=True, slots=True)
class ResetSubscription(Statement):
    """ALTER SUBSCRIPTION [IF EXISTS] name RESET."""

    name: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class FetchSubscription(Statement):
    """FETCH [count] FROM SUBSCRIPTION name [WITH (TIMEOUT = '...', POSITION = p, SHARE = i)]."""

    name: Name
    count: int | None = 1  # None = ALL
    timeout: str | None = None  # an interval, as text
    position: Expr | None = None  # a number or a parameter
    share: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSubscription(Statement):
    """A FETCH without end. It has no form in SQL: the HTTP server reads so."""

    name: Name
    position: Expr | None = None
    share: int | None = None


@dataclass(frozen=True, slots=True)
class Acknowledge(Statement):
    """ACKNOWLEDGE SUBSCRIPTION name [SHARE i] [TO position]."""

    name: Name
    position: Expr | None = None  # a number or a parameter; None = all that the session has fetched
    share: int | None = None
