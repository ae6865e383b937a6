"""The screen of `tidemill watch`: rows, marks on rows that changed lately, and the freshness.

Also used by the demo. Everything is computed from a live table and a memory of its last changes. The clock is
a parameter.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.client import Changes, LiveTable

# How long a row stays marked.
MARK_SECONDS = 1.0
# More marks than rows of any screen are useless; those of a snapshot of millions must not be kept.
MOST_MARKS = 10_000
# A longer text would push the other columns off the screen.
MOST_CHARACTERS = 60
_STYLES = {"inserted": "green", "updated": "yellow"}

Key = tuple[Any, ...]


class ChangeMarks:
    """The rows that changed lately. Written by the following thread, read by the drawing one."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._lock = threading.Lock()
        self._marks: dict[Key, tuple[str, float]] = {}

    def changed(self, changes: Changes, now: float) -> None:
        found: dict[Key, tuple[str, float]] = {}
        for style, frame in (("inserted", changes.inserted), ("updated", changes.updated)):
            for row in frame.arrow.slice(0, MOST_MARKS).to_pylist():
                found[self.key(row)] = (_STYLES[style], now + MARK_SECONDS)
        with self._lock:
            kept = {key: mark for key, mark in self._marks.items() if mark[1] > now}
            self._marks = dict([*kept.items(), *found.items()][-MOST_MARKS:])

    def style(self, row: dict[str, Any], now: float) -> str:
        with self._lock:
            style, until = self._marks.get(self.key(row), ("", 0.0))
        return style if until > now else ""

    def key(self, row: dict[str, Any]) -> Key:
        """The identity of a row; without a key all its values."""
        return tuple(repr(row[name]) for name in self._key or row)


class Order:
    """The order of rows on the screen: `--order-by`, else the key, else the columns in their order."""

    def __init__(self, key: Sequence[str], order_by: Sequence[str] = ()) -> None:
        self._items = [_item(text) for text in order_by] or [(name, "ascending") for name in key]
        # The last table, limit and result: a screen is drawn more often than a large table changes.
        self._last: tuple[pa.Table, int, list[dict[str, Any]]] | None = None

    def first(self, table: pa.Table, limit: int) -> list[dict[str, Any]]:
        """The first rows. Columns of unordered types are not sorted."""
        if self._last is None or self._last[0] is not table or self._last[1] != limit:
            self._last = table, limit, self._sorted(table).slice(0, limit).to_pylist()
        return self._last[2]

    def _sorted(self, table: pa.Table) -> pa.Table:
        items = self._items or [(name, "ascending") for name in table.column_names]
        known = set(table.column_names)
        keys = [(name, way) for name, way in items if name in known and _ordered(table.column(name).type)]
        return table.sort_by(keys) if keys and table.num_rows else table

    def unknown(self, columns: Sequence[str]) -> str | None:
        """The first order column that does not exist."""
        return next((name for name, _ in self._items if name not in columns), None)


def _item(text: str) -> tuple[str, str]:
    name, _, way = text.strip().rpartition(" ")
    if name and way.lower() in ("asc", "desc"):
        return name.strip(), "descending" if way.lower() == "desc" else "ascending"
    return text.strip(), "ascending"


def _ordered(t: pa.DataType) -> bool:
    return not (pa.types.is_nested(t) or pa.types.is_null(t))


def rows_table(
    columns: Sequence[str], rows: Sequence[dict[str, Any]], marks: ChangeMarks, now: float, types: pa.Schema
) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        kind = types.field(name).type
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        style = marks.style(row, now)
        table.add_row(*(cell(row[name]) for name in columns), style=style)
    return table


def cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    text = value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)
    shown = " ".join(text.split("\n"))
    return Text(shown if len(shown) <= MOST_CHARACTERS else f"{shown[: MOST_CHARACTERS - 1]}…")


def status(live: LiveTable, notice: str = "") -> Text:
    """The number of rows, their time, and a problem if there is one."""
    if live.time is None:
        return Text(notice or "waiting for the first rows", style="dim")
    text = Text(f"{len(live):,} rows at {clock(live.time)} UTC, lag {live.lag or 0.0:.1f} s")
    trouble = live.trouble
    if trouble is not None:
        text.append(f"; trying to reconnect: {trouble.detail or trouble.primary}", style="red")
    return text


def screen(
    title: str, live: LiveTable, order: Order, marks: ChangeMarks, *, limit: int, now: float, notice: str = ""
) -> Panel:
    table = live.arrow
    body: list[Table | Text] = []
    if live.time is not None:
        rows = order.first(table, limit)
        body.append(rows_table(table.column_names, rows, marks, now, table.schema))
        if table.num_rows > len(rows):
            body.append(Text(f"... {table.num_rows - len(rows):,} more", style="dim"))
    body.append(status(live, notice))
    return Panel(Group(*body), title=Text(" ".join(title.split())), title_align="left", expand=False)


def clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
