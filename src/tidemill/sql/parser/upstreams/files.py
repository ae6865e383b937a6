"""FROM FILES: a folder of files. Each file appears complete and never changes."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.sources import Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor


@dataclass(frozen=True, slots=True)
class Files(Upstream):
    """FROM FILES 'path': the files of a folder."""

    path: str
    offset: int = offset_field()

    def to_sql(self) -> str:
        return f"FILES {quote_literal(self.path)}"


def parse_files(cursor: TokenCursor) -> Files:
    """After FILES: 'path'."""
    offset = cursor.offset
    return Files(cursor.string(), offset)
