"""SUBSCRIBE: its relation or query, time range and output form."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from tidemill.sql.ast.base import AsOf, Expr, Ident, Name, Query, Statement, offset_field


class TimeBound(Enum):
    """A time that depends on the inputs. AS OF EARLIEST: the first at which all inputs can be read. UP TO
    LATEST: the one that all inputs have reached when the statement starts.
    """

    EARLIEST = "EARLIEST"
    LATEST = "LATEST"


@dataclass(frozen=True, slots=True)
class SubscribePlain:
    """No output clause: the rows of one time in any order."""


@dataclass(frozen=True, slots=True)
class OrderItem:
    """expression [ASC | DESC] [NULLS FIRST | LAST], with PostgreSQL's defaults filled in."""

    expression: Expr
    descending: bool = False
    nulls_first: bool = False  # by default NULL is larger than all values


@dataclass(frozen=True, slots=True)
class WithinTimestampOrderBy:
    """WITHIN TIMESTAMP ORDER BY items."""

    items: tuple[OrderItem, ...]
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class EnvelopeUpsert:
    """ENVELOPE UPSERT (KEY (columns))."""

    keys: tuple[Ident, ...]
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class EnvelopeDebezium:
    """ENVELOPE DEBEZIUM (KEY (columns))."""

    keys: tuple[Ident, ...]
    offset: int = offset_field()


SubscribeOutput: TypeAlias = SubscribePlain | WithinTimestampOrderBy | EnvelopeUpsert | EnvelopeDebezium


@dataclass(frozen=True, slots=True)
class Subscribe(Statement):
    """SUBSCRIBE [TO] relation [output] [WITH (options)] [AS OF t] [UP TO t] [output]."""

    relation: Name | Query  # a query has no AS OF of its own
    output: SubscribeOutput = SubscribePlain()
    snapshot: bool = True
    progress: bool = False
    as_of: AsOf | Literal[TimeBound.EARLIEST] | None = None
    up_to: Expr | Literal[TimeBound.LATEST] | None = None
    offset: int = offset_field()
