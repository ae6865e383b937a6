"""Lines to statements and commands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli.shell.splitter import Command, Event, ShellStatement, Splitter, SplitterState
from tidemill.cli.shell.variables import ShellVariables
from tidemill.errors import TidemillError
from tidemill.sql.tokens import TokenKind, scan


def cut(text: str, variables: dict[str, str] | None = None) -> list[str]:
    """Statements as they are, commands with their backslash."""
    known = ShellVariables()
    for name, value in (variables or {}).items():
        known.set(name, value)
    splitter = Splitter(known.lookup)
    out = [shown(event) for line in text.splitlines(keepends=True) for event in splitter.feed(line)]
    rest = splitter.finish()
    return [*out, rest.text] if rest is not None else out


def shown(event: Event) -> str:
    return event.text if isinstance(event, ShellStatement) else f"\\{event.name} {event.rest}".rstrip()


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        (";;  ;", []),
        ("SELECT ';';", ["SELECT ';'"]),
        ("SELECT 'it''s;';", ["SELECT 'it''s;'"]),
        (r"SELECT E'\';', '\';", [r"SELECT E'\';', '\'"]),
        ('SELECT ";"" ;" FROM t;', ['SELECT ";"" ;" FROM t']),
        ("SELECT $$a;b$$, $x$ $$; $x$;", ["SELECT $$a;b$$, $x$ $$; $x$"]),
        ("SELECT a$b$ FROM t; SELECT 2", ["SELECT a$b$ FROM t", "SELECT 2"]),
        ("SELECT 1 -- not; the end\n, 2;", ["SELECT 1 -- not; the end\n, 2"]),
        ("-- a word before\nSELECT 1;", ["SELECT 1"]),
        ("SELECT /* a /* b; */ c; */ 1;", ["SELECT /* a /* b; */ c; */ 1"]),
        ("SELECT (1;\n2);", ["SELECT (1;\n2)"]),
        ("SELECT 'two\nlines;';", ["SELECT 'two\nlines;'"]),
        (r"SELECT 1\; SELECT 2;", ["SELECT 1; SELECT 2"]),
        ("SELECT 1 \\gx\n", ["\\gx", "SELECT 1"]),
        ("\\d orders\nSELECT 1;", ["\\d orders", "SELECT 1"]),
        ("\\x \\\\ SELECT 1;", ["\\x", "SELECT 1"]),
        ("\\echo 'a \\\\ b' \\echo c", [r"\echo 'a \\ b'", r"\echo c"]),
        ("\\! echo a\\\\b 'c\n", [r"\! echo a\\b 'c"]),
        ("\\timing;\n", ["\\timing"]),
        (
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END;",
            ["CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END"],
        ),
        ("BEGIN; SELECT 1; END;", ["BEGIN", "SELECT 1", "END"]),
    ],
)
def test_cuts(text: str, statements: list[str]) -> None:
    assert cut(text) == statements


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", SplitterState.START),
        ("SELECT 1;", SplitterState.START),
        ("SELECT 1", SplitterState.MORE),
        ("SELECT 'a", SplitterState.STRING),
        ('SELECT "a', SplitterState.IDENTIFIER),
        ("SELECT $a$ $$ ", SplitterState.DOLLAR),
        ("SELECT (1", SplitterState.PARENTHESIS),
        ("SELECT /* 1", SplitterState.COMMENT),
        ("-- only a comment", SplitterState.START),
    ],
)
def test_the_prompt_tells_what_is_waited_for(text: str, state: SplitterState) -> None:
    splitter = Splitter()
    list(splitter.feed(text + "\n"))
    assert splitter.state is state
    assert splitter.copy().state is state


def test_variables() -> None:
    known = {"n": "3", "text": "it's", "name": "A b", "loop": ":loop"}
    assert cut("SELECT :n, :'text', :\"name\", a::int, x[1:2], ':n', :other;", known) == [
        "SELECT 3, 'it''s', \"A b\", a::int, x[1:2], ':n', :other"
    ]
    assert cut("SELECT :loop;", known) == ["SELECT :loop"]
    assert cut("SELECT :two; SELECT 3;", {"two": "1; SELECT 2"}) == ["SELECT 1", "SELECT 2", "SELECT 3"]


def test_a_command_takes_effect_before_the_rest_of_its_line() -> None:
    known = ShellVariables()
    splitter = Splitter(known.lookup)
    seen: list[Event] = []
    for event in splitter.feed("\\set n 7 \\\\ SELECT :n;\n"):
        seen.append(event)
        known.set("n", "7")
    assert seen == [Command("set", "n 7"), ShellStatement("SELECT 7")]


def test_a_long_statement_is_read_in_linear_time() -> None:
    # Quadratic copying of the buffer would take minutes here.
    text = "INSERT INTO t VALUES " + ", ".join(f"({i}, 'text {i}')" for i in range(60_000)) + ";"
    assert cut(text + "\n") == [text[:-1]]


# What the two scanners could disagree about.
PIECES = [
    "'",
    "''",
    '"',
    "$$",
    "$a$",
    "--",
    "/*",
    "*/",
    "\n",
    ";",
    "(",
    ")",
    "a",
    "1",
    "E'",
    " ",
    "\\",
    "+",
    "$1",
    "é",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_cuts_where_the_server_sees_a_semicolon(text: str) -> None:
    """The server's own scanner is the judge, for text that it understands."""
    if "\\" in text:
        return
    try:
        tokens = scan(text)
    except TidemillError:
        return
    depth, ends = 0, []
    for token in tokens:
        if token.kind is TokenKind.SYMBOL and token.value in "()":
            depth = max(0, depth + (1 if token.value == "(" else -1))
        elif token.kind is TokenKind.SYMBOL and token.value == ";" and depth == 0:
            ends.append(token.start)
            depth = 0
    starts = [0, *(end + 1 for end in ends)]
    wanted = [normal(text[a:b]) for a, b in zip(starts, [*ends, len(text)], strict=True)]
    assert [normal(s) for s in cut(text)] == [part for part in wanted if part]


def normal(text: str) -> str:
    """Without the blanks and line comments in front, which are not sent."""
    text = text.strip()
    while text.startswith("--"):
        text = text.partition("\n")[2].strip()
    return text
