"""The logical plan of a query: its text in EXPLAIN, and its properties."""

from __future__ import annotations

import pytest

from support.bound import Names
from tidemill.sql.bind import linearity
from tidemill.sql.plan.explain import explain, explain_reaches
from tidemill.sql.plan.operators import Named, Scan, is_ordered, walk_plan
from tidemill.sql.plan.reach import reaches
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

TABLE = RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT)))
NAMES = Names({"t": TABLE, "u": TABLE}, {"few": "SELECT a, b FROM t WHERE b > 1"})


def shown(query: str) -> str:
    return "\n".join(explain(NAMES.bind(query).plan))


def test_a_group_over_a_join() -> None:
    query = (
        "SELECT a, count(*) FILTER (WHERE t.b > 2), array_agg(DISTINCT u.s ORDER BY u.s DESC) "
        "FROM t JOIN u USING (a) WHERE a > $1 AND t.s = 'it''s' GROUP BY a HAVING count(*) > 1 "
        "ORDER BY 2 DESC, max(u.b) LIMIT 3 OFFSET 1"
    )
    assert shown(query) == (
        "Limit 3, Offset 1\n"
        "  Project c0 = t4.c0, c1 = t4.c1, c2 = t4.c2\n"
        "    Sort by c1 desc, h0\n"
        "      Query as t4\n"
        "        Project c0 = t3.g0, c1 = t3.a0, c2 = t3.a1, h0 = t3.a2\n"
        "          Filter (t3.a3 > 1)\n"
        "            Query as t3\n"
        "              Group by g0 = t1.a: a0 = count(*) filter (t1.b > 2), "
        "a1 = array_agg(distinct t2.s order by t2.s desc), a2 = max(t2.b), a3 = count(*)\n"
        "                Filter ((t1.a > $1) and (t1.s = 'it''s'))\n"
        "                  Join on (t1.a = t2.a)\n"
        "                    Scan tm_in_0 as t1\n"
        "                    Scan tm_in_1 as t2"
    )


def test_subqueries_and_windows() -> None:
    query = (
        "SELECT b, (SELECT max(b) FROM u WHERE u.a = t.a), rank() OVER (PARTITION BY a ORDER BY b) "
        "FROM t WHERE EXISTS (SELECT 1 FROM u) AND a IN (SELECT b FROM u)"
    )
    assert shown(query) == (
        "Project c0 = t1.b, c1 = subquery 1, c2 = rank() over (partition by t1.a order by t1.b)\n"
        "  Subquery 1\n"
        "    Project c0 = t5.a0\n"
        "      Query as t5\n"
        "        Group by all rows: a0 = max(t4.b)\n"
        "          Filter (t4.a = t1.a)\n"
        "            Scan tm_in_1 as t4\n"
        "  Filter (exists subquery 2 and (t1.a) in subquery 3)\n"
        "    Subquery 2\n"
        "      Project c0 = 1\n"
        "        Scan tm_in_1 as t2\n"
        "    Subquery 3\n"
        "      Project c0 = t3.b\n"
        "        Scan tm_in_1 as t3\n"
        "    Scan tm_in_0 as t1"
    )


def test_rows_of_functions_and_recursion() -> None:
    assert shown("SELECT a, unnest(ARRAY[b, 1]) FROM t UNION ALL VALUES (1, 2)") == (
        "Union all\n"
        "  Project c0 = t5.c0, c1 = t5.c1\n"
        "    Query as t5\n"
        "      Project c0 = t3.x0, c1 = t3.e0\n"
        "        Query as t3\n"
        "          Expand e0 = t2.x1; keeps t2.x0\n"
        "            Query as t2\n"
        "              Project x0 = t1.a, x1 = rows unnest(array(t1.b, 1))\n"
        "                Scan tm_in_0 as t1\n"
        "  Project c0 = t6.c0, c1 = t6.c1\n"
        "    Query as t6\n"
        "      Project c0 = t4.c0, c1 = t4.c1\n"
        "        Query as t4\n"
        "          Rows of VALUES: 1"
    )
    query = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT n FROM r"
    assert "Previous round of" in shown(query) and "Filter (t2.c0 < 9)" in shown(query)


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t", False),
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t ORDER BY b", True),
        ("SELECT DISTINCT a FROM t ORDER BY 1 LIMIT 2", True),
        ("(SELECT a FROM t ORDER BY b) LIMIT 2", True),
        ("SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b", True),
        ("SELECT a FROM t ORDER BY a FETCH FIRST 1 ROW WITH TIES", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a) x", False),
        ("SELECT a FROM t LIMIT 2", False),
        ("SELECT a FROM t UNION SELECT a FROM u ORDER BY 1", True),
        ("VALUES (1), (2) ORDER BY 1", True),
    ],
)
def test_ordered(query: str, ordered: bool) -> None:
    assert is_ordered(NAMES.bind(query).plan) is ordered


