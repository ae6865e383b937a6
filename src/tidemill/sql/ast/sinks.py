"""CREATE SINK. A kind of target is one more dataclass in `Target`, an envelope one more word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.sql.ast.base import Ident, Name, Statement, offset_field


@dataclass(frozen=True, slots=True)
class IntoKafka:
    """INTO KAFKA CONNECTION k (TOPIC 't' [, PARTITION COUNT n, REPLICATION FACTOR n])."""

    connection: Name
    topic: str | None = None
    partition_count: int | None = None  # of a topic that is made; None: what the broker does
    replication_factor: int | None = None  # likewise
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class IntoFiles:
    """INTO FILES 'path'."""

    path: str
    offset: int = offset_field()


Target: TypeAlias = IntoKafka | IntoFiles


@dataclass(frozen=True, slots=True)
class SinkFormat:
    """FORMAT JSON, or FORMAT AVRO [USING CONFLUENT SCHEMA REGISTRY CONNECTION c]."""

    kind: str  # AVRO or JSON
    registry: Name | None = None
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Share:
    """SHARE number OF writers: a writer of some, each of which writes the updates that fall to it."""

    number: int
    writers: int


@dataclass(frozen=True, slots=True)
class CreateSink(Statement):
    """CREATE SINK [IF NOT EXISTS] name [IN CLUSTER c] FROM relation INTO target FORMAT f ENVELOPE e
    [WITH (...)]."""

    name: Name
    relation: Name
    target: Target
    format: SinkFormat
    envelope: str = "MATERIALIZE"
    if_not_exists: bool = False
    cluster: Ident | None = None  # read and not used: there is one
    snapshot: bool = True
    as_of: int | None = None
    share: Share | None = None
    join: bool = False
