"""Materialized views over a real socket: at each time they say what their query says AS OF that time, whoever
wrote sees it, and whoever subscribes can add it up."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, LiteralString, cast

import psycopg
import pytest
from psycopg import sql

Connection = psycopg.Connection[Any]
Answer = Counter[tuple[Any, ...]] | str

# Of every way in which a query is followed: filters and projections, unions, groups, joins, DISTINCT, LIMIT
# in an order, outer joins; in one stage and in several; errors that come and go; views over views.
QUERIES = {
    "picked": "SELECT k, v * 2 AS w FROM {a} WHERE v > 0",
    "both": "SELECT k, v FROM {a} UNION ALL SELECT v, k FROM {b} WHERE k <> 1",
    "sums": "SELECT k, count(*) AS n, sum(v) AS s FROM {a} GROUP BY k",
    "pairs": "SELECT x.k, x.v, y.v AS w FROM {a} x LEFT JOIN {b} y ON x.k = y.k",
    "few": "SELECT DISTINCT v FROM {a} ORDER BY v DESC LIMIT 2",
    "shares": "SELECT k, 12 / v AS share FROM {a}",
    "above": "SELECT n, count(*) AS m FROM {sums} GROUP BY n",
    "mixed": "SELECT p.w, s.n FROM {picked} p, {sums} s WHERE p.k = s.k",
    "chained": "SELECT x.v, count(*), sum(12 / y.v) FROM {a} x JOIN {b} y USING (k) GROUP BY x.v",
    "ranked": "SELECT * FROM (SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS r FROM {a}) x "
    "WHERE r < 3",
    "missing": "SELECT k, v FROM {a} x WHERE NOT EXISTS (SELECT 1 FROM {b} y WHERE y.k = x.k AND y.v >= x.v)",
}
WRITES = 7


class World:
    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection = connection
        self.dice = random.Random(seed)
        self.names = {n: sql.Identifier(f"{n}_{seed}") for n in ("a", "b", *QUERIES)}
        self.texts = {n: sql.SQL(cast("LiteralString", t)).format(**self.names) for n, t in QUERIES.items()}
        for table in ("a", "b"):
            self.run("CREATE TABLE {} (k int, v int)", table)
        self.write()
        for name, text in self.texts.items():
            connection.execute(sql.SQL("CREATE MATERIALIZED VIEW {} AS {}").format(self.names[name], text))

    def run(self, text: str, table: str, *values: int) -> None:
        self.connection.execute(sql.SQL(text).format(self.names[table]), values)  # pyright: ignore[reportArgumentType]

    def write(self) -> None:
        dice = self.dice
        table = dice.choice(["a", "a", "b"])
        match dice.randrange(5):
            case 0:
                self.run("DELETE FROM {} WHERE v = %s", table, dice.randrange(-1, 3))
            case 1:
                self.run("UPDATE {} SET v = v + 1 WHERE k = %s", table, dice.randrange(3))
            case _:
                for _ in range(dice.randrange(1, 3)):
                    # No zero at first: it is the error of one of the views.
                    v = dice.choice([-1, 1, 2, 3, 0])
                    self.run("INSERT INTO {} VALUES (%s, %s)", table, dice.randrange(3), v)

    def now(self) -> int:
        ((at,),) = self.connection.execute("SELECT mz_now()").fetchall()
        return int(at)

    def ask(self, query: sql.Composed, at: int | None = None) -> Answer:
        text = query if at is None else sql.SQL("{} AS OF {}").format(query, sql.Literal(at))
        try:
            return Counter(self.connection.execute(text).fetchall())
        except psycopg.DataError as e:
            return str(e.diag.message_primary)

    def view(self, name: str) -> sql.Composed:
        return sql.SQL("SELECT * FROM {}").format(self.names[name])


def test_a_view_is_its_query_at_every_time(connection: Connection) -> None:
    world = World(connection, 7)
    times: list[int] = []
    for _ in range(WRITES):
        world.write()
        # Now: a read that comes after a write sees it, through views over views too.
        name = world.dice.choice(sorted(QUERIES))
        assert world.ask(world.view(name)) == world.ask(world.texts[name]), name
        times.append(world.now())
    for name, text in world.texts.items():
        for at in world.dice.sample(times, 3):
            assert world.ask(world.view(name), at) == world.ask(text, at), (name, at)


def test_an_error_is_read_at_its_times_alone(connection: Connection) -> None:
    world = World(connection, 8)
    world.run("DELETE FROM {} WHERE v = 0", "a")
    before = world.now()
    world.run("INSERT INTO {} VALUES (1, 0)", "a")
    during = world.now()
    world.run("DELETE FROM {} WHERE v = 0", "a")
    after = world.now()
    view, query = world.view("shares"), world.texts["shares"]
    assert world.ask(view, during) == world.ask(query, during) == "division by zero"
    for at in (before, after):
        assert world.ask(view, at) == world.ask(query, at) != "division by zero"
    # Others do not hang on it.
    assert world.ask(world.view("sums"), during) == world.ask(world.texts["sums"], during)


@pytest.mark.parametrize("name", ["picked", "sums"])
def test_a_subscription_adds_up_to_the_view(connection: Connection, dsn: str, name: str) -> None:
    world = World(connection, 9 if name == "picked" else 10)
    begin = world.now()
    for _ in range(3):
        world.write()
    end = world.now()
    text = sql.SQL("SUBSCRIBE TO {} WITH (PROGRESS) AS OF {} UP TO {}").format(
        world.names[name], sql.Literal(begin), sql.Literal(end + 1)
    )
    rows: Counter[tuple[Any, ...]] = Counter()
    with psycopg.connect(dsn, autocommit=True) as other, other.cursor() as cursor:
        for at, progressed, diff, *row in cursor.stream(text):
            if not progressed:
                rows[tuple(row)] += diff
            elif int(at) > begin:
                # Everything before it is complete.
                assert +rows == world.ask(world.view(name), int(at) - 1)
    assert +rows == world.ask(world.view(name), end) == world.ask(world.texts[name], end)


def test_a_dropped_view_ends_its_subscriptions(connection: Connection, dsn: str) -> None:
    world = World(connection, 11)
    text = sql.SQL("SUBSCRIBE TO {} WITH (PROGRESS)").format(world.names["above"])
    with psycopg.connect(dsn, autocommit=True) as other, other.cursor() as cursor:
        rows = cursor.stream(text)
        next(rows)
        connection.execute(sql.SQL("DROP MATERIALIZED VIEW {}").format(world.names["above"]))
        with pytest.raises(psycopg.errors.UndefinedObject, match="was dropped"):
            for _ in rows:
                pass


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_who_reads_slowly_is_told_of_the_drop_too(connection: Connection, dsn: str, rows: int) -> None:
    """However far the reader was, and whatever of the view is missed first: the drop is what is told."""
    connection.execute("CREATE TABLE IF NOT EXISTS slow (k int)")
    connection.execute("CREATE MATERIALIZED VIEW slowly AS SELECT k FROM slow")
    with psycopg.connect(dsn) as other:
        other.execute("DECLARE c CURSOR FOR SUBSCRIBE TO slowly WITH (PROGRESS)")
        for _ in range(rows):
            assert len(other.execute("FETCH 1 c").fetchall()) == 1
        connection.execute("DROP MATERIALIZED VIEW slowly")
        with pytest.raises(psycopg.errors.UndefinedObject, match="was dropped"):
            while True:
                other.execute("FETCH ALL c")


def test_a_read_that_needs_no_latest_time_does_not_wait(connection: Connection, dsn: str) -> None:
    world = World(connection, 12)
    world.ask(world.view("sums"))
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("SET transaction_isolation = 'serializable'")
        found = Counter(other.execute(world.view("sums")).fetchall())
    assert found == world.ask(world.view("sums"))


def test_views_over_sources_and_their_progress(connection: Connection) -> None:
    """The cuts of a source are those of its views, and a table's changes lie between them."""
    run = connection.execute
    run("CREATE TABLE named (g int, name text)")
    run("CREATE SOURCE counted FROM LOAD GENERATOR COUNTER (TICK INTERVAL '20 ms', UP TO 60)")
    queries = {
        "groups": "SELECT counter % 3 AS g, count(*) AS n FROM counted GROUP BY counter % 3",
        "even": "SELECT counter, counter * 2 AS twice FROM counted WHERE counter % 2 = 0",
        "far": "SELECT * FROM counted_progress",
        "labels": "SELECT g.n, t.name FROM groups g JOIN named t ON t.g = g.g",
    }
    for name, text in queries.items():
        run(f"CREATE MATERIALIZED VIEW {name} AS {text}".encode())
    times: list[int] = []
    count = -1
    while count < 60:
        run("INSERT INTO named VALUES (%s, %s)", (len(times) % 3, str(len(times))))
        ((at, found),) = run("SELECT mz_now(), count(*) FROM counted").fetchall()
        if found != count or len(times) < 3:
            times.append(int(at))
        count = found
    for name, text in queries.items():
        for at in {times[-1], *times[-6:-1:2]}:
            view = run(f"SELECT * FROM {name} AS OF {at}".encode()).fetchall()
            assert Counter(view) == Counter(run(f"{text} AS OF {at}".encode()).fetchall()), (name, at)
