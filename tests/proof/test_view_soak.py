"""Random materialized views over tables and over each other, in the real server under random writes: at
every time each view is what its query says at that time.

Meanwhile queries are replaced, the caches of what they keep are deleted or damaged, and the server is killed.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess

Answer = Counter[tuple[Any, ...]] | str
Connection = psycopg.Connection[Any]

TABLES = ("a", "b", "c")
# Every relation has the columns k and v (integers), so each can be read in the place of each. {r} and {s} are
# relations, {n} is a small number. Answers stay small.
FORMS = (
    "SELECT k, (v + {n})::int AS v FROM {r} WHERE v <> {n}",
    "SELECT k, v FROM {r} WHERE k > {n} UNION ALL SELECT v, k FROM {s} WHERE v < {n}",
    "SELECT k, sum(v)::int AS v FROM {r} GROUP BY k",
    "SELECT k, count(*)::int AS v FROM {r} WHERE v > {n} GROUP BY k HAVING count(*) <> 2",
    "SELECT k % 3 AS k, max(v) AS v FROM {r} GROUP BY k % 3",
    "SELECT k, count(DISTINCT v)::int AS v FROM {r} GROUP BY k",
    "SELECT count(*)::int AS k, sum(v)::int AS v FROM {r}",
    "SELECT x.k, max(y.v) AS v FROM {r} x JOIN {s} y ON x.k = y.k GROUP BY x.k",
    "SELECT x.v AS k, sum(x.k + y.v)::int AS v FROM {r} x JOIN {s} y USING (k) GROUP BY x.v",
    "SELECT DISTINCT x.k, coalesce(y.v, -9) AS v FROM {r} x LEFT JOIN {s} y ON x.k = y.k AND y.v > {n}",
    "SELECT DISTINCT coalesce(x.k, y.k) AS k, coalesce(x.v, -8) AS v FROM {r} x FULL JOIN {s} y ON x.k = y.k",
    "SELECT DISTINCT v AS k, k AS v FROM {r}",
    "SELECT k, v FROM {r} EXCEPT ALL SELECT k, v FROM {s}",
    "SELECT k, v FROM {r} INTERSECT SELECT k, v FROM {s}",
    "SELECT k, v FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY v) AS i FROM {r}) t WHERE i <= 2",
    "SELECT k, (v - lag(v, 1, 0) OVER (PARTITION BY k ORDER BY v))::int AS v FROM {r}",
    "SELECT DISTINCT ON (k) k, v FROM {r} ORDER BY k, v DESC",
    "SELECT k, v FROM {r} x WHERE NOT EXISTS (SELECT 1 FROM {s} y WHERE y.k = x.k AND y.v > x.v)",
    "SELECT k, v FROM {r} WHERE (k, v) IN (SELECT k, v FROM {s})",
    "SELECT k, (SELECT max(y.v) FROM {s} y WHERE y.k = x.k) AS v FROM {r} x",
    "SELECT k, v FROM {r} ORDER BY v DESC NULLS LAST, k LIMIT 3",
    "SELECT k, min(v) AS v FROM {r} GROUP BY GROUPING SETS ((k), (k, v))",
)
# Of the table `timed`: rows that come and leave by themselves.
TIMED = (
    "SELECT k, v FROM timed WHERE mz_now() <= till",
    "SELECT k, count(*)::int AS v FROM timed WHERE till > mz_now() GROUP BY k",
    "SELECT k, 12 / v AS v FROM timed WHERE mz_now() <= till",
)
# Errors that come and go.
FAILING = (
    "SELECT k, 12 / v AS v FROM {r}",
    "SELECT k, (sum(v) / (count(*) - {n} - 2))::int AS v FROM {r} GROUP BY k",
    "SELECT k, max(12 / v) AS v FROM {r} GROUP BY k",
)
VALUES = ("-1", "1", "1", "2", "3", "4", "NULL", "0")
LIFE_SECONDS = 600.0


class World:
    """What there is, and what to do with it next. `queries`: of the views, in the order in which they can be
    created."""

    def __init__(self, server: ServerProcess, seed: int, views: int) -> None:
        self.server = server
        self.dice = random.Random(seed)
        self.queries: dict[str, str] = {}
        self.writes = 0
        # Before it a view had another query.
        self.since: dict[str, int] = {}
        with self.connected() as c:
            for table in TABLES:
                c.execute(f"CREATE TABLE {table} (k int, v int)".encode())
            c.execute("CREATE TABLE timed (k int, v int, till int8)")
            for _ in range(6):
                self.write(c, self.dice)
            for number in range(views):
                name = f"v{number}"
                self.queries[name] = self.query(name)
                c.execute(f"CREATE MATERIALIZED VIEW {name} AS {self.queries[name]}".encode())
            self.since = dict.fromkeys(self.queries, now(c))

    def connected(self) -> Connection:
        return psycopg.connect(self.server.sql_dsn, autocommit=True)

    def query(self, name: str) -> str:
        """One that reads tables and views before this one. An error is read by no other view: its text would
        be of either."""
        dice = self.dice
        below = [n for n, q in self.queries.items() if int(n[1:]) < int(name[1:]) and "12 / v" not in q]
        below = [n for n in below if "- 2)" not in self.queries[n]]
        sources = [*TABLES, *below, *below[-3:]]
        forms = dice.choice([FORMS] * 8 + [TIMED, FAILING])
        return dice.choice(forms).format(r=dice.choice(sources), s=dice.choice(sources), n=dice.randrange(3))

    def write(self, c: Connection, dice: random.Random) -> None:
        table, k = dice.choice(TABLES), dice.choice(["NULL", "0", "1", "2", "3"])
        v, w = dice.choice(VALUES), dice.choice(VALUES)
        match dice.randrange(8):
            case 0:
                c.execute(f"DELETE FROM {table} WHERE v = {v} OR v = 0".encode())
            case 1:
                c.execute(f"UPDATE {table} SET v = {v} WHERE k = {k}".encode())
            case 2:
                c.execute(f"DELETE FROM {table} WHERE k = {k}".encode())
            case 3:
                till = int(time.time() * 1000) + dice.randrange(4000)
                c.execute(f"INSERT INTO timed VALUES ({k}, {v}, {till}), ({k}, {w}, {till + 700})".encode())
            case 4:
                # All of a small transaction at one time.
                with c.transaction():
                    for each in TABLES:
                        c.execute(f"INSERT INTO {each} VALUES ({k}, {v}), ({k}, {w})".encode())
            case _:
                c.execute(f"INSERT INTO {table} VALUES ({k}, {v}), ({k}, {w}), ({k}, {w})".encode())
        self.writes += 1

    def replace(self, c: Connection) -> None:
        name = self.dice.choice(sorted(self.queries))
        above = [q for n, q in self.queries.items() if n != name and f" {name} " in f"{q} "]
        query = self.query(name)
        if above and ("12 / v" in query or "- 2)" in query):
            return
        c.execute(f"CREATE OR REPLACE MATERIALIZED VIEW {name} AS {query}".encode())
        self.queries[name], self.since[name] = query, now(c)

    def sabotage(self) -> None:
        """The cache of what queries keep, while they are followed."""
        folder = Path(self.server.data_dir) / "cache" / "arrangements"
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        if self.dice.random() < 0.5:
            shutil.rmtree(folder, ignore_errors=True)
        for path in files if self.dice.random() < 0.5 else files[::3]:
            try:
                data = path.read_bytes()
                # As a new file: one that is mapped must not change.
                path.unlink()
                path.write_bytes(data[: len(data) // 2])
            except OSError:
                pass  # It was deleted meanwhile, or just now.

    def check(self, times: list[int]) -> int:
        """All views at these times, if they had their query then; how many answers were compared."""
        compared = 0
        with self.connected() as c:
            for at in times:
                for name, query in self.queries.items():
                    if at > self.since[name]:
                        found, wanted = answer(c, f"SELECT * FROM {name}", at), answer(c, query, at)
                        assert found == wanted, f"{name} at {at}: {query}"
                        compared += 1
        return compared


def now(c: Connection) -> int:
    ((at,),) = c.execute("SELECT mz_now()::int8").fetchall()
    return int(at)


def answer(c: Connection, query: str, at: int) -> Answer:
    try:
        # (A query with an order has it in a subquery, too.)
        return Counter(c.execute(f"SELECT * FROM ({query}) AS q AS OF {at}".encode()).fetchall())
    except psycopg.DataError as e:
        return str(e.diag.message_primary)


def _write(world: World, seed: int, stop: threading.Event, failed: list[Exception]) -> None:
    dice = random.Random(seed)
    try:
        with world.connected() as c:
            while not stop.is_set():
                world.write(c, dice)
    except psycopg.OperationalError:
        return  # The server was killed.
    except Exception as e:
        failed.append(e)


def live(world: World, writes: int, turns: int) -> list[int]:
    """So many writes by two sessions; meanwhile, in turns, queries are replaced and caches damaged. Returns
    times."""
    stop, failed = threading.Event(), list[Exception]()
    seeds = [world.dice.randrange(1 << 30) for _ in range(2)]
    writers = [threading.Thread(target=_write, args=(world, s, stop, failed), daemon=True) for s in seeds]
    times: list[int] = []
    until = world.writes + writes
    deadline = time.monotonic() + LIFE_SECONDS
    for writer in writers:
        writer.start()
    try:
        with world.connected() as c:
            for _ in range(turns):
                world.dice.choice([lambda: world.replace(c), world.sabotage])()
                times.append(now(c))
            while world.writes < until and not failed:
                assert time.monotonic() < deadline
                time.sleep(0.05)
                times.append(now(c))
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
    assert not failed, failed
    return times


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    server.start(wait_ready=True)
    yield server
    server.close()


@pytest.mark.server
@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(6))
def test_views_are_their_queries_whatever_happens(server: ServerProcess, seed: int) -> None:
    world = World(server, seed, 14)
    for life in range(3):
        times = live(world, 120, 3)
        if life:
            server.kill9()
            if world.dice.random() < 0.5:
                world.sabotage()
            server.start(wait_ready=True)
        with world.connected() as c:
            latest = now(c)
        chosen = world.dice.sample(times, min(3, len(times)))
        assert world.check([*chosen, latest]) > 0
    assert world.writes >= 3 * 120
