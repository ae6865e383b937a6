"""Every expression and query of the corpus gives PostgreSQL's answer, type, column name and error.

What differs on purpose is in `bind/differences.txt`, each with its reason; a line there that no longer
differs is an error too."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from bind_corpus import ASKERS, Answer, Failure, Oracle, Subject, expressions, lines, same_text

from support.embedded import postgres_server
from tidemill.errors import TidemillError
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import BoundQuery
from tidemill.types.model import Column

pytestmark = pytest.mark.spark

TABLES = ("v", "p", "q")
# Expressions that share one Spark job: one bad one costs a job of its own to be found.
BATCH = 60


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with postgres_server() as uri:
        with psycopg.connect(uri, autocommit=True) as admin:
            admin.execute(
                "CREATE DATABASE corpus TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER builtin "
                "BUILTIN_LOCALE 'C.UTF-8' LOCALE 'C'"
            )
        with psycopg.connect(uri, dbname="corpus", autocommit=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            yield Oracle(connection)


@pytest.fixture(scope="module")
def subject(spark: SparkHost, oracle: Oracle) -> Iterator[Subject]:
    made = Subject(spark.session, oracle, TABLES)
    yield made
    made.close()


def differences() -> dict[str, str]:
    """text -> reason."""
    found: dict[str, str] = {}
    for line in lines("differences.txt"):
        text, _, reason = line.rpartition(" => ")
        found[text] = reason
    return found


def shown(answer: Answer | Failure) -> str:
    if isinstance(answer, Failure):
        return f"ERROR {answer.sqlstate} {answer.text}"
    return f"{answer.names} {answer.oids} {answer.rows}"


def compare(mine: Answer | Failure, theirs: Answer | Failure, *, ordered: bool = True) -> str | None:
    """None if they agree, else how they differ."""
    if isinstance(mine, Failure) or isinstance(theirs, Failure):
        agree = mine == theirs
        return None if agree else f"\n    here {shown(mine)[:300]}\n    PostgreSQL {shown(theirs)[:300]}"
    problem = None
    if mine.oids != theirs.oids:
        problem = f"type {mine.oids} not {theirs.oids}"
    elif mine.names != theirs.names:
        problem = f"name {mine.names} not {theirs.names}"
    elif len(mine.rows) != len(theirs.rows):
        problem = f"{len(mine.rows)} rows, not {len(theirs.rows)}"
    else:
        key = repr
        left = mine.rows if ordered else sorted(mine.rows, key=key)
        right = theirs.rows if ordered else sorted(theirs.rows, key=key)
        for a, b in zip(left, right, strict=True):
            if not all(
                same_text(x, y, t, value=value)
                for x, y, t, value in zip(a, b, mine.oids, mine.values, strict=True)
            ):
                problem = f"\n    here {a}\n    PostgreSQL {b}"
                break
    return problem


def test_expressions(oracle: Oracle, subject: Subject) -> None:
    texts = expressions()
    known = differences()
    problems: list[str] = []
    bound: list[tuple[str, BoundQuery]] = []
    answers: dict[str, Answer | Failure] = {}
    for text in texts:
        try:
            bound.append((text, subject.bind(f"SELECT {text} FROM v")))
        except TidemillError as error:
            answers[text] = Failure(error.sqlstate, error.primary)
    expected: dict[str, Answer | Failure] = {}
    for text in texts:
        theirs = oracle.ask(f"SELECT v.id AS key, {text} FROM v ORDER BY key")
        if isinstance(theirs, Answer):
            rows = [r[1:] for r in theirs.rows]
            theirs = Answer(theirs.names[1:], theirs.oids[1:], rows, theirs.values[1:])
        expected[text] = theirs
    # What should fail is asked by itself: among others it would cost a search for who it was.
    failing = [(t, q) for t, q in bound if isinstance(expected[t], Failure) or t in known]
    rest = [(t, q) for t, q in bound if t not in {f for f, _ in failing}]
    batches = [[one] for one in failing] + [rest[at : at + BATCH] for at in range(0, len(rest), BATCH)]
    with ThreadPoolExecutor(ASKERS) as pool:
        for found in pool.map(lambda batch: ask_together(subject, batch), batches):
            answers |= found
    for text, theirs in expected.items():
        problem = compare(answers[text], theirs)
        if problem is not None and text not in known:
            problems.append(f"{text}: {problem}")
        elif problem is None and text in known:
            problems.append(f"{text}: no longer differs")
    assert not problems, f"{len(problems)} of {len(texts)}\n" + "\n".join(problems)


def ask_together(subject: Subject, batch: list[tuple[str, BoundQuery]]) -> dict[str, Answer | Failure]:
    """Many expressions as the columns of one query; halved where one of them fails."""
    together = ", ".join(f"({text}) AS x{i}" for i, (text, _) in enumerate(batch))
    whole = subject.ask(f"SELECT id, {together} FROM v ORDER BY id")
    if isinstance(whole, Failure):
        if len(batch) == 1:
            return {batch[0][0]: whole}
        half = len(batch) // 2
        return ask_together(subject, batch[:half]) | ask_together(subject, batch[half:])
    found: dict[str, Answer | Failure] = {}
    for i, (text, query) in enumerate(batch):
        column: Column = query.columns[0]
        rows: list[Any] = [(row[i + 1],) for row in whole.rows]
        found[text] = Answer([column.name], [whole.oids[i + 1]], rows, [whole.values[i + 1]])
    return found


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata"])
def test_time_zones(oracle: Oracle, subject: Subject, zone: str) -> None:
    """What depends on the session's zone, in zones that are not UTC."""
    texts = lines("zones.txt")
    utc = subject.info
    problems: list[str] = []
    try:
        subject.info = replace(utc, time_zone=zone)
        oracle.ask(f"SET TimeZone = '{zone}'")
        bound = [(text, subject.bind(f"SELECT {text} FROM v")) for text in texts]
        answers = ask_together(subject, bound)
        for text in texts:
            theirs = oracle.ask(f"SELECT {text} FROM v ORDER BY v.id")
            problem = compare(answers[text], theirs)
            if problem is not None:
                problems.append(f"{text}: {problem}")
    finally:
        subject.info = utc
        oracle.ask("SET TimeZone = 'UTC'")
    assert not problems, f"{len(problems)} of {len(texts)}\n" + "\n".join(problems)


