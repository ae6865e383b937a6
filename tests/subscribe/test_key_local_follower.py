"""Queries that are local to keys: at every time the changes so far are what SELECT answers there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from key_index import ListedIndex
from stage_world import StageWorld
from told_spans import Update

from sql.random_queries import Queries
from support.bound import Names
from tidemill.arrangements import ArrangementLost
from tidemill.errors import TidemillError
from tidemill.query.spark import SparkHost
from tidemill.sql.bind.incremental import keyed_stages
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.subscribe import key_local, key_local_changes
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import BOOL, DATE, INT4, INT8, NUMERIC, TEXT, Column, Kind, RelationDesc, array
from tidemill.types.parse_name import parse_type

pytestmark = pytest.mark.spark

DESC = RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT), Column("n", NUMERIC)))
# The tables of random queries.
_G = {
    "id": INT4,
    "k": INT4,
    "s": TEXT,
    "x": parse_type("numeric(8,2)"),
    "d": DATE,
    "b": BOOL,
    "a": array(INT4),
}
_H = {"id": INT4, "k": INT4, "s": TEXT, "y": INT8, "d": DATE}
G, H = (RelationDesc(tuple(Column(n, t) for n, t in columns.items())) for columns in (_G, _H))
DESCS = {"t": DESC, "u": DESC, "v": DESC, "g": G, "h": H}
NAMES = Names(
    {"t": DESC, "u": DESC, "v": DESC, "g": G, "h": H},
    {"few": "SELECT a, b, s FROM t WHERE b > 0", "counts": "SELECT a, count(*) AS c FROM t GROUP BY a"},
)
LAST = 5

_VALUES: dict[Kind, list[Any]] = {
    Kind.INT4: [None, 0, 1, 1, 2],
    Kind.INT8: [None, 0, 1, 9007199254740993],
    Kind.TEXT: [None, "", "a", "b"],
    Kind.NUMERIC: [None, Decimal(0), Decimal("1.5"), Decimal("-2.25")],
    Kind.DATE: [None, date(2020, 2, 29), date(1999, 12, 31)],
    Kind.BOOL: [None, False, True],
    Kind.ARRAY: [None, [], [1, 2], [None, 3]],
}


def history(dice: random.Random, desc: RelationDesc) -> list[Update]:
    """Inserts, updates and deletes of rows that may be there more than once; those at 0 are there first."""
    here: list[tuple[Any, ...]] = []
    updates: list[Update] = []
    for time in range(LAST + 1):
        for _ in range(dice.choice([0, 1, 2, 6, 12])):
            if here and dice.random() < 0.5:
                gone = here.pop(dice.randrange(len(here)))
                updates.append((gone, time, -1))
                if dice.random() < 0.5:
                    continue
            row, copies = tuple(dice.choice(_VALUES[t.kind]) for t in desc.types), dice.choice([1, 1, 2])
            here += [row] * copies
            updates.append((row, time, copies))
    return updates


def rows_in_order(found: pa.Table) -> list[str]:
    return [str(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def rows(found: pa.Table) -> Counter[str]:
    return Counter(rows_in_order(found))


def check(spark: SparkHost, query: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Whether what is at hand is evaluated at once, or span by span.
        patch.setattr(key_local, "GATHER_SPANS", 1 if seed % 2 == 0 else 256)
        compare(spark, query, random.Random(f"{query} {seed}"))


def compare(spark: SparkHost, query: str, dice: random.Random) -> None:
    found = {name: history(dice, desc) for name, desc in DESCS.items()}
    uppers = [*sorted(dice.sample(range(2, LAST + 1), dice.randint(0, 3))), LAST + 1]
    bound = NAMES.bind(query)
    first = dice.choice([1, 1, 2])
    world = StageWorld(spark, DESCS, found)
    follow = world.follower(bound, uppers, first)
    at_each: dict[int, Counter[str]] = {}
    while follow.frontier <= LAST:
        lower = follow.frontier
        changes = follow.advance()
        assert changes is not None and changes.lower == lower and changes.upper == follow.frontier
        *_, times, diffs = (c.to_pylist() for c in changes.updates.columns)
        told = rows_in_order(changes.updates.drop_columns([TIME_COLUMN, DIFF_COLUMN]))
        for row, time, diff in zip(told, times, diffs, strict=True):
            assert changes.lower <= time < changes.upper and row not in at_each.setdefault(time, Counter())
            at_each[time][row] = diff
    text = bound.sql()
    answer = rows(world.select(bound, text, first - 1))
    compared = {dice.randint(first, LAST - 1), LAST}
    for at in range(first, LAST + 1):
        for row, diff in at_each.get(at, Counter[str]()).items():
            answer[row] += diff
        if at in compared:
            expected = rows(world.select(bound, text, at))
            assert {r: n for r, n in answer.items() if n} == expected, f"at {at} of {found}, in {uppers}"


QUERIES = """
SELECT a, count(*), sum(b), avg(n), max(s), count(DISTINCT b) FROM t GROUP BY a;
SELECT s, min(n) FILTER (WHERE b > 0), array_agg(b ORDER BY b DESC) FROM t GROUP BY a, s HAVING sum(a) >
  1;
