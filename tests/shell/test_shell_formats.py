"""Rows to text, and back."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli.shell.cells import lines, width
from tidemill.cli.shell.display_settings import ColumnLook, DisplaySettings, Row, all_options, set_option
from tidemill.cli.shell.format_data import unique
from tidemill.cli.shell.formats import chosen
from tidemill.errors import TidemillError

INT, TEXT, BOOL, NUMERIC, JSONB, FLOAT = 23, 25, 16, 1700, 3802, 701
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
values = st.one_of(
    st.none(), texts, st.sampled_from(["", "a|b", 'say "x"', "two\nlines", "\r\n", "\\.", " ", "*_`"])
)


@st.composite
def results(draw: st.DrawFn) -> tuple[list[ColumnLook], list[Row]]:
    names = draw(st.lists(texts, min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*[values] * len(names)), max_size=6))
    return [ColumnLook(name, TEXT) for name in names], rows


def drawn(columns: Sequence[ColumnLook], rows: Sequence[Row], blocks: int = 1, **look: object) -> str:
    """As one text; the rows come in so many blocks."""
    form = chosen(columns, DisplaySettings(**look), rows, None)  # pyright: ignore[reportArgumentType]
    size = max(1, -(-len(rows) // blocks))
    parts = [rows[i : i + size] for i in range(0, len(rows), size)] or [[]]
    text = "".join(piece for part in parts for piece in form.rows(part))
    return text + "".join(form.end(f"({len(rows)} rows)"))


@given(results(), st.integers(1, 3))
def test_csv_parses_back(result: tuple[list[ColumnLook], list[Row]], blocks: int) -> None:
    columns, rows = result
    text = drawn(columns, rows, blocks, format="csv")
    head, *body = csv.reader(io.StringIO(text, newline=""), strict=True)
    assert head == [c.name for c in columns]
    # A line without anything is one value that is nothing; Python's reader takes it for no value.
    assert [row or [""] for row in body] == [[v or "" for v in row] for row in rows]


def test_csv_tells_null_from_nothing() -> None:
    assert drawn([ColumnLook("a", TEXT), ColumnLook("b", TEXT)], [(None, "")], format="csv") == 'a,b\n,""\n'


@given(results(), st.integers(1, 3))
def test_json_parses_back(result: tuple[list[ColumnLook], list[Row]], blocks: int) -> None:
    columns, rows = result
    found = [json.loads(line) for line in drawn(columns, rows, blocks, format="json").split("\n")[:-1]]
    keys = unique([c.name for c in columns])
    assert len(set(keys)) == len(keys)
    assert found == [dict(zip(keys, row, strict=True)) for row in rows]


def test_json_has_literals_for_what_it_can() -> None:
    columns = [
        ColumnLook("i", INT),
        ColumnLook("n", NUMERIC),
        ColumnLook("f", FLOAT),
        ColumnLook("b", BOOL),
        ColumnLook("j", JSONB),
    ]
    text = drawn(columns, [("9007199254740993", "1.50", "NaN", "t", '{"a": [1,\n2]}')], format="json")
    assert text == '{"i": 9007199254740993, "n": 1.50, "f": "NaN", "b": true, "j": {"a": [1, 2]}}\n'
    assert unique(["a", "a", "a_2", "a"]) == ["a", "a_3", "a_2", "a_4"]


@given(results())
def test_markdown_has_its_columns_and_one_line_a_row(result: tuple[list[ColumnLook], list[Row]]) -> None:
    columns, rows = result
    text = drawn(columns, rows, format="markdown")
    found = text.split("\n")[:-2]
    assert len(found) == len(rows) + 2
    for line in found:
        # The bars that no backslash stands before: an even number of them does not count.
        bars = re.findall(r"(?<!\\)(?:\\\\)*\|", line)
        assert len(bars) == len(columns) + 1, line


def test_markdown() -> None:
    columns = [ColumnLook("id", INT), ColumnLook("a|b", TEXT)]
    assert drawn(columns, [("1", "x*\n<i>"), ("2", None)], format="markdown") == (
        "| id | a\\|b |\n| ---: | --- |\n| 1 | x\\*<br>\\<i\\> |\n| 2 | NULL |\n\n"
    )


@given(results(), st.sampled_from([0, 1, 2]), st.sampled_from(["ascii", "unicode"]))
def test_every_line_of_a_framed_table_is_as_wide_as_the_others(
    result: tuple[list[ColumnLook], list[Row]], border: int, linestyle: str
) -> None:
    columns, rows = result
    text = drawn(columns, rows, border=border, linestyle=linestyle)
    body = text.split("\n")[:-3]
    if border == 2:
        assert len({width(line) for line in body}) == 1
    assert "\x1b" not in text and "\r" not in text
    assert drawn(columns, rows, expanded="on", linestyle=linestyle)


def test_columns_grow_where_a_later_block_needs_it() -> None:
    rows: list[Row] = [("1", "a"), ("2", "b"), ("3", "a long one"), ("4", "c")]
    assert drawn([ColumnLook("id", INT), ColumnLook("t", TEXT)], rows, 2, border=2) == (
        "+----+---+\n| id | t |\n+----+---+\n|  1 | a |\n|  2 | b |\n"
        "|  3 | a long one |\n|  4 | c          |\n+----+------------+\n(4 rows)\n\n"
    )


def test_a_value_cannot_steer_the_terminal() -> None:
    assert lines("\x1b[31mred\x07\r\x9b\u202e") == ["\\x1B[31mred\\x07\\r\\u009B\\u202E"]
    assert lines("a\tb\nc") == ["a       b", "c"]
    assert [width("日本"), width("é"), width("abc")] == [4, 1, 3]


def test_expanded_automatically_where_a_table_does_not_fit() -> None:
    columns, rows = [ColumnLook("a", TEXT), ColumnLook("b", TEXT)], [("x" * 50, "y" * 50)]
    look = DisplaySettings(expanded="auto")
    assert "RECORD 1" in "".join(chosen(columns, look, rows, 80).rows(rows))
    assert "RECORD 1" not in "".join(chosen(columns, look, rows, 120).rows(rows))
    assert "RECORD 1" not in "".join(chosen(columns, look, rows, None).rows(rows))


def test_options() -> None:
    look = DisplaySettings()
    assert set_option(look, "format", "mark") == "Output format is markdown."
    assert set_option(look, "x", None) == "Expanded display is on."
    assert set_option(look, "expanded", "auto") == "Expanded display is used automatically."
    assert set_option(look, "t", None) == "Tuples only is on."
    assert set_option(look, "null", "-") == 'Null display is "-".'
    assert set_option(look, "border", "2") == "Border style is 2."
    assert len(all_options(look)) == 10
    for name, value in [
        ("format", "html"),
        ("border", "3"),
        ("no", "1"),
        ("footer", "perhaps"),
        ("format", ""),
    ]:
        with pytest.raises(TidemillError):
            set_option(look, name, value)
