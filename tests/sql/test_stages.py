"""Which stages a query has: their operators and keys, by what they look rows up, and why a query has none."""

from __future__ import annotations

import pytest

from support.bound import Names
from tidemill.sql.bind.incremental import keyed_stages, why_not_incremental
from tidemill.sql.plan.explain import explain_rules
from tidemill.types.model import FLOAT8, INT4, INT8, INTERVAL, NUMERIC, TEXT, TIMESTAMP, Column, RelationDesc


def table(**columns: object) -> RelationDesc:
    return RelationDesc(tuple(Column(name, t) for name, t in columns.items()))  # pyright: ignore[reportArgumentType]


NAMES = Names(
    {
        "t": table(a=INT4, b=INT4, s=TEXT, n=NUMERIC, f=FLOAT8, i=INTERVAL, l=INT8),
        "u": table(a=INT4, b=INT4, s=TEXT, l=INT8),
        # Of Nexmark.
        "person": table(id=INT8, name=TEXT, city=TEXT),
        "auction": table(id=INT8, seller=INT8, category=INT4, expires=TIMESTAMP, reserve=NUMERIC),
        "bid": table(auction=INT8, bidder=INT8, price=NUMERIC, at=TIMESTAMP),
        # Of TPC-H.
        "customer": table(c_custkey=INT8, c_name=TEXT, c_mktsegment=TEXT, c_nationkey=INT4),
        "orders": table(o_orderkey=INT8, o_custkey=INT8, o_orderdate=TIMESTAMP, o_orderpriority=TEXT),
        "lineitem": table(l_orderkey=INT8, l_suppkey=INT8, l_quantity=NUMERIC, l_price=NUMERIC, l_flag=TEXT),
        "supplier": table(s_suppkey=INT8, s_name=TEXT, s_nationkey=INT4),
        "nation": table(n_nationkey=INT4, n_name=TEXT),
    },
    {"counts": "SELECT a, count(*) AS c FROM t GROUP BY a"},
)


def shown(query: str) -> str:
    bound = NAMES.bind(query)
    lines: list[str] = []
    for keyed in keyed_stages(bound):
        reads = ", ".join(
            f"one row of {i.source}"
            if i.single
            else f"{bound.inputs.get(i.source, i.source)}({', '.join(i.key)})"
            for i in keyed.stage.inputs
        )
        rules = "; ".join(explain_rules(keyed.stage)) or "linear"
        if keyed.stage.recalled:
            rules += f"; its answers by {', '.join(keyed.stage.recalled)}"
        lines.append(f"{rules} <- {reads}")
    return "\n".join(lines)


