"""Which queries are followed on changes alone: each operator, and which one is named where it is not."""

from __future__ import annotations

import pytest

from support.bound import Names
from tidemill.sql.bind import linearity
from tidemill.sql.bind.linear import MAX_BRANCHES, MAX_STEPS
from tidemill.sql.functions.tree import sql_text
from tidemill.types.model import INT4, INT8, TEXT, Column, RelationDesc

TABLE = RelationDesc((Column("a", INT4), Column("b", INT4), Column("s", TEXT)))
NAMES = Names(
    {"t": TABLE, "u": TABLE},
    {
        "few": "SELECT a, b FROM t WHERE b > 1",
        "sums": "SELECT a + b AS c FROM t",
        "counts": "SELECT a, count(*) AS n FROM t GROUP BY a",
    },
)


@pytest.mark.parametrize(
    ("query", "relations"),
    [
        ("SELECT * FROM t", ["t"]),
        ("SELECT a + 1, upper(s) FROM t WHERE b > 3 AND s LIKE 'x%'", ["t"]),
        ("SELECT CASE WHEN a IN (1, 2) THEN s::text END FROM t", ["t"]),
        ("SELECT * FROM few", ["t"]),
        ("SELECT a FROM (SELECT a FROM few) x WHERE a IS NULL", ["t"]),
        ("SELECT a FROM t UNION ALL SELECT b FROM u", ["t", "u"]),
        ("SELECT a FROM t UNION ALL SELECT b FROM t UNION ALL VALUES (1), (2)", ["t", "t"]),
        ("SELECT x + 1 FROM (SELECT a AS x FROM t UNION ALL SELECT a FROM u) AS y", ["t", "u"]),
        ("WITH x AS (SELECT a FROM t) SELECT a FROM x UNION ALL SELECT 5", ["t"]),
        ("SELECT a FROM t ORDER BY b", ["t"]),
        ("SELECT a FROM t ORDER BY b LIMIT ALL OFFSET NULL", ["t"]),
        ("VALUES (1), (2)", []),
        ("SELECT * FROM generate_series(1, 3)", []),
        ("SELECT a, unnest(ARRAY[a, b]) FROM t", ["t"]),
        ("SELECT a, g FROM t, LATERAL unnest(ARRAY[a, b]) AS g WHERE g > 1", ["t"]),
        (
            "SELECT a, g, h FROM few LEFT JOIN unnest(ARRAY[a]) AS g ON g > 1, generate_series(1, 3) AS h",
            ["t"],
        ),
        ("SELECT generate_series(1, a), unnest(ARRAY[s]) FROM t WHERE b > 1", ["t"]),
    ],
)
def test_linear(query: str, relations: list[str]) -> None:
    bound = NAMES.bind(query)
    found = linearity(bound)
    assert found.because is None
    assert [bound.inputs[b.placeholder] for b in found.branches] == relations


@pytest.mark.parametrize(
    ("query", "because"),
    [
        ("SELECT t.a FROM t JOIN u ON t.a = u.a", "a join"),
        ("SELECT t.a FROM t, u", "a join"),
        ("SELECT t.a FROM (t JOIN u ON t.a = u.a)", "a join"),
        ("SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b", "DISTINCT ON"),
        ("SELECT a FROM t ORDER BY a FETCH FIRST 1 ROW WITH TIES", "WITH TIES"),
        ("SELECT a, array_agg(b) FROM t GROUP BY ROLLUP (a)", "GROUP BY"),
        ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t", "an aggregate function"),
        ("SELECT corr(a, b), jsonb_agg(s) FROM t", "an aggregate function"),
        ("SELECT a, sum(b) OVER (ORDER BY a GROUPS 1 PRECEDING) FROM t", "a window function"),
        ("SELECT ARRAY(SELECT a FROM u) FROM t", "a subquery in an expression"),
        ("SELECT a IN (SELECT a FROM u) FROM t", "a subquery in an expression"),
        (
            "WITH RECURSIVE r (n) AS (SELECT a FROM t UNION ALL SELECT n + 1 FROM r) SELECT n FROM r",
            "WITH RECURSIVE",
        ),
        ("SELECT t.a FROM t RIGHT JOIN generate_series(1, 3) AS g ON g = t.a", "a join"),
        ("SELECT t.a FROM t, LATERAL (SELECT a FROM u WHERE u.a = t.a) AS g", "a join"),
        ("SELECT a FROM t GROUP BY a", "GROUP BY"),
        ("SELECT * FROM counts WHERE n > 1", "GROUP BY"),
        ("SELECT count(*) FROM t", "an aggregate function"),
        ("SELECT max(a) FROM t HAVING max(b) > 1", "an aggregate function"),
        ("SELECT DISTINCT a FROM t", "DISTINCT"),
        ("SELECT a FROM t ORDER BY a LIMIT 3", "LIMIT"),
        ("SELECT a FROM t OFFSET 2", "OFFSET"),
        ("SELECT a FROM t UNION SELECT a FROM u", "UNION"),
        ("SELECT a FROM t EXCEPT ALL SELECT a FROM u", "EXCEPT"),
        ("SELECT a FROM t INTERSECT SELECT a FROM u", "INTERSECT"),
        ("SELECT a FROM t WHERE a IN (SELECT a FROM u)", "a subquery in an expression"),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", "a subquery in an expression"),
        ("SELECT (SELECT max(a) FROM u) FROM t", "a subquery in an expression"),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", "a window function"),
        ("SELECT a + sum(a) OVER () FROM t", "a window function"),
        ("SELECT a FROM t WHERE random() > 0.5", "random()"),
        ("SELECT a FROM t UNION ALL SELECT count(*) FROM u", "an aggregate function"),
        (
            " UNION ALL ".join(["SELECT a FROM t"] * (MAX_BRANCHES + 1)),
            f"UNION ALL of more than {MAX_BRANCHES} relations",
        ),
    ],
)
def test_not_linear(query: str, because: str) -> None:
    assert linearity(NAMES.bind(query)).because == because