SELECT a, s, count(*), count(b), sum(b), avg(b), avg(n), sum(n), bool_and(b > 0), bool_or(b > 0) FROM t
  GROUP BY a, s;
SELECT count(*), count(n), sum(n), avg(b), bool_or(s = 'x') FILTER (WHERE b > 0) FROM t WHERE a > 0;
SELECT b FROM (SELECT a, sum(b) FILTER (WHERE s = 'x') AS b, count(*) AS c FROM t GROUP BY a) x WHERE c < 4;
SELECT count(*), sum(t.b) FROM t JOIN u USING (a) HAVING count(*) > 2;
SELECT a + b, avg(n) FROM (SELECT a, b, n FROM t UNION ALL SELECT b, a, n FROM u) x GROUP BY a + b;
SELECT max(c), sum(c) FROM counts GROUP BY a % 2;
SELECT DISTINCT a, s FROM t WHERE b IS NOT NULL;
SELECT a, b, count(*), grouping(b, s), sum(n) FROM t GROUP BY a, ROLLUP (b, s);
SELECT a, b, rank() OVER w, sum(n) OVER (PARTITION BY a), count(*) OVER (PARTITION BY s, a ORDER BY b)
  FROM t WINDOW w AS (PARTITION BY a ORDER BY b);
SELECT * FROM (SELECT a, b, s, n, row_number() OVER (PARTITION BY a ORDER BY b DESC, s, n) AS r FROM t) x
  WHERE r <= 2;
SELECT DISTINCT ON (a) a, b, s, n FROM t ORDER BY a, n DESC, b, s;
SELECT t.b, t.s, u.b FROM t JOIN u ON t.a = u.a;
SELECT t.b, u.b, u.s FROM t LEFT JOIN u ON t.a = u.a AND t.s = u.s AND u.b > t.b;
SELECT t.b, t.n, u.s FROM t RIGHT JOIN u USING (a) WHERE u.n IS NOT NULL;
SELECT a, t.b, u.b FROM t FULL JOIN u USING (a);
SELECT t.a, u.b FROM t, u WHERE t.a = u.b AND t.s <> u.s;
SELECT x.b, y.n FROM t x LEFT JOIN t y ON x.a = y.b;
SELECT a, b FROM t EXCEPT ALL SELECT a, b FROM u;
SELECT a FROM t EXCEPT SELECT a FROM u;
SELECT a, s FROM t INTERSECT ALL SELECT a, s FROM u;
SELECT a, s FROM t INTERSECT SELECT a, s FROM u;
SELECT a, s FROM t UNION SELECT b, s FROM u;
SELECT a, b FROM t WHERE a IN (SELECT b FROM u WHERE n > 0);
SELECT a, b FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > t.b);
SELECT a, b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a);
SELECT (SELECT count(*) FROM u WHERE u.a = t.a), (SELECT max(n) FROM v WHERE v.b = 1 AND v.a = t.a) FROM
  t;