CASES = """
SELECT a, count(*) FROM t GROUP BY a
> sums, for each t1.a <- t(a)
> linear <- stage_0()

SELECT a, s, count(*) FROM t WHERE b > 1 GROUP BY a, s HAVING max(b) > 2
> GROUP BY, for each t1.a, t1.s <- t(a, s)

SELECT a + b, count(*) FROM t GROUP BY a + b
> linear <- t()
> sums, for each (t1.a + t1.b) <- stage_0(c2)
> linear <- stage_1()

SELECT a, b, count(*) FROM t GROUP BY a, ROLLUP (b, s)
> GROUP BY, for each t1.a <- t(a)

SELECT DISTINCT a, b FROM t ORDER BY b
> DISTINCT, for each t1.a, t1.b <- t(a, b)

SELECT t.b, u.b FROM t, u WHERE t.a = u.a AND t.s = u.s AND t.b < u.b
> join, for each t1.a, t1.s <- t(a, s), u(a, s)

SELECT t.b, u.b FROM t JOIN u ON t.a = u.l
> linear <- t()
> join, for each t1.a::bigint <- stage_0(c2), u(l)

SELECT t.b FROM t LEFT JOIN u ON t.a = u.a AND u.b > 1 WHERE u.s IS NULL
> left join, for each t1.a <- t(a), u(a)

SELECT a, t.s FROM t FULL JOIN u USING (a)
> full join, for each t1.a <- t(a), u(a)

SELECT x.a, y.b FROM t x JOIN t y ON x.a = y.b
> join, for each t1.a <- t(a), t(b)

SELECT t.a, count(*), max(u.b) FROM t JOIN u USING (a) GROUP BY t.a, t.b
> GROUP BY, for each t1.a <- t(a), u(a)

SELECT t.b, count(*) FROM t JOIN u USING (a) GROUP BY t.b
> join, for each t1.a <- t(a), u(a)
> sums, for each t1.b <- stage_0(c0)
> linear <- stage_1()

SELECT t.b FROM t JOIN u ON t.a = u.a JOIN counts ON counts.a = u.a
> join, for each t2.a <- t(a), u(a)

SELECT c, count(*) FROM counts GROUP BY c
> sums, for each t1.a <- t(a)
> linear <- stage_0()
> sums, for each t3.c1 <- stage_1(c0)
> linear <- stage_2()

SELECT a FROM t WHERE b IN (SELECT b FROM u)
> a subquery, for each t1.b <- u(b), t(b)

SELECT a, (SELECT max(b) FROM u WHERE u.a = t.a AND u.s = t.s) FROM t
> a subquery, for each t1.a, t1.s <- u(a, s), t(a, s)

SELECT a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a) AND b IN (SELECT b FROM u)
! a subquery that has no equality with the query around it

SELECT a, rank() OVER (PARTITION BY a, s ORDER BY b), count(*) OVER (PARTITION BY s) FROM t
> a window function, for each t1.s <- t(s)

SELECT a, b FROM t UNION ALL SELECT a, count(*) FROM u GROUP BY a
> sums, for each t2.a <- u(a)
> linear <- t(), stage_0()

SELECT a, b FROM t EXCEPT SELECT a, b FROM u
> EXCEPT, for each t3.c0, t3.c1 <- t(a, b), u(a, b)

SELECT count(*) FROM t
> sums <- t()
> linear <- stage_0()
SELECT a, count(*) FROM t GROUP BY ROLLUP (a)
> sums, for each t1.a <- t(a)
> sums <- t()
> linear <- stage_0(), stage_1()
SELECT a, max(b) FROM t GROUP BY ROLLUP (a)
! GROUPING SETS without a common key
SELECT a FROM t ORDER BY a LIMIT 3
! LIMIT over all rows
SELECT a FROM t WHERE b > (SELECT avg(b) FROM t)
> sums <- t()
> linear <- stage_0()
> linear <- t(), one row of stage_1
SELECT a FROM t WHERE b > (SELECT max(b) FROM t)
! an aggregate over all rows
SELECT a FROM t WHERE b > (SELECT b FROM u)
! a subquery that has no equality with the query around it
SELECT a FROM t WHERE a NOT IN (SELECT a FROM u)
> sums <- u()
> linear <- stage_0()
> a subquery, for each t1.a <- u(a), t(a), one row of stage_1
SELECT a FROM t WHERE (a NOT IN (SELECT a FROM u)) IS NULL
! a subquery that has no equality with the query around it
SELECT a, sum(f) FROM t GROUP BY a HAVING count(*) > (SELECT count(*) FROM u)
! sum() of double precision
SELECT t.a FROM t JOIN u ON t.a > u.a
! a join without an equality of columns of both sides
SELECT t.a FROM t JOIN u ON t.i = u.b * interval '1 day'
! a join without an equality of columns of both sides
SELECT row_number() OVER (ORDER BY a) FROM t
! a window function without a common PARTITION BY
WITH RECURSIVE r AS (SELECT a FROM t UNION ALL SELECT a + 1 FROM r WHERE a < 9) SELECT * FROM r
! WITH RECURSIVE
SELECT a, random() FROM t GROUP BY a
! random()
SELECT a, sum(f) FROM t GROUP BY a
> GROUP BY, for each t1.a; its answers by c0 <- t(a)
SELECT sum(f) FROM t GROUP BY a
! sum() of double precision
SELECT a, avg(DISTINCT f) FROM t GROUP BY a
> GROUP BY, for each t1.a; its answers by c0 <- t(a)
SELECT a + 1, avg(f) FROM t GROUP BY a + 1 HAVING count(*) > 1 ORDER BY 2
> linear <- t()
> GROUP BY, for each (t1.a + 1); its answers by c0 <- stage_0(c2)
SELECT t.b, sum(t.f) FROM t JOIN u USING (a) GROUP BY t.b
> join, for each t1.a <- t(a), u(a)
> GROUP BY, for each t1.b; its answers by c0 <- stage_0(c0)
SELECT u.a, x.z FROM u LEFT JOIN (SELECT a, sum(f) AS z FROM t GROUP BY a) x ON u.a = x.a
> left join, for each t1.a; its answers by c0 <- u(a), t(a)
SELECT z, count(*) FROM (SELECT a, sum(f) AS z FROM t GROUP BY a) x GROUP BY z
! sum() of double precision
SELECT a, b FROM u UNION ALL SELECT a, sum(f) FROM t GROUP BY a
> GROUP BY, for each t1.a; its answers by c0 <- u(a), t(a)
SELECT a, (SELECT sum(f) FROM t WHERE t.a = u.a) FROM u
> a subquery, for each t1.a; its answers by c0 <- t(a), u(a)
SELECT a, min(f), count(f) FROM t GROUP BY a
> GROUP BY, for each t1.a <- t(a)
SELECT a, array_agg(b) FROM t GROUP BY a
> GROUP BY, for each t1.a; its answers by c0 <- t(a)
SELECT a, s, string_agg(s, ',' ORDER BY b) FROM t GROUP BY a, s
> GROUP BY, for each t1.a, t1.s; its answers by c0, c1 <- t(a, s)
SELECT a, string_agg(s, ',' ORDER BY b, s), array_agg(DISTINCT b) FROM t GROUP BY a
> GROUP BY, for each t1.a <- t(a)
SELECT a, any_value(b) FROM t GROUP BY a
> GROUP BY, for each t1.a; its answers by c0 <- t(a)
SELECT f::text, count(*) FROM t GROUP BY f::text
! a float as text
SELECT DISTINCT ON (a) a, b, s FROM t ORDER BY a, b
> DISTINCT ON, for each t1.a; its answers by c0 <- t(a)
SELECT DISTINCT ON (a) b, s FROM t ORDER BY a, b
! DISTINCT ON with rows that may be equal in the order
SELECT DISTINCT ON (a) a, b, s FROM t ORDER BY a, b, s
> DISTINCT ON, for each t1.a <- t(a)
SELECT a, b, s, row_number() OVER (PARTITION BY a ORDER BY b) FROM t
> a window function, for each t1.a; its answers by c0 <- t(a)
SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) FROM t
> a window function, for each t1.a <- t(a)
SELECT a, sum(b) OVER (PARTITION BY a ORDER BY s ROWS 2 PRECEDING) FROM t
> a window function, for each t1.a; its answers by c0 <- t(a)
SELECT t.a, z.b FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a LIMIT 1) z
> LATERAL, for each t1.a; its answers by c0 <- t(a), u(a)
SELECT t.b, z.b FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a ORDER BY s LIMIT 1) z
! LIMIT of rows that may be equal in the order
SELECT t.a, z.b FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a ORDER BY b LIMIT 1) z
> LATERAL, for each t1.a <- t(a), u(a)

SELECT a.category, avg(w.price) FROM auction a JOIN (SELECT auction, max(price) AS price FROM bid
  GROUP BY auction) w ON w.auction = a.id GROUP BY a.category
> join, for each t1.id <- auction(id), bid(auction)
> sums, for each t1.category <- stage_0(c0)
> linear <- stage_1()

SELECT p.name, a.id FROM auction a JOIN person p ON a.seller = p.id WHERE a.category = 10
> join, for each t1.seller <- auction(seller), person(id)

SELECT * FROM (SELECT auction, bidder, price, at, row_number() OVER (PARTITION BY auction ORDER BY price
  DESC, at, bidder) AS r FROM bid) x WHERE r <= 10
> a window function, for each t1.auction <- bid(auction)

SELECT p.id, p.name FROM person p WHERE EXISTS (SELECT 1 FROM auction a WHERE a.seller = p.id)
> a subquery, for each t1.id <- auction(seller), person(id)

SELECT l_flag, sum(l_quantity), avg(l_price), count(*) FROM lineitem GROUP BY l_flag
> sums, for each t1.l_flag <- lineitem(l_flag)
> linear <- stage_0()

SELECT l_orderkey, sum(l_price), o_orderdate FROM customer, orders, lineitem WHERE c_custkey = o_custkey
  AND l_orderkey = o_orderkey AND c_mktsegment = 'x' GROUP BY l_orderkey, o_orderdate
> join, for each t1.c_custkey <- customer(c_custkey), orders(o_custkey)
> join, for each t2.o_orderkey <- stage_0(c3), lineitem(l_orderkey)
> sums, for each t3.l_orderkey, t2.o_orderdate <- stage_1(c0, c1)
> linear <- stage_2()

SELECT o_orderpriority, count(*) FROM orders WHERE EXISTS (SELECT 1 FROM lineitem
  WHERE l_orderkey = o_orderkey AND l_flag = 'R') GROUP BY o_orderpriority
> a subquery, for each t1.o_orderkey <- lineitem(l_orderkey), orders(o_orderkey)
> sums, for each t1.o_orderpriority <- stage_0(c0)
> linear <- stage_1()

SELECT n_name, sum(l_price) FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem
  ON l_orderkey = o_orderkey JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
  JOIN nation ON s_nationkey = n_nationkey GROUP BY n_name
> join, for each t1.c_custkey <- customer(c_custkey), orders(o_custkey)
> join, for each t2.o_orderkey <- stage_0(c1), lineitem(l_orderkey)
> join, for each t3.l_suppkey, t1.c_nationkey <- stage_1(c1, c2), supplier(s_suppkey, s_nationkey)
> join, for each t4.s_nationkey <- stage_2(c1), nation(n_nationkey)
> sums, for each t5.n_name <- stage_3(c0)
> linear <- stage_4()

SELECT c_count, count(*) FROM (SELECT c_custkey, count(o_orderkey) AS c_count FROM customer LEFT JOIN orders
  ON c_custkey = o_custkey GROUP BY c_custkey) x GROUP BY c_count
> left join, for each t1.c_custkey <- customer(c_custkey), orders(o_custkey)
> sums, for each t1.c_custkey <- stage_0(c0)
> linear <- stage_1()
> sums, for each t4.c1 <- stage_2(c0)
> linear <- stage_3()

SELECT s_name FROM supplier WHERE s_suppkey IN (SELECT l_suppkey FROM lineitem GROUP BY l_suppkey
  HAVING sum(l_quantity) > 300)
> a subquery, for each t1.s_suppkey <- lineitem(l_suppkey), supplier(s_suppkey)
"""


def cases() -> list[tuple[str, str]]:
    made: list[tuple[list[str], list[str]]] = [([], [])]
    for line in CASES.strip().splitlines():
        if line.startswith(("> ", "! ")):
            made[-1][1].append(line)
        elif line:
            if made[-1][1]:
                made.append(([], []))
            made[-1][0].append(line.strip())
    return [(" ".join(query), "\n".join(expected)) for query, expected in made]


@pytest.mark.parametrize(("query", "expected"), cases())
def test_stages(query: str, expected: str) -> None:
    because = why_not_incremental(NAMES.bind(query))
    found = f"! {because.because}" if because is not None else shown(query)
    assert found.replace("\n", "\n> ") in (expected, expected.removeprefix("> "))
