"""Which queries give the same result over the same rows however often they are computed: durable
subscriptions accept them, and name what makes another one different."""

from __future__ import annotations

import pytest

from support.bound import Names
from tidemill.sql.plan.repeatable import why_not_repeatable
from tidemill.types.model import FLOAT8, INT4, INTERVAL, JSONB, TEXT, Column, RelationDesc

_COLUMNS = {"a": INT4, "b": INT4, "s": TEXT, "f": FLOAT8, "i": INTERVAL, "j": JSONB}
TABLE = RelationDesc(tuple(Column(name, t) for name, t in _COLUMNS.items()))
NAMES = Names({"t": TABLE, "u": TABLE}, {"three": "SELECT a FROM t LIMIT 3"})


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t JOIN u ON t.a = u.a LEFT JOIN t x ON x.s = u.s",
        "SELECT a, count(*), sum(b), avg(b), min(s), max(b), every(b > 1) FROM t GROUP BY a HAVING a > 1",
        "SELECT a, b, count(DISTINCT f) FROM t GROUP BY ROLLUP (a, b)",
        "SELECT DISTINCT a, s FROM t",
        "SELECT a FROM t UNION SELECT b FROM u EXCEPT SELECT 1 INTERSECT ALL SELECT 2",
        "SELECT a, (SELECT max(b) FROM u WHERE u.a = t.a) FROM t WHERE EXISTS (SELECT 1 FROM u WHERE b = 1)",
        "SELECT f, i, j FROM t WHERE a IN (SELECT b FROM u)",
        "SELECT count(*) FROM t ORDER BY 1 LIMIT ALL",
        "SELECT f FROM t UNION ALL SELECT f FROM u",
    ],
)
def test_repeatable(query: str) -> None:
    assert why_not_repeatable(NAMES.bind(query).plan) is None


@pytest.mark.parametrize(
    ("query", "because"),
    [
        ("SELECT a FROM t LIMIT 1", "LIMIT"),
        ("SELECT a FROM t ORDER BY b OFFSET 1", "LIMIT"),
        ("SELECT a FROM three", "LIMIT"),
        ("SELECT a FROM t WHERE b = (SELECT b FROM u LIMIT 1)", "LIMIT"),
        ("SELECT DISTINCT ON (a) a, b FROM t", "DISTINCT ON"),
        ("SELECT a, row_number() OVER (ORDER BY b) FROM t", "a window function"),
        ("SELECT array_agg(a) FROM t", "array_agg"),
        ("SELECT string_agg(s, ',') FROM t GROUP BY a", "string_agg"),
        ("SELECT any_value(a) FROM t", "any_value"),
        ("SELECT sum(f) FROM t", "sum of floats, intervals or jsonb"),
        ("SELECT avg(i) FROM t", "avg of floats, intervals or jsonb"),
        ("SELECT min(f) FROM t", "min of floats, intervals or jsonb"),
        ("SELECT stddev(b) FROM t", "stddev"),
        ("SELECT f, count(*) FROM t GROUP BY f", "GROUP BY of floats, intervals or jsonb"),
        ("SELECT DISTINCT f FROM t", "DISTINCT of floats, intervals or jsonb"),
        ("SELECT j FROM t UNION SELECT j FROM u", "DISTINCT of floats, intervals or jsonb"),
        (
            "SELECT ARRAY[f] FROM t INTERSECT SELECT ARRAY[f] FROM u",
            "DISTINCT of floats, intervals or jsonb",
        ),
        (
            "WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT * FROM r",
            "WITH RECURSIVE",
        ),
    ],
)
def test_not_repeatable(query: str, because: str) -> None:
    assert why_not_repeatable(NAMES.bind(query).plan) == because
