"""Limits of the parser: each refused by its own error, in time, without harm to the process."""

from __future__ import annotations

import threading
import time

import pytest

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.ast import Insert, Query, Values
from tidemill.sql.names import MAX_IDENTIFIER_BYTES
from tidemill.sql.parse import MAX_STATEMENTS, MAX_TEXT_BYTES, parse
from tidemill.sql.parser.depth import MAX_NESTING, MAX_TREE_DEPTH
from tidemill.sql.render import to_sql
from tidemill.sql.tokens import MAX_TOKENS

# How one level of nesting opens and closes.
LEVELS = {
    "parentheses": ("(", ")"),
    "calls": ("f(", ")"),
    "type-like calls": ("date(", ")"),
    "casts": ("cast(", " as int)"),
    "subqueries": ("(select ", ")"),
    "case": ("case when a then ", " end"),
    "any": ("a = any(", ")"),
    "lists": ("a in (", ")"),
    "exists": ("exists (select ", ")"),
    "subscripts": ("a[", "]"),
    "not": ("not ", ""),
    "minus": ("- ", ""),
    "rows": ("row(1, ", ")"),
    "interval": ("interval(", ")"),
}


def state(text: str) -> str:
    try:
        parse(text)
    except TidemillError as error:
        return error.sqlstate
    return "ok"


@pytest.mark.parametrize("name", LEVELS)
def test_nesting_up_to_the_limit(name: str) -> None:
    opening, closing = LEVELS[name]
    answers: dict[int, str] = {}

    def run() -> None:
        for depth in (40, MAX_NESTING - 1, MAX_NESTING + 1, 20_000):
            answers[depth] = state(f"select {opening * depth}1{closing * depth}")

    # In a thread, whose stack may be smaller than the main one's.
    start = time.process_time()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert time.process_time() - start < 20
    assert answers[40] == answers[MAX_NESTING - 1] == "ok"
    assert answers[MAX_NESTING + 1] == answers[20_000] == "54001"


def test_nested_relations_and_arrays() -> None:
    deep = "select * from " + "(select * from " * 100 + "t" + ") x" * 100
    assert state(deep) == "ok"
    assert state("select " + "array[" * 8 + "1" + "]" * 8) == "ok"
    assert state("select " + "array[" * 9 + "1" + "]" * 9) == "54000"
    assert state("select array" + "[" * 100 + "1" + "]" * 100) == "ok"


@pytest.mark.parametrize("operator", ["or", "and", "+", "||", "union all select"])
def test_long_chains_have_a_limit(operator: str) -> None:
    def chain(length: int) -> str:
        return "select " + f" {operator} ".join(["a"] * length)

    fitting = parse(chain(MAX_TREE_DEPTH // 2))[0].statement
    assert isinstance(fitting, Query) and parse(to_sql(fitting))[0].statement == fitting
    assert state(chain(MAX_TREE_DEPTH * 4)) == "54001"


def test_wide_lists_have_none() -> None:
    values = ", ".join(map(str, range(20_000)))
    assert state(f"select a in ({values}), array[{values}] from t") == "ok"


def test_identifier_length() -> None:
    assert state(f"select {'a' * MAX_IDENTIFIER_BYTES}") == "ok"
    assert state(f"select {'a' * (MAX_IDENTIFIER_BYTES + 1)}") == "42622"
    # Bytes are counted, not characters.
    assert state(f'select "{"ä" * 127}"') == "ok"
    assert state(f'select "{"ä" * 128}"') == "42622"


def test_text_length() -> None:
    fitting = "select '" + "x" * (MAX_TEXT_BYTES - 9) + "'"
    assert len(fitting) == MAX_TEXT_BYTES
    assert state(fitting) == "ok"
    assert state(fitting + " ") == "54000"
    assert state("select '" + "ä" * (MAX_TEXT_BYTES // 2) + "'") == "54000"


@pytest.mark.parametrize(
    ("head", "unit", "tokens"),
    [("select 1 in (1", ",1", 2), ("select 1", "+1", 2), ("insert into t values (1)", ",(1)", 4)],
)
def test_tokens_have_a_limit(head: str, unit: str, tokens: int) -> None:
    """2 MB can be two million of them; it ends before anything is made of them."""
    text = head + unit * (MAX_TOKENS // tokens)
    assert len(text) < MAX_TEXT_BYTES
    with pytest.raises(LimitExceeded, match="too complex") as error:
        parse(text)
    assert error.value.sqlstate == "54000" and error.value.position is not None
    # Comments and blanks are none.
    assert state("select 1 " + "/**/ " * 300_000) == "ok"


def test_statement_count() -> None:
    assert len(parse("commit;" * MAX_STATEMENTS)) == MAX_STATEMENTS
    with pytest.raises(LimitExceeded, match="too many statements"):
        parse("commit;" * (MAX_STATEMENTS + 1))
    assert parse(";" * 100_000) == []


def test_a_bulk_insert_takes_seconds_not_minutes() -> None:
    rows = 30_000
    text = "insert into t values " + ",".join(f"({i}, 'row {i}', {i}.5, null)" for i in range(rows))
    start = time.process_time()
    statement = parse(text)[0].statement
    assert time.process_time() - start < 15
    assert isinstance(statement, Insert)
    assert isinstance(statement.source, Values)
    assert len(statement.source.rows) == rows


@pytest.mark.parametrize(
    "text",
    [
        "select 'a\x00b'",
        'select "a\x00b"',
        "select \x00",
        "select '\ud800'",
    ],
)
def test_nul_and_lone_surrogates_are_no_text(text: str) -> None:
    assert state(text) == "22021"


@pytest.mark.parametrize("opening", ["'", '"', "E'", "$$", "$tag$", "/*", "/* /* */", "U&'", "b'", "x'"])
def test_what_is_not_closed(opening: str) -> None:
    start = time.process_time()
    assert state("select " + opening + "x " * 500_000) == "42601"
    assert time.process_time() - start < 5
