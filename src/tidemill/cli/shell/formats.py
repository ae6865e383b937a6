"""The choice of the format class from the display settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Rows
from tidemill.cli.shell.format_aligned import Aligned
from tidemill.cli.shell.format_data import CsvFormat, Json, Markdown, Unaligned
from tidemill.cli.shell.format_records import PlainRecords, Records


class Format(Protocol):
    """The text of one result. `rows` is called at least once, with an empty list if there are no rows; the
    first call returns the header. `footer` is empty if no footer is wanted."""

    def rows(self, rows: Rows) -> Iterator[str]: ...

    def end(self, footer: str) -> Iterator[str]: ...


_DATA = {"csv": CsvFormat, "json": Json, "markdown": Markdown}


def chosen(
    columns: Sequence[ColumnLook], look: DisplaySettings, first: Rows, screen_width: int | None
) -> Format:
    """The format for these columns. The first rows decide whether a table fits the screen (`\\x auto`);
    without a screen everything fits."""
    if look.format in _DATA:
        return _DATA[look.format](columns, look)
    expanded = look.expanded == "on"
    if look.format == "unaligned":
        return PlainRecords(columns, look) if expanded else Unaligned(columns, look)
    if look.expanded == "auto" and screen_width is not None:
        expanded = Aligned(columns, look).total_width(first) > screen_width
    return Records(columns, look) if expanded else Aligned(columns, look)
