"""The text tests' own format: what is read is written back, and what is wrong is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.wire import Answer, Answers, Failure

from .runner import Mismatch, Runner
from .slt import Block, FormatError, format_rows, parse, render

SAMPLE = """# A title.

statement ok
CREATE TABLE t (
  a int
)

query rowsort
SELECT a FROM t
----
a
1

statement error
SELECT nope
----
42703: column "nope" does not exist

query extended ["1", null]
SELECT $1, $2
----
a | b
1 | NULL

let t1
SELECT mz_now()

connection other user=mz_system

mask [0-9]+ ms => N ms
"""


class Scripted:
    """A connection that answers from a list and remembers what it was asked."""

    def __init__(self, *answers: Answers) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, object]] = []

    def run(self, sql: str, params: object = None) -> Answers:
        self.asked.append((sql, params))
        return self.answers.pop(0)

    def close(self) -> None: ...


def rows(names: list[str], *values: list[str | None]) -> Answers:
    return Answers([Answer(f"SELECT {len(values)}", names, list(values))], None, [])


def runner(*answers: Answers) -> tuple[Runner, Scripted]:
    scripted = Scripted(*answers)
    return Runner(lambda _role: scripted), scripted  # pyright: ignore[reportArgumentType, reportReturnType]


def test_render_gives_back_what_parse_read() -> None:
    blocks = parse(SAMPLE)
    assert render(blocks) == SAMPLE
    kinds = [b.kind for b in blocks if isinstance(b, Block)]
    assert kinds == ["statement ok", "query", "statement error", "query", "let", "connection", "mask"]


def test_every_case_is_in_the_format() -> None:
    cases = sorted((Path(__file__).parent / "cases").glob("**/*.slt"))
    assert cases
    for path in cases:
        assert render(parse(path.read_text())) == path.read_text(), path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("statement maybe\nSELECT 1\n", "line 1: expected ok or error"),
        ("\nquery\n", "line 2: no SQL"),
        ("explode\n", "line 1: unknown directive"),
        ("query extended [1]\nSELECT 1\n", "not a JSON array of strings"),
        ("sleep 5\nSELECT 1\n", "takes no lines"),
        ("mask x\n", "expected mask REGEX => TEXT"),
        ("let\nSELECT 1\n", "wrong number of arguments"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse(text)


def test_rows_are_aligned_and_null_is_no_text() -> None:
    assert format_rows(["a", "long"], [["x\ny", None], ["", "NULLs"]], rowsort=False) == [
        "a       | long",
        r"x\ny    | NULL",
        "(empty) | NULLs",
    ]


@given(st.lists(st.lists(st.none() | st.text(max_size=8), min_size=2, max_size=2), max_size=5))
def test_a_result_never_ends_its_block(values: list[list[str | None]]) -> None:
    lines = format_rows(["a", "b"], values, rowsort=True)
    assert len(lines) == len(values) + 1
    assert all(line.strip() and "\n" not in line for line in lines)
    text = "\n".join(["query rowsort", "SELECT 1", "----", *lines, "", "sleep 1"]) + "\n"
    assert [b.expected for b in parse(text) if isinstance(b, Block)] == [lines, None]


def test_variables_go_into_statements_and_out_of_results() -> None:
    run, scripted = runner(rows(["t"], ["17000"]), rows(["a"], ["at 17000"]))
    blocks = parse("let t1\nSELECT mz_now()\n\nquery\nSELECT ${t1}\n----\nold\n")
    got = run.run(blocks)
    assert scripted.asked[1][0] == "SELECT 17000"
    assert render(got).endswith("----\na\nat ${t1}\n")


def test_an_error_where_none_is_expected_fails_at_once() -> None:
    failure = Answers([], Failure("42601", "syntax error", None, "a hint", "1"), ["NOTICE: x"])
    run, _ = runner(failure)
    with pytest.raises(Mismatch, match="line 1"):
        run.run(parse("statement ok\nSELEC\n"))
    run, _ = runner(failure)
    got = run.run(parse("statement error\nSELEC\n"))
    assert render(got) == "statement error\nSELEC\n----\nNOTICE: x\n42601: syntax error\nHINT: a hint\n"


def test_success_where_an_error_is_expected_fails() -> None:
    run, _ = runner(rows(["a"]))
    with pytest.raises(Mismatch):
        run.run(parse("statement error\nSELECT 1\n"))