@pytest.mark.parametrize(
    ("query", "conditions", "outputs"),
    [
        (
            "SELECT a + 1 FROM t",
            [],
            ["CAST((CAST(`r`.`a` AS BIGINT) + CAST(CAST(1 AS INT) AS BIGINT)) AS INT)"],
        ),
        (
            "SELECT b FROM t WHERE a > 1 AND s = 'x'",
            ["((`r`.`a` > CAST(1 AS INT)) AND (`r`.`s` = 'x'))"],
            ["`r`.`b`"],
        ),
        # A condition that may fail is not looked at where another has said no, or NULL.
        (
            "SELECT a FROM t WHERE (a <> 0 AND b > 1) AND a + 1 > 1 AND b = 2",
            [
                "((`r`.`a` <> CAST(0 AS INT)) AND (`r`.`b` > CAST(1 AS INT)))",
                "(CAST((CAST(`r`.`a` AS BIGINT) + CAST(CAST(1 AS INT) AS BIGINT)) AS INT) > CAST(1 AS INT))",
                "(`r`.`b` = CAST(2 AS INT))",
            ],
            ["`r`.`a`"],
        ),
        # Through views: columns take their places, conditions add up.
        (
            "SELECT b FROM few WHERE a = -1",
            ["((`r`.`b` > CAST(1 AS INT)) AND (`r`.`a` = CAST(-1 AS INT)))"],
            ["`r`.`b`"],
        ),
        ("SELECT c FROM sums", [], ["CAST((CAST(`r`.`a` AS BIGINT) + CAST(`r`.`b` AS BIGINT)) AS INT)"]),
        ("SELECT a FROM t ORDER BY b", [], ["`r`.`a`"]),
    ],
)
def test_flat(query: str, conditions: list[str], outputs: list[str]) -> None:
    (branch,) = linearity(NAMES.bind(query)).branches
    assert branch.flat is not None
    assert [sql_text(c) for c in branch.flat.conditions] == conditions
    assert [sql_text(o) for o in branch.flat.outputs] == outputs


@pytest.mark.parametrize(
    "query",
    [
        # An expression is not written in the place of a column that others name.
        "SELECT c FROM sums WHERE c > 1",
        "SELECT c + 1 FROM sums",
        # Functions in Python are evaluated for every row.
        "SELECT (a::float8)::text FROM t WHERE a > 1",
        "SELECT a FROM t WHERE (a::float8)::text > 'x'",
        "SELECT a FROM t WHERE " + " AND ".join(f"s::int > {n}" for n in range(MAX_STEPS + 1)),
    ],
)
def test_not_flat(query: str) -> None:
    (branch,) = linearity(NAMES.bind(query)).branches
    assert branch.flat is None


@pytest.mark.parametrize(
    "may_fail", ["l + l > 1", "l / l > 1", "l * l > 1", "-l > 1", "s::int > 1", "l::int > 1"]
)
def test_what_may_fail_is_looked_at_after_what_comes_before_it(may_fail: str) -> None:
    names = Names({"t": RelationDesc((Column("a", INT4), Column("l", INT8), Column("s", TEXT)))})
    (branch,) = linearity(names.bind(f"SELECT a FROM t WHERE a > 0 AND {may_fail}")).branches
    assert branch.flat is not None
    first, second = (sql_text(c) for c in branch.flat.conditions)
    assert "`a`" in first and "`a`" not in second


def test_the_relation_of_a_branch_can_be_another() -> None:
    (branch,) = linearity(NAMES.bind("SELECT a FROM few WHERE a > 1")).branches
    assert sql_text(branch.over("x")) == (
        "SELECT `t2`.`c0` AS `c0`, `t2`.`mz_row` AS `mz_row` "
        "FROM (SELECT `t1`.`a` AS `c0`, `t1`.`b` AS `c1`, "
        "`t1`.`mz_row` AS `mz_row` FROM `x` AS `t1` WHERE (`t1`.`b` > CAST(1 AS INT))) AS `t2` "
        "WHERE (`t2`.`c0` > CAST(1 AS INT))"
    )


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a, unnest(ARRAY[a, b]) FROM t",
        # What makes the rows is needed, though nobody asks for its values; and once, though two do.
        "SELECT a FROM (SELECT a, unnest(ARRAY[a, b]) FROM t) x",
        "SELECT e AS x, e AS y FROM (SELECT unnest(ARRAY[a, b]) AS e FROM t) x",
        "SELECT e FROM (SELECT unnest(ARRAY[a, b]) AS e FROM t) x WHERE e > 1",
    ],
)
def test_rows_of_one_row_are_made_once(query: str) -> None:
    (branch,) = linearity(NAMES.bind(query)).branches
    assert sql_text(branch.query).count("explode(") == 1
    assert branch.flat is None
