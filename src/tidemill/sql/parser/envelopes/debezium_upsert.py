"""ENVELOPE DEBEZIUM UPSERT: each change gives the new row of its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.formats import Envelope
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.envelopes.none import refuse_options


@dataclass(frozen=True, slots=True)
class DebeziumUpsert(Envelope):
    """DEBEZIUM UPSERT."""

    kind: ClassVar[str] = "DEBEZIUM UPSERT"
    offset: int = offset_field()


def parse_debezium_upsert(cursor: TokenCursor, offset: int) -> DebeziumUpsert:
    refuse_options(cursor)
    return DebeziumUpsert(offset)
