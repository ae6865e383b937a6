"""FROM FILES: a folder of files that appear whole and never change."""

from __future__ import annotations

from tidemill.sql.ast import Files
from tidemill.sql.parser.cursor import Cursor


def files(cursor: Cursor) -> Files:
    """After FILES: 'path'."""
    offset = cursor.offset
    return Files(cursor.string(), offset)