def test_queries(oracle: Oracle, subject: Subject) -> None:
    texts = lines("queries.txt")
    known = differences()
    assert len(texts) >= 60
    problems: list[str] = []
    for text, mine in zip(texts, subject.ask_all(texts), strict=True):
        ordered = "order by" in text.lower().rsplit(")", 1)[-1]
        problem = compare(mine, oracle.ask(text), ordered=ordered)
        if problem is not None and text not in known:
            problems.append(f"{text}: {problem}")
        elif problem is None and text in known:
            problems.append(f"{text}: no longer differs")
    assert not problems, f"{len(problems)} of {len(texts)}\n" + "\n".join(problems)


def test_errors(oracle: Oracle, subject: Subject) -> None:
    """What fails, fails with PostgreSQL's SQLSTATE and text, when it is bound or when it runs."""
    texts = lines("errors.txt")
    known = differences()
    problems: list[str] = []
    for text, mine in zip(texts, subject.ask_all(texts), strict=True):
        theirs = oracle.ask(text)
        assert isinstance(theirs, Failure), text
        problem = compare(mine, theirs)
        if problem is not None and text not in known:
            problems.append(f"{text}: {problem}")
        elif problem is None and text in known:
            problems.append(f"{text}: no longer differs")
    assert not problems, f"{len(problems)} of {len(texts)}\n" + "\n".join(problems)
