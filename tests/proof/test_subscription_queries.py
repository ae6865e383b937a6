"""Durable subscriptions to queries that are not linear: a reader that continues anywhere is sent the same
changes, at the same times, as one that never stopped, and together they are what SELECT says."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import psycopg
import pytest

Row = tuple[Any, ...]

QUERIES = {
    "joined": """SELECT c.name, count(*) AS n, sum(o.amount) AS total, max(o.id) AS latest
        FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.name""",
    "distinct": """SELECT DISTINCT customer FROM orders WHERE amount > 3
        EXCEPT SELECT id FROM customers WHERE name IS NULL""",
    "linear": "SELECT id, upper(note) AS note FROM orders WHERE amount > 3",
}


def _read(dsn: str, name: str, position: int | None) -> list[tuple[int, Row]]:
    """All changes after the position, by time, as another session sees them."""
    at = "" if position is None else f", POSITION = {position}"
    found: list[tuple[int, Row]] = []
    with psycopg.connect(dsn, autocommit=True) as c:
        until = c.execute("SELECT mz_now()").fetchone()
        assert until is not None
        while True:
            fetch = f"FETCH ALL FROM SUBSCRIPTION {name} WITH (TIMEOUT = 2{at})"
            rows = c.execute(fetch.encode()).fetchall()
            found += [(int(time), tuple(row)) for time, progressed, *row in rows if not progressed]
            if rows and rows[-1][0] > until[0]:
                return found
            at = ""


@pytest.mark.chaos
@pytest.mark.parametrize("name", QUERIES)
def test_changes_are_computed_again(connection: psycopg.Connection[Any], dsn: str, name: str) -> None:
    dice = random.Random(name)
    schema = f"subscribed_{name}"
    connection.execute(f"CREATE SCHEMA {schema}".encode())
    connection.execute(f"SET search_path = {schema}".encode())
    connection.execute("CREATE TABLE customers (id int, name text)")
    connection.execute("CREATE TABLE orders (id int, customer int, amount int, note text)")
    connection.execute("INSERT INTO customers VALUES (1, 'anna'), (2, 'bert'), (3, NULL)")
    connection.execute("INSERT INTO orders VALUES (1, 1, 5, 'a'), (2, 1, 5, 'a'), (3, 2, 7, NULL)")
    connection.execute(f"CREATE SUBSCRIPTION s FOR ({QUERIES[name]})".encode())
    positions: list[int] = []
    for n in range(8):
        customer = dice.randint(1, 4)
        connection.execute(
            dice.choice(
                [
                    f"INSERT INTO orders VALUES ({n}, {customer}, {n}, 'x'), ({n}, 2, 9, NULL)",
                    f"UPDATE orders SET amount = amount + 1 WHERE customer = {customer}",
                    f"DELETE FROM orders WHERE id = {dice.randint(0, n)}",
                    f"UPDATE customers SET name = 'name {n}' WHERE id = {customer}",
                ]
            ).encode()
        )
        now = connection.execute("SELECT mz_now()").fetchone()
        assert now is not None
        positions.append(int(now[0]) + 1)
    whole = _read(dsn, f"{schema}.s", None)
    for position in dice.sample(positions, 3):
        again = _read(dsn, f"{schema}.s", position)
        assert Counter(again) == Counter((time, row) for time, row in whole if time >= position)
    result: Counter[Row] = Counter()
    for _, (diff, *row) in whole:
        result[tuple(row)] += diff
    selected = connection.execute(QUERIES[name].encode()).fetchall()
    assert {row: n for row, n in result.items() if n} == Counter(selected)
