"""TEXT COLUMNS (...) and EXCLUDE COLUMNS (...), as sources and their tables have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.sql.ast import ColumnChoice, Name
from tidemill.sql.parser.cursor import TokenCursor

_WRITE = "Write names of columns in parentheses, with their tables where the statement names several: (t.a)."


def _names(cursor: TokenCursor) -> tuple[Name, ...]:
    cursor.expect_symbol("(", _WRITE)
    found = cursor.names()
    cursor.expect_symbol(")", _WRITE)
    return found


# By the words of the options.
COLUMN_OPTIONS: dict[tuple[str, ...], Callable[[TokenCursor], tuple[Name, ...]]] = {
    ("text", "columns"): _names,
    ("exclude", "columns"): _names,
}


def column_choice(found: Mapping[str, Any]) -> ColumnChoice:
    """From the options by their names, as `named_options.accept_fields` gives them."""
    return ColumnChoice(found.get("text_columns", ()), found.get("exclude_columns", ()))
