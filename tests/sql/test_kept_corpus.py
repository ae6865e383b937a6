"""All expressions of the corpus as columns of materialized views and of subscribed queries, on a server: both
hold what SELECT says. (That each statement is accepted, `test_determinism` tries without Spark.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from bind_corpus import Answer, Oracle, expressions, same_text
from psycopg.pq.abc import PGresult
from test_bind_corpus import TABLES, differences, oracle
from test_determinism import CHANCE, CLOCK, SESSION_FACTS, uses

from support.server import ServerProcess

__all__ = ["oracle"]
pytestmark = [pytest.mark.server, pytest.mark.chaos]

# Columns of a view. The larger, the fewer jobs of Spark; and the longer its compiler takes over each.
COLUMNS = 40
DATABASE = "kept_corpus"


@pytest.fixture(scope="module")
def home(server: ServerProcess, oracle: Oracle) -> Iterator[psycopg.Connection[Any]]:
    """A database with the corpus's tables."""
    with psycopg.connect(server.sql_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(
            f"{server.sql_dsn} dbname={DATABASE}", autocommit=True, prepare_threshold=None
        ) as connection:
            for name in TABLES:
                _copy(oracle, connection, name)
            yield connection
        admin.execute(f"DROP DATABASE {DATABASE} CASCADE")


def _copy(oracle: Oracle, connection: psycopg.Connection[Any], name: str) -> None:
    desc, _ = oracle.relation(name)
    columns = ", ".join(f'"{c.name}" {c.type}' for c in desc.columns)
    connection.execute(f"CREATE TABLE {name} ({columns})".encode())
    given = oracle.ask(f"SELECT * FROM {name}")
    assert isinstance(given, Answer)
    with connection.cursor().copy(f"COPY {name} FROM STDIN".encode()) as copy:
        for row in given.rows:
            copy.write_row(row)


def _answered(oracle: Oracle) -> list[str]:
    """The expressions that have a value in every row of v, and may be kept."""
    known = differences()
    found: list[str] = []
    for text in expressions():
        if text in known or uses(text, CLOCK | CHANCE | SESSION_FACTS):
            continue
        answer = oracle.ask(f"SELECT v.id AS key, {text} FROM v ORDER BY key")
        if isinstance(answer, Answer) and [r[0] for r in answer.rows] == ["1", "2", "3", "4", "5", "6"]:
            found.append(text)
    return found


def _rows(connection: psycopg.Connection[Any], text: str) -> list[tuple[str | None, ...]]:
    result = _result(connection, text)
    values = [
        tuple(
            None if (value := result.get_value(row, column)) is None else value.decode()
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]
    # A row that is kept is the same with -0 and with 0 (docs/types/floats.md).
    plain = [tuple("0" if value == "-0" else value for value in row) for row in values]
    return sorted(plain, key=lambda row: row[0] or "")


def _types(connection: psycopg.Connection[Any], text: str) -> list[int]:
    result = _result(connection, f"{text} LIMIT 0")
    return [result.ftype(column) for column in range(result.nfields)]


def _result(connection: psycopg.Connection[Any], text: str) -> PGresult:
    cursor = psycopg.RawCursor(connection)
    cursor.execute(text.encode())
    assert cursor.pgresult is not None
    return cursor.pgresult


def _query(texts: Sequence[str]) -> str:
    return f"SELECT id AS key, {', '.join(f'({t}) AS c{i}' for i, t in enumerate(texts))} FROM v"


def test_views_and_subscriptions_hold_what_select_says(home: psycopg.Connection[Any], oracle: Oracle) -> None:
    texts = _answered(oracle)
    assert len(texts) > 2000
    wrong: list[str] = []
    for at in range(0, len(texts), COLUMNS):
        batch = texts[at : at + COLUMNS]
        try:
            wrong += _differing(home, batch)
        except psycopg.Error:
            # Some of them are refused, in SELECT too or not: each by itself.
            for text in batch:
                try:
                    home.execute(_query([text]).encode())
                except psycopg.Error:
                    continue  # what SELECT refuses, too
                wrong += _differing(home, [text])
    assert wrong == [], "\n".join(wrong)


def _differing(home: psycopg.Connection[Any], texts: Sequence[str]) -> list[str]:
    query = _query(texts)
    expected, types = _rows(home, query), _types(home, query)
    home.execute(f"CREATE MATERIALIZED VIEW kept AS {query}".encode())
    try:
        kept = _rows(home, "SELECT * FROM kept")
    finally:
        home.execute("DROP MATERIALIZED VIEW kept")
    followed = [row[2:] for row in _rows(home, f"SUBSCRIBE ({query}) UP TO LATEST")]
    followed.sort(key=lambda row: row[0] or "")
    return [
        f"{text}: {[x[column] for x in answer]}, not {[y[column] for y in expected]}"
        for column, text in enumerate(texts, start=1)
        for answer in (kept, followed)
        if not all(
            same_text(x[column], y[column], types[column]) for x, y in zip(answer, expected, strict=True)
        )
    ]
