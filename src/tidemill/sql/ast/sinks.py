"""CREATE SINK."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tidemill.errors import Internal
from tidemill.sql.ast.base import Ident, Name, Statement, offset_field


class SinkTarget(ABC):
    """The target of a sink's INTO. A kind is one dataclass, beside its parser (`parser.sink_targets`)."""

    __slots__ = ()
    offset: int

    @abstractmethod
    def to_sql(self) -> str:
        """The text after INTO."""

    def through(self, connection: Name) -> SinkTarget:
        """The same target with its connection under this name. For kinds that have a connection."""
        raise Internal(f"{type(self).__name__} has no connection")


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """FORMAT JSON, or FORMAT AVRO [USING CONFLUENT SCHEMA REGISTRY CONNECTION c]."""

    kind: str  # AVRO or JSON
    registry: Name | None = None
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Share:
    """SHARE number OF writers: one of several writers, each of which writes its share of the updates."""

    number: int
    writers: int


@dataclass(frozen=True, slots=True)
class SinkKey:
    """KEY (column, ...) [NOT ENFORCED]."""

    columns: tuple[Ident, ...]
    not_enforced: bool = False
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class CreateSink(Statement):
    """CREATE SINK [IF NOT EXISTS] name [IN CLUSTER c] FROM relation INTO target [KEY (...)] FORMAT f
    ENVELOPE e [WITH (...)]."""

    name: Name
    relation: Name
    target: SinkTarget
    format: SinkFormat
    envelope: str = "MATERIALIZE"
    if_not_exists: bool = False
    cluster: Ident | None = None  # parsed and ignored: only one cluster exists
    snapshot: bool = True
    as_of: int | None = None
    share: Share | None = None
    join: bool = False
    key: SinkKey | None = None
