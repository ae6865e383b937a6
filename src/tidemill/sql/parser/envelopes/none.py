"""ENVELOPE NONE: each message is a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.formats import Envelope
from tidemill.sql.parser.cursor import TokenCursor

_NO_PARENTHESES = "Only ENVELOPE UPSERT takes ORDER BY and VALUE DECODING ERRORS, in parentheses."


@dataclass(frozen=True, slots=True)
class NoEnvelope(Envelope):
    """NONE."""

    kind: ClassVar[str] = "NONE"
    offset: int = offset_field()


def parse_none(cursor: TokenCursor, offset: int) -> NoEnvelope:
    refuse_options(cursor)
    return NoEnvelope(offset)


def refuse_options(cursor: TokenCursor) -> None:
    """Raises for options of an envelope that has none."""
    if cursor.peek_symbol("("):
        raise cursor.error(_NO_PARENTHESES)
