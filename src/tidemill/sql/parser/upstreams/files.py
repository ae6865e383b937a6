"""FROM FILES: a folder of files."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.sql.ast.base import offset_field
from tidemill.sql.ast.sources import Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.tokens import TokenKind

_MATCHING = "Write MATCHING '*.csv': a pattern of the names below the folder."
_COMPRESSION = "Write COMPRESSION AUTO (by the names' ends), NONE, GZIP or ZSTD."


@dataclass(frozen=True, slots=True)
class Files(Upstream):
    """FROM FILES 'path' [MATCHING 'glob'] [COMPRESSION c]: the files of a folder."""

    path: str
    matching: str | None = None
    compression: str | None = None  # upper case
    offset: int = offset_field()

    def to_sql(self) -> str:
        return f"FILES {quote_literal(self.path)}{chosen_sql(self.matching, self.compression)}"


def chosen_sql(matching: str | None, compression: str | None) -> str:
    glob = "" if matching is None else f" MATCHING {quote_literal(matching)}"
    return f"{glob}{'' if compression is None else f' COMPRESSION {compression}'}"


def parse_files(cursor: TokenCursor) -> Files:
    """After FILES: 'path' [MATCHING 'glob'] [COMPRESSION c]."""
    offset = cursor.offset
    path = cursor.string()
    return Files(path, matching(cursor), compression(cursor), offset)


def matching(cursor: TokenCursor) -> str | None:
    return cursor.string(_MATCHING) if cursor.accept("matching") else None


def compression(cursor: TokenCursor) -> str | None:
    """The planner checks which."""
    if not cursor.accept("compression"):
        return None
    cursor.accept_symbol("=")
    if cursor.token.kind is TokenKind.STRING:
        return cursor.string(_COMPRESSION).upper()
    if cursor.token.kind is not TokenKind.WORD:
        raise cursor.error(_COMPRESSION)
    return cursor.word().upper()
