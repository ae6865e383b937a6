"""FORMAT, INCLUDE, ENVELOPE and ON ERROR of a source or its table: how messages become rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from tidemill.sql.ast.base import Ident, Name, offset_field


@dataclass(frozen=True, slots=True)
class Strategy:
    """Which schema to read messages with: the registry's schema with an ID, the LATEST of the topic's
    subject, or an INLINE one.
    """

    kind: str  # ID, LATEST or INLINE
    value: int | str | None = None  # of ID the number, of INLINE the schema


@dataclass(frozen=True, slots=True)
class AvroRegistry:
    """AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c [KEY STRATEGY ...] [VALUE STRATEGY ...]."""

    registry: Name | str  # a connection, or (an older spelling) the registry's address
    key_strategy: Strategy | None = None
    value_strategy: Strategy | None = None
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """AVRO USING SCHEMA '...' [(CONFLUENT WIRE FORMAT [=] true | false)]."""

    schema: str
    framed: bool = True  # messages begin with the five-byte schema header
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class PlainFormat:
    """JSON, TEXT or BYTES, which have no options; or AVRO and PARQUET for files, which contain their
    schema."""

    name: str
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Regex:
    """REGEX '...'."""

    pattern: str
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Csv:
    """CSV WITH n COLUMNS, or WITH HEADER (names); [DELIMITED BY 'c']. Without names, they are those of the
    first file."""

    columns: int | tuple[Ident, ...]
    delimiter: str | None = None
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class ProtobufRegistry:
    """PROTOBUF USING CONFLUENT SCHEMA REGISTRY CONNECTION c."""

    registry: Name | str
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """PROTOBUF MESSAGE '.M' USING SCHEMA '...': a compiled descriptor set, in bytea text form."""

    message: str
    schema: str
    offset: int = offset_field()


Format: TypeAlias = AvroRegistry | AvroSchema | PlainFormat | Regex | Csv | ProtobufRegistry | ProtobufSchema


@dataclass(frozen=True, slots=True)
class Include:
    """INCLUDE what [AS alias], or HEADER 'key' AS alias [BYTES]: a column of the message's metadata."""

    what: str  # KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS or HEADER
    alias: Ident | None = None
    header: str | None = None  # of HEADER, the key
    raw: bool = False  # of HEADER: BYTES, the value is not text
    offset: int = offset_field()


class Envelope:
    """ENVELOPE and its options. A kind is one dataclass, beside its parser (`parser.envelopes`)."""

    __slots__ = ()
    kind: ClassVar[str]  # the words after ENVELOPE, upper case
    offset: int

    @property
    def options(self) -> Sequence[str]:
        """The text inside the parentheses after the kind."""
        return ()

    def to_sql(self) -> str:
        return f"{self.kind} ({', '.join(self.options)})" if self.options else self.kind


@dataclass(frozen=True, slots=True)
class OnError:
    """ON ERROR FAIL, or ON ERROR DEAD LETTER [INTO name]: how to handle messages that cannot be decoded."""

    dead_letter: bool
    into: Name | None = None  # the relation of dead letters; None = a generated name
    offset: int = offset_field()


@dataclass(frozen=True, slots=True)
class Messages:
    """All four clauses. FORMAT f alone is a `value` without `key`."""

    key: Format | None = None
    value: Format | None = None
    include: tuple[Include, ...] = ()
    envelope: Envelope | None = None
    on_error: OnError | None = None

    @property
    def silent(self) -> bool:
        """Whether no clause was given."""
        return self == NO_MESSAGES


NO_MESSAGES = Messages()
