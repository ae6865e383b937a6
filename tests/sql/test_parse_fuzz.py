"""The parser on text that nobody meant: statements or one of its own errors come back, soon, nothing else."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_parse_files import HERE, Case, read_cases

from tidemill.errors import TidemillError
from tidemill.sql import ast
from tidemill.sql.names import MAX_IDENTIFIER_BYTES, fold, quote_ident, quote_literal
from tidemill.sql.parse import parse
from tidemill.sql.render import Rendered, to_sql
from tidemill.sql.tokens import TokenKind, scan

# What the parser promises to raise: syntax, names, not supported, no such constraint; bad values
# and limits by class.
STATES = {"42601", "42622", "0A000", "42704"}
CLASSES = {"22", "54"}
# Far above what any of these texts takes (about a millisecond): only an explosion reaches it.
SLOW_SECONDS = 5.0


def corpus() -> list[list[str]]:
    """The cases of the text files, each as the texts of its tokens."""
    found: list[list[str]] = []
    for path in sorted(HERE.glob("*.txt")):
        for case in read_cases(path):
            if isinstance(case, Case):
                try:
                    found.append([case.sql[t.start : t.end] for t in scan(case.sql)][:-1])
                except TidemillError:
                    continue
    return [tokens for tokens in found if tokens]


CORPUS = corpus()
POOL = sorted({token for tokens in CORPUS for token in tokens})


def hold(text: str) -> None:
    """The parser's promise for one text; statements that can be written come back from their own text."""
    start = time.process_time()
    try:
        statements = parse(text)
    except TidemillError as error:
        assert error.sqlstate in STATES or error.sqlstate[:2] in CLASSES, (error.sqlstate, error)
        assert error.position is None or 1 <= error.position <= len(text) + 1
        return
    finally:
        assert time.process_time() - start < SLOW_SECONDS, text
    for parsed in statements:
        assert text[parsed.offset : parsed.offset + len(parsed.text)] == parsed.text
        if isinstance(parsed.statement, Rendered):
            comes_back(parsed.statement)


def comes_back(statement: ast.Statement) -> None:
    assert isinstance(statement, Rendered)
    text = to_sql(statement)
    assert [p.statement for p in parse(text)] == [statement], text


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(POOL), max_size=30))
def test_token_soup(tokens: list[str]) -> None:
    hold(" ".join(tokens))


@settings(max_examples=800, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_statements(data: st.DataObject) -> None:
    tokens = list(data.draw(st.sampled_from(CORPUS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(tokens)))
        match data.draw(st.sampled_from(["drop", "insert", "replace", "splice"])):
            case "drop":
                del tokens[at : at + 1]
            case "insert":
                tokens.insert(at, data.draw(st.sampled_from(POOL)))
            case "replace":
                tokens[at : at + 1] = [data.draw(st.sampled_from(POOL))]
            case _:
                other = data.draw(st.sampled_from(CORPUS))
                tokens[at:at] = other[data.draw(st.integers(0, len(other))) :]
    hold(" ".join(tokens))


@settings(max_examples=400, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="sel'\"$\\/*-e&uU(); \n1.x", max_size=40))
def test_any_text(text: str) -> None:
    hold(text)


NAMES = st.text(
    st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=60
).filter(lambda s: len(s.encode()) <= MAX_IDENTIFIER_BYTES)


@given(NAMES)
@example("insert")
@example("by")
def test_names_come_back(name: str) -> None:
    tokens = scan(quote_ident(name))
    assert [t.value for t in tokens] == [name, ""]
    assert parse(f"drop table {quote_ident(name)}")[0].statement == ast.Drop(
        ast.ObjectKind.TABLE, (ast.Name((name,)),)
    )
    query = parse(f"select {quote_ident(name)} as {quote_ident(name)} from {quote_ident(name)}")
    comes_back(query[0].statement)


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_literals_come_back(value: str) -> None:
    tokens = scan(quote_literal(value))
    assert [(t.kind, t.value) for t in tokens[:-1]] == [(TokenKind.STRING, value)]
    comes_back(parse(f"select {quote_literal(value)}")[0].statement)


@given(st.text())
def test_fold_touches_ascii_letters_only(word: str) -> None:
    assert fold(word) == "".join(c.lower() if "A" <= c <= "Z" else c for c in word)
