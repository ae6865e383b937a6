"""Temporal filters in the real server: random rows that come and leave within seconds, changes of them,
and a kill -9. At every time at which something may have happened a materialized view AS OF that time is the
SELECT of its query AS OF that time, and the fold of a SUBSCRIBE is too."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess

# As the views' names; `linear` and `through` are followed on changes, the others as a whole.
QUERIES = {
    "linear": "SELECT k, at FROM seen WHERE mz_now() <= at + INTERVAL '1 second' AND k < 4",
    "lifetimes": "SELECT k, until_ms FROM seen WHERE until_ms > mz_now() AND mz_now() >= at",
    "grouped": "SELECT k, count(*) AS n, max(at) AS last FROM seen WHERE mz_now() BETWEEN at AND at + "
    "INTERVAL '1500 ms' GROUP BY k",
    "joined": "SELECT s.k, l.name FROM seen s LEFT JOIN labels l USING (k) WHERE mz_now() < s.at",
    "divided": "SELECT k, 12 / (k - 1) AS q FROM seen WHERE mz_now() > at AND until_ms >= mz_now()",
}
# How far from now the times of the rows are, and how long rows are written.
SPREAD_MS = 2500
WRITE_SECONDS = 3.0
LEAST_WRITES = 30
COMPARED = 16


def _write(c: psycopg.Connection[Any], dice: random.Random) -> None:
    k = dice.choice([0, 2, 3, 4]) if dice.randrange(8) else 1  # 1 is an error of `divided`, for a while
    at, until = (dice.randint(-SPREAD_MS, SPREAD_MS) for _ in range(2))
    match dice.randrange(5):
        case 0:
            c.execute("DELETE FROM seen WHERE k = %s", (k,))
        case 1:
            c.execute("UPDATE seen SET at = at + INTERVAL '300.5 ms' WHERE k = %s", (k,))
        case _:
            c.execute(
                "INSERT INTO seen VALUES (%s, now() + %s * INTERVAL '1 microsecond', %s), (%s, NULL, NULL)",
                (k, at * 1000 + dice.randrange(1000), int(time.time() * 1000) + until, k),
            )


def _answer(c: psycopg.Connection[Any], query: str, at: int) -> Counter[tuple[Any, ...]] | str:
    try:
        return Counter(c.execute(f"{query} AS OF {at}".encode()).fetchall())
    except psycopg.DataError as e:
        return str(e.diag.message_primary)


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    server.start(wait_ready=True)
    yield server
    server.close()


def _subscribed(dsn: str, told: list[tuple[Any, ...]], stop: threading.Event) -> None:
    try:
        with psycopg.connect(dsn) as c:
            cursor = c.cursor()
            cursor.execute(f"DECLARE s CURSOR FOR SUBSCRIBE ({QUERIES['grouped']})".encode())
            while not stop.is_set():
                told += cursor.execute("FETCH ALL s WITH (timeout = '0.2s')").fetchall()
    except psycopg.Error:
        return


@pytest.mark.server
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.chaos] if n else []) for n in range(4)])
def test_at_each_time_they_are_the_select(server: ServerProcess, seed: int) -> None:
    dice = random.Random(seed)
    told: list[tuple[Any, ...]] = []
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE seen (k int4, at timestamptz, until_ms int8)")
        c.execute("CREATE TABLE labels (k int4, name text)")
        c.execute("INSERT INTO labels VALUES (0, 'none'), (2, 'two')")
        for _ in range(4):
            _write(c, dice)
        for name, query in QUERIES.items():
            c.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}".encode())
        for name in QUERIES:
            _answer(c, f"SELECT * FROM {name}", _now(c))
        began, stop = _now(c), threading.Event()
        reader = threading.Thread(target=_subscribed, args=(server.sql_dsn, told, stop), daemon=True)
        reader.start()
        end = time.monotonic() + WRITE_SECONDS
        writes = 0
        while time.monotonic() < end or writes < LEAST_WRITES:
            _write(c, dice)
            writes += 1
        wrote = _now(c)
    server.kill9()
    stop.set()
    reader.join(60)
    server.start(wait_ready=True)
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        time.sleep(SPREAD_MS / 1000)
        now = _now(c)
        edges = [
            int(ms) + d
            for (ms,) in c.execute(
                "SELECT (extract(epoch FROM at) * 1000)::int8 FROM seen WHERE at IS NOT NULL "
                "UNION SELECT until_ms FROM seen WHERE until_ms IS NOT NULL"
            ).fetchall()
            for d in (0, 1)
        ]
        edges = [ms for ms in edges if began <= ms <= now]
        times = dice.sample(sorted({*edges, *(dice.randint(began, now) for _ in range(COMPARED))}), COMPARED)
        rows = 0
        for at in [began, wrote, now, *times]:
            for name, query in QUERIES.items():
                found, wanted = _answer(c, f"SELECT * FROM {name}", at), _answer(c, query, at)
                assert found == wanted, f"{name} at {at}"
                rows += 0 if isinstance(found, str) else len(found)
        # On a busy machine few rows are there at the times that are compared.
        assert rows > 0
        # What was told until the kill, at the last complete time.
        if told:
            last = max(int(t) for t, *_ in told) - 1
            fold: Counter[tuple[Any, ...]] = Counter()
            for t, diff, *row in told:
                fold[tuple(row)] += diff if int(t) <= last else 0
            assert +fold == _answer(c, QUERIES["grouped"], last) and not -fold


def _now(c: psycopg.Connection[Any]) -> int:
    row = c.execute("SELECT mz_now()::int8").fetchone()
    assert row is not None
    return int(row[0])
