"""What `tidemill watch` draws, and the lines that it writes where there is no terminal."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from tidemill.cli.watch import WatchOptions
from tidemill.cli.watch_screen import MOST_CHARACTERS, ChangeMarks, Order, cell, screen
from tidemill.client import LiveTable, Retry
from tidemill.client.assemble import CompleteTime
from tidemill.client.course import Course
from tidemill.client.driver import Driver
from tidemill.client.errors import ConnectionLost
from tidemill.client.forms import ClientField, held
from tidemill.client.request import request
from tidemill.errors import InvalidValue
from tidemill.types import model

FIELDS = (ClientField("mz_diff", model.INT8), ClientField("id", model.INT4), ClientField("name", model.TEXT))


def live(key: list[str]) -> tuple[LiveTable, Driver]:
    driver = Driver("")
    return LiveTable(driver, Course(request("t"), Retry()), key, None, None), driver


def complete(at: int, rows: list[tuple[int, int, str | None]], *, snapshot: bool = False) -> CompleteTime:
    diffs, ids, names = zip(*rows, strict=True)
    columns = [pa.array(diffs, pa.int64()), pa.array(ids, pa.int32()), pa.array(names, pa.string())]
    return CompleteTime(at, held(columns, FIELDS), snapshot=snapshot)


def drawn(table: LiveTable, order: Order, marks: ChangeMarks, now: float = 0.0, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(
        screen("SELECT *\nFROM t", table, order, marks, limit=more.pop("limit", 10), now=now, **more)
    )
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_rows_order_status_and_marks() -> None:
    table, driver = live(["id"])
    marks, order = ChangeMarks(["id"]), Order(["id"])
    try:
        assert "waiting for the first rows" in drawn(table, order, marks)
        assert "Spark is starting" in drawn(table, order, marks, notice="Spark is starting")
        now = int(time.time() * 1000)
        table.take(complete(now, [(1, 2, "b"), (1, 1, "[red]a[/]"), (1, 3, None)], snapshot=True), FIELDS)
        text = plain(drawn(table, order, marks))
        assert "SELECT * FROM t" in text and "3 rows at " in text and "lag " in text
        assert text.index("[red]a[/]") < text.index(" b") < text.index("NULL")
        assert "\x1b[33m" not in drawn(table, order, marks)
        marks.changed(table.take(complete(now + 1, [(-1, 2, "b"), (1, 2, "c"), (1, 4, "d")]), FIELDS), 10.0)
        fresh = drawn(table, order, marks, now=10.5)
        assert "\x1b[33m" in fresh and "\x1b[32m" in fresh
        assert "\x1b[33m" not in drawn(table, order, marks, now=11.5), "for a moment only"
        few = plain(drawn(table, order, marks, limit=2))
        assert "... 2 more" in few and " d" not in few
        driver.trouble = ConnectionLost("cut", detail="server closed the connection")
        assert "trying to reconnect: server closed" in plain(drawn(table, order, marks))
    finally:
        table.close()


def test_the_order() -> None:
    table = pa.table({"a": [2, 1, 3, 1], "b": ["x", "z", None, "y"], "l": [[1], [2], [3], [4]]})
    assert [r["a"] for r in Order([], ["a DESC"]).first(table, 2)] == [3, 2]
    assert [r["b"] for r in Order(["a", "b"]).first(table, 9)] == ["y", "z", "x", None]
    assert [r["b"] for r in Order([]).first(table, 9)] == ["y", "z", "x", None]
    assert len(Order(["l"]).first(table, 9)) == 4, "what has no order comes as it lies"
    assert Order([], ["a desc", "nr"]).unknown(table.column_names) == "nr"
    assert Order([], ["my col desc"]).unknown(["my col"]) is None


def test_without_a_key_a_row_is_what_it_has() -> None:
    table, _ = live([])
    marks = ChangeMarks([])
    try:
        table.take(complete(5, [(1, 1, "a")], snapshot=True), FIELDS)
        marks.changed(table.take(complete(6, [(1, 2, "b")]), FIELDS), 1.0)
        assert marks.style({"id": 2, "name": "b"}, 1.5) == "green"
        assert marks.style({"id": 1, "name": "a"}, 1.5) == ""
    finally:
        table.close()


def test_marks_are_few() -> None:
    table, _ = live(["id"])
    marks = ChangeMarks(["id"])
    try:
        many: list[tuple[int, int, str | None]] = [(1, n, "x") for n in range(30_000)]
        marks.changed(table.take(complete(5, many, snapshot=True), FIELDS), 1.0)
        marks.changed(table.take(complete(6, [(1, -1, "x")]), FIELDS), 1.0)
        assert marks.style({"id": -1}, 1.5) == "green"
        assert sum(marks.style({"id": n}, 1.5) != "" for n in range(30_000)) < 10_000
    finally:
        table.close()


def test_cells() -> None:
    assert cell("a\nb").plain == "a b"
    assert len(cell("x" * 1000).plain) == MOST_CHARACTERS


def test_wishes_that_cannot_be() -> None:
    with pytest.raises(InvalidValue, match="--limit must be at least 1"):
        WatchOptions("t", limit=0)
    with pytest.raises(InvalidValue, match="--interval must be at least"):
        WatchOptions("t", interval=0)
