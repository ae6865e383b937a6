"""ENVELOPE DEBEZIUM: each change retracts the old row and adds the new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemill.errors import Unsupported
from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.formats import Envelope
from tidemill.sql.parser.cursor import TokenCursor


@dataclass(frozen=True, slots=True)
class Debezium(Envelope):
    """DEBEZIUM."""

    kind: ClassVar[str] = "DEBEZIUM"
    offset: int = offset_field()


def parse_debezium(cursor: TokenCursor, offset: int) -> Debezium:
    if cursor.peek_symbol("("):
        position = cursor.offset + 1
        cursor.expect_symbol("(")
        if cursor.accept("transaction", "metadata"):
            raise Unsupported(
                "ENVELOPE DEBEZIUM (TRANSACTION METADATA ...) is not supported yet",
                hint="Write ENVELOPE DEBEZIUM: each table is then consistent by itself.",
                position=position,
            )
        raise cursor.error("ENVELOPE DEBEZIUM has no options.")
    return Debezium(offset)
