"""Random expressions and queries give PostgreSQL's answers, types and kinds of errors, or are refused by
name.

`make test` asks a few, always the same; `make chaos` many, from the seed TIDEMILL_TEST_SEED."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from bind_corpus import Answer, Failure, Oracle, Subject
from random_aggregates import aggregates
from random_expressions import expressions
from random_judge import ALLOWED, asked_of_postgres, judge, judge_aggregates
from random_queries import QUERY_TABLES, TABLES_SQL, Queries
from random_values import table_sql
from test_bind_corpus import compare, oracle

from tidemill.query.spark import SparkHost

__all__ = ["oracle"]

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("TIDEMILL_TEST_SEED", "1"))
# In `make test`: seconds. In `make chaos`: a quarter of an hour each.
FEW_EXPRESSIONS, FEW_AGGREGATES, FEW_QUERIES = 60, 40, 15
MANY_EXPRESSIONS, MANY_AGGREGATES, MANY_QUERIES = 4000, 2000, 2000
# Expressions that are judged before the next ones are asked of PostgreSQL.
ROUND = 400
# Aggregates that share one Spark job.
TOGETHER = 20


@pytest.fixture(scope="module")
def subject(spark: SparkHost, oracle: Oracle) -> Iterator[Subject]:
    for statement in (table_sql() + TABLES_SQL).split(";\n"):
        if statement.strip():
            oracle.connection.execute(statement.encode())
    made = Subject(spark.session, oracle, ("w", *QUERY_TABLES))
    yield made
    made.close()


def differing_expressions(oracle: Oracle, subject: Subject, seed: int, count: int) -> list[str]:
    made = expressions(seed, count)
    found: list[str] = []
    for at in range(0, len(made), ROUND):
        cases = [asked_of_postgres(oracle, m) for m in made[at : at + ROUND]]
        found += [
            f"[{d.kind}] {d.text}\n    here {d.mine}\n    PostgreSQL {d.theirs}"
            for d in judge(subject, cases)
            if d.kind not in ALLOWED
        ]
    return found


def differing_aggregates(oracle: Oracle, subject: Subject, seed: int, count: int) -> list[str]:
    made = aggregates(seed, count)
    found: list[str] = []
    for over in (False, True):
        order = " ORDER BY id" if over else ""
        calls = [(m, oracle.ask(f"SELECT {m.text} FROM w{order}")) for m, window in made if window is over]
        failing = [[c] for c in calls if isinstance(c[1], Failure)]
        rest = [c for c in calls if isinstance(c[1], Answer)]
        for batch in (*failing, *(rest[at : at + TOGETHER] for at in range(0, len(rest), TOGETHER))):
            found += [
                f"[{d.kind}] {d.text}\n    here {d.mine}\n    PostgreSQL {d.theirs}"
                for d in judge_aggregates(subject, batch, over=over)
                if d.kind not in ALLOWED
            ]
    return found


def differing_queries(oracle: Oracle, subject: Subject, seed: int, count: int) -> list[str]:
    queries = Queries(random.Random(seed))
    made = [queries.query() for _ in range(count)]
    found: list[str] = []
    for (sql, ordered), mine in zip(made, subject.ask_all([sql for sql, _ in made]), strict=True):
        theirs = oracle.ask(sql)
        if isinstance(mine, Failure) and (
            mine.sqlstate == "0A000" or (isinstance(theirs, Failure) and mine.sqlstate == theirs.sqlstate)
        ):
            continue
        problem = compare(mine, theirs, ordered=ordered)
        if problem is not None:
            found.append(f"{sql}: {problem}")
    return found


def test_a_few_random_expressions(oracle: Oracle, subject: Subject) -> None:
    found = differing_expressions(oracle, subject, 1, FEW_EXPRESSIONS)
    assert not found, "\n".join(found)


def test_a_few_random_aggregates(oracle: Oracle, subject: Subject) -> None:
    found = differing_aggregates(oracle, subject, 1, FEW_AGGREGATES)
    assert not found, "\n".join(found)


def test_a_few_random_queries(oracle: Oracle, subject: Subject) -> None:
    found = differing_queries(oracle, subject, 1, FEW_QUERIES)
    assert not found, "\n".join(found)


@pytest.mark.chaos
def test_many_random_expressions(oracle: Oracle, subject: Subject) -> None:
    found = differing_expressions(oracle, subject, SEED, MANY_EXPRESSIONS)
    assert not found, f"seed {SEED}, {len(found)} differ\n" + "\n".join(found)


@pytest.mark.chaos
def test_many_random_aggregates(oracle: Oracle, subject: Subject) -> None:
    found = differing_aggregates(oracle, subject, SEED, MANY_AGGREGATES)
    assert not found, f"seed {SEED}, {len(found)} differ\n" + "\n".join(found)


@pytest.mark.chaos
def test_many_random_queries(oracle: Oracle, subject: Subject) -> None:
    found = differing_queries(oracle, subject, SEED, MANY_QUERIES)
    assert not found, f"seed {SEED}, {len(found)} differ\n" + "\n".join(found)
