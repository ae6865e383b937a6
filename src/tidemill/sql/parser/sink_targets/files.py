"""INTO FILES: files in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.sinks import SinkTarget
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor


@dataclass(frozen=True, slots=True)
class IntoFiles(SinkTarget):
    """INTO FILES 'path'."""

    WRITTEN: ClassVar[str] = "FILES '...'"
    path: str
    offset: int = offset_field()

    def to_sql(self) -> str:
        return f"FILES {quote_literal(self.path)}"


def parse_into_files(cursor: TokenCursor, offset: int) -> IntoFiles:
    return IntoFiles(cursor.string(), offset)