SELECT t.a, z.b, z.s FROM t, LATERAL (SELECT b, s FROM u WHERE u.a = t.a ORDER BY b, s LIMIT 2) z;
SELECT t.b, z.c FROM t LEFT JOIN LATERAL (SELECT count(*), sum(b) AS c FROM u WHERE u.a = t.a) z ON true;
SELECT t.b, count(*), sum(u.b) FROM t JOIN u ON t.a = u.a GROUP BY t.b;
SELECT t.a, count(u.b) FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a;
SELECT t.b, u.b, v.s FROM t JOIN u ON t.a = u.a LEFT JOIN v ON u.b = v.b;
SELECT t.b, u.b, v.n FROM t JOIN u ON t.a = u.a JOIN v ON u.a = v.a;
SELECT c, count(*) FROM counts GROUP BY c;
SELECT a % 2, s || 'z', sum(b + 1) FROM t GROUP BY a % 2, 2;
SELECT few.s, counts.c FROM few JOIN counts ON few.a + 1 = counts.a;
SELECT a, count(*) FROM t GROUP BY a UNION ALL SELECT b, a FROM u WHERE s = 'x';
SELECT e, count(*) FROM (SELECT a, unnest(ARRAY[a, b]) AS e FROM t) x GROUP BY e;
SELECT x.a, x.c, y.c FROM counts x JOIN counts y ON x.a = y.c;
SELECT a, max(c) FROM (SELECT a, b, count(*) AS c FROM t GROUP BY a, b) x GROUP BY a;
SELECT a, b FROM t WHERE b >= (SELECT avg(b) FROM u);
SELECT a, (SELECT count(n) FROM u WHERE b = 1) FROM t WHERE s IS NOT NULL;
SELECT a, sum(b) FROM t GROUP BY a HAVING sum(b) >= (SELECT sum(b) / 2 FROM t HAVING count(*) > 3);
SELECT a, rank() OVER (PARTITION BY a ORDER BY b), (SELECT bool_or(b = 2) FROM u) FROM t;
SELECT t.a, t.b, x.m FROM t, (SELECT avg(n) AS m FROM u WHERE a = 1) x WHERE t.n > x.m;
SELECT a, b FROM t WHERE a NOT IN (SELECT b FROM u WHERE n > 0);
SELECT a, b FROM t WHERE a NOT IN (SELECT b FROM u WHERE b IS NOT NULL AND s = 'a') AND b > 0;
SELECT a + b FROM t WHERE a + b NOT IN (SELECT u.a FROM u JOIN v USING (a) WHERE u.a > 0 GROUP BY u.a);
SELECT a, s, count(*), sum(b), grouping(a, s) FROM t GROUP BY CUBE (a, s);
"""


def rounds(queries: Sequence[str], seeds: int = 20) -> list[Any]:
    """Of every other query one round always, of all of them many as chaos."""
    return [
        pytest.param(query, seed, marks=[pytest.mark.chaos] if seed or i % 2 else [])
        for i, query in enumerate(queries)
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(("query", "seed"), rounds(QUERIES.strip().strip(";").split(";\n")))
def test_a_rule(spark: SparkHost, query: str, seed: int) -> None:
    check(spark, query, seed)


def random_query(seed: int) -> str:
    """One that has stages."""
    made = Queries(random.Random(seed))
    while True:
        query = made.query()[0]
        try:
            keyed_stages(NAMES.bind(query))
        except (NotIncremental, TidemillError):
            continue
        return query


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.chaos] if n > 7 else []) for n in range(400)]
)
def test_a_random_query(spark: SparkHost, seed: int) -> None:
    check(spark, random_query(seed), seed)


_FEW = (
    "SELECT a, max(b), count(DISTINCT s) FROM t GROUP BY a",
    "SELECT t.b, max(u.b) FROM t JOIN u ON t.a = u.a GROUP BY t.b",
    "SELECT a, sum(b) FROM t GROUP BY a",
)


@pytest.mark.parametrize("query", _FEW)
def test_many_rows_at_once(spark: SparkHost, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are evaluated apart, and a stage as a whole."""
    monkeypatch.setattr(key_local_changes, "MAX_VERSION_ROWS", 3)
    check(spark, query, 0)


@pytest.mark.parametrize("query", _FEW)
def test_an_index_that_is_lost(spark: SparkHost, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, lost = ListedIndex.lookup, [True]

    def lose(index: ListedIndex, hashes: np.ndarray, before: int) -> pa.Table:
        if lost.pop() if lost else False:
            raise ArrangementLost("by the test")
        return lookup(index, hashes, before)

    monkeypatch.setattr(ListedIndex, "lookup", lose)
    check(spark, query, 1)
    assert not lost


@pytest.mark.parametrize("last", [1, 2, 4])
def test_an_error_comes_at_its_time(spark: SparkHost, last: int) -> None:
    """After what is before it; whichever of the times of one evaluation it is."""
    values = [(None if at == last else 1, 0 if at == last else at, None, None) for at in range(1, LAST + 1)]
    found = {"t": [(row, at, 1) for at, row in enumerate(values, 1)]}
    bound = NAMES.bind("SELECT a, 12 / max(b) FROM t GROUP BY a")
    follow = StageWorld(spark, DESCS, found).follower(bound, [LAST + 1])
    if last > 1:
        changes = follow.advance()
        assert changes is not None and (changes.lower, changes.upper) == (1, last)
        assert set(changes.updates.column(TIME_COLUMN).to_pylist()) == set(range(1, last))
    for _ in range(2):
        with pytest.raises(TidemillError, match="division by zero"):
            follow.advance()
    assert follow.frontier == last