def test_a_query_that_is_named_twice_is_one_object() -> None:
    plan = NAMES.bind("WITH x AS (SELECT a FROM few) SELECT * FROM x AS y, x AS z").plan
    inner = [o.input for o in walk_plan(plan) if isinstance(o, Named) and o.alias in ("t3", "t4")]
    assert len(inner) == 2 and inner[0] is inner[1]
    assert sum(isinstance(o, Scan) for o in walk_plan(plan)) == 2


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        # Linear: a row's answer depends on the row alone.
        ("SELECT a + 1 FROM few WHERE a > 2 UNION ALL SELECT unnest(ARRAY[a, b]) FROM u ORDER BY 1", []),
        ("SELECT t.a, e FROM t, unnest(ARRAY[a, b]) AS e", []),
        ("SELECT a, (SELECT max(x) FROM unnest(ARRAY[a, b]) AS x) FROM t LIMIT ALL", []),
        # Local to a key.
        ("SELECT a, max(b) FROM t GROUP BY a, b + 1", ["GROUP BY: rows of equal t1.a, (t1.b + 1)"]),
        (
            "SELECT a, b, count(*) FROM t GROUP BY ROLLUP (a, b)",
            [
                "GROUP BY: rows of equal t1.a, t1.b",
                "GROUP BY: rows of equal t1.a",
                "an aggregate: sums over all rows",
            ],
        ),
        ("SELECT t.a FROM t JOIN u USING (a, s)", ["a join: rows of equal t1.a = t2.a, t1.s = t2.s"]),
        (
            "SELECT t.a FROM t, u WHERE t.a + 1 = u.b AND t.b > 1",
            ["a join: rows of equal (t1.a + 1) = t2.b"],
        ),
        (
            "SELECT t.a FROM t FULL JOIN u ON u.a = t.a AND t.b > u.b",
            ["a full join: rows of equal t1.a = t2.a"],
        ),
        (
            "SELECT x.a FROM t AS x JOIN t AS y ON x.a > y.a LEFT JOIN u ON u.b = x.b WHERE x.s = y.s",
            ["a left join: rows of equal t1.b = t3.b", "a join: rows of equal t1.s = t2.s"],
        ),
        ("SELECT DISTINCT a FROM t", ["DISTINCT: equal rows"]),
        ("SELECT DISTINCT ON (b) a FROM t", ["DISTINCT ON: rows of equal t1.b"]),
        ("SELECT a FROM t EXCEPT ALL SELECT a FROM u", ["EXCEPT ALL: equal rows"]),
        ("SELECT a FROM t UNION SELECT a FROM u", ["UNION: equal rows"]),
        (
            "SELECT rank() OVER w, sum(a) OVER (PARTITION BY s) FROM t WINDOW w AS (PARTITION BY b)",
            ["a window function: rows of equal t1.b", "a window function: rows of equal t1.s"],
        ),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u)", ["IN: rows of equal t1.a"]),
        (
            "SELECT a, (SELECT max(b) FROM u WHERE u.a = t.a AND u.b > t.b) FROM t",
            ["a subquery: rows of equal t1.a = t2.a"],
        ),
        (
            "SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
            ["EXISTS: rows of equal t1.a = t2.a"],
        ),
        (
            "SELECT x.b FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a ORDER BY b LIMIT 3) AS x",
            ["LATERAL: rows of equal t1.a = t2.a"],
        ),
        # Neither.
        ("SELECT count(*), sum(a), avg(b) FROM t", ["an aggregate: sums over all rows"]),
        (
            "SELECT sum(a::float8) FROM t",
            ["an aggregate: all rows, because sum() does not follow from sums of what changed"],
        ),
        (
            "SELECT t.a FROM t JOIN u ON t.a > u.a",
            ["a join: all rows, because no column of one side has to equal one of the other"],
        ),
        # The condition of WHERE comes after rows were filled up with NULLs.
        (
            "SELECT t.a FROM t LEFT JOIN u ON t.a > u.a WHERE t.b = u.b",
            ["a left join: all rows, because no column of one side has to equal one of the other"],
        ),
        # Both sides of the equality are of one side of the join.
        (
            "SELECT t.a FROM t JOIN u ON t.a = t.b AND u.a = 1",
            ["a join: all rows, because no column of one side has to equal one of the other"],
        ),
        (
            "SELECT t.a FROM t JOIN u ON t.a = u.a OR t.b = u.b",
            ["a join: all rows, because no column of one side has to equal one of the other"],
        ),
        (
            "SELECT a FROM t WHERE a NOT IN (SELECT b FROM u)",
            ["IN as a value: all rows, because a NULL in the subquery concerns all rows"],
        ),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u JOIN t AS x ON x.s > u.s WHERE u.a = t.a)",
            ["EXISTS: all rows, because it is correlated and reads more than one relation"],
        ),
        ("SELECT rank() OVER () FROM t", ["a window function: all rows, because it has no PARTITION BY"]),
        (
            "SELECT a FROM t ORDER BY a LIMIT 3",
            ["LIMIT: all rows, because it takes its rows from the order of all"],
        ),
    ],
)
def test_what_a_changed_row_reaches(query: str, lines: list[str]) -> None:
    assert explain_reaches(NAMES.bind(query).plan) == lines


@pytest.mark.parametrize(
    "query", ["SELECT a FROM few", "SELECT a FROM t UNION ALL SELECT unnest(ARRAY[a]) FROM u"]
)
def test_what_is_linear_reaches_nothing_else(query: str) -> None:
    assert linearity(NAMES.bind(query)).because is None and not reaches(NAMES.bind(query).plan)
