"""Queries of which SQL allows several answers: what was told is always one of them, and what is taken away
was told before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from stage_world import StageWorld, counted
from test_key_local_follower import DESCS, LAST, NAMES, history, rounds

from tidemill.query.spark import SparkHost
from tidemill.sql.bind.incremental import keyed_stages
from tidemill.subscribe import key_local, key_local_changes

pytestmark = pytest.mark.spark

Row = tuple[Any, ...]


def rounded(row: Row) -> Row:
    """Sums of large and small floats, without the small ones."""
    return tuple(round(v, -3) + 0.0 if isinstance(v, float) else v for v in row)


def bags(row: Row) -> Row:
    """Lists without their order."""
    return tuple(tuple(sorted(map(str, v))) if isinstance(v, list | str) else v for v in row)


def first(count: int) -> Callable[[Row], Row]:
    """The columns that are the same in all answers."""
    return lambda row: row[:count]


# Each with what all its answers share.
_V = "n::float8 / 3 + b::float8 * 1e15"
_FIRST = "SELECT a, any_value(b) AS v FROM t GROUP BY a"
QUERIES: dict[str, Callable[[Row], Row]] = {
    f"SELECT a, sum({_V}), count(*) FROM t GROUP BY a": rounded,
    f"SELECT a + 1, avg({_V}) AS v FROM t GROUP BY a + 1 HAVING count(*) > 1": rounded,
    "SELECT a, b, array_agg(s) FROM t GROUP BY a, b": bags,
    "SELECT a, string_agg(s, '' ORDER BY b) FROM t GROUP BY a": bags,
    "SELECT DISTINCT ON (a) a, b, s, n FROM t ORDER BY a, b": first(2),
    "SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b), s, n FROM t": first(3),
    "SELECT t.a, z.b, z.s FROM t, LATERAL (SELECT b, s FROM u WHERE u.a = t.a ORDER BY b LIMIT 2) z": first(
        2
    ),
    f"SELECT y, sum({_V}) FROM (SELECT t.b AS y, u.n, u.b FROM t JOIN u ON t.a = u.a) x GROUP BY y": rounded,
    f"SELECT u.a, u.s, x.v FROM u LEFT JOIN ({_FIRST}) x ON u.a = x.a": first(2),
    "SELECT a, array_agg(b) FROM t GROUP BY a UNION ALL SELECT b, ARRAY[a] FROM u": bags,
    "SELECT a, (SELECT array_agg(b) FROM u WHERE u.a = t.a) FROM t": bags,
}


def compare(spark: SparkHost, query: str, shared: Callable[[Row], Row], dice: random.Random) -> None:
    found = {name: history(dice, desc) for name, desc in DESCS.items()}
    uppers = [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 3))), LAST + 1]
    bound = NAMES.bind(query)
    assert keyed_stages(bound)[-1].stage.recalled
    text, world = bound.sql(), StageWorld(spark, DESCS, found)
    before = counted(world.select(bound, text, 0))
    follow = world.follower(bound, uppers, before=before)
    at_each: dict[int, list[tuple[Row, int]]] = {}
    while follow.frontier <= LAST:
        changes = follow.advance()
        assert changes is not None
        *columns, times, diffs = (c.to_pylist() for c in changes.updates.columns)
        for *row, time, diff in zip(*columns, times, diffs, strict=True):
            at_each.setdefault(time, []).append((tuple(row), diff))
    answer: Counter[str] = Counter()
    rows: dict[str, Row] = {}

    def add(row: Row, diff: int) -> None:
        rows[str(row)] = row
        answer[str(row)] += diff

    *columns, counts = (c.to_pylist() for c in before.columns)
    for *row, count in zip(*columns, counts, strict=True):
        add(tuple(row), count)
    for at in range(1, LAST + 1):
        for row, diff in at_each.get(at, []):
            add(row, diff)
        assert min(answer.values(), default=0) >= 0, f"at {at} of {found}, in {uppers}"
        if at in (dice.randint(1, LAST - 1), LAST):
            seen = Counter(str(shared(rows[r])) for r, n in answer.items() for _ in range(n))
            now = world.select(bound, text, at)
            expected = Counter(
                str(shared(row)) for row in zip(*(c.to_pylist() for c in now.columns), strict=True)
            )
            assert seen == expected, f"at {at} of {found}, in {uppers}"


@pytest.mark.parametrize(("query", "seed"), rounds(list(QUERIES)))
def test_one_of_its_answers(spark: SparkHost, query: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_local, "GATHER_SPANS", 1 if seed % 2 else 256)
        if seed % 5 == 4:
            patch.setattr(key_local_changes, "MAX_VERSION_ROWS", 3)
        compare(spark, query, QUERIES[query], random.Random(f"{query} {seed}"))


def test_too_many_rows_at_once(spark: SparkHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_local_changes, "MAX_VERSION_ROWS", 3)
    query = next(iter(QUERIES))
    compare(spark, query, QUERIES[query], random.Random(0))
