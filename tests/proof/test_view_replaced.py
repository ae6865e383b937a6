"""kill -9 of the real server while the query of a materialized view is replaced, under writes.

It dies at every step of the switch in turn. After every death the view is judged from the files alone, before
anything recovers: at each closed time it holds the answer of the query that it had then. What was begun is
finished by the next life. The last life is asked over SQL.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from test_view_crash import LIFE_SECONDS, WRITES, Answer, Views

from support.server import ServerError, ServerProcess

STEPS = (
    "view.meeting",
    "catalog.put",
    "view.switched",
    "view.switch_written",
    "view.difference",
    "view.resumed",
)

Rows = Counter[tuple[Any, ...]]


def _kept(rows: Rows) -> Answer:
    return Counter({(k, v): n for (k, v), n in rows.items() if v > 1})


def _sums(rows: Rows) -> Answer:
    sums: Counter[int] = Counter()
    for (k, v), n in rows.items():
        sums[k] += v * n
    return Counter(dict.fromkeys(((k, sums[k]) for k in {k for k, _ in rows}), 1))


QUERIES: list[tuple[str, Callable[[Rows], Answer]]] = [
    ("SELECT k, v::bigint AS n FROM moves WHERE v > 1", _kept),
    ("SELECT k, sum(v) AS n FROM moves GROUP BY k", _sums),
]


class Judge:
    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        # Which query it has from when on, by the catalog.
        self.queries: list[tuple[int, int]] = [(0, 0)]
        self.seen: dict[int, Answer] = {}
        self.pending = False

    def look(self) -> int:
        views = Views(self._data_dir)
        (item,) = views.views().values()
        switched = item.switched
        if switched is not None and switched.at != self.queries[-1][0]:
            self.queries.append((switched.at, 1 - self.queries[-1][1]))
        self.pending = item.replacement is not None
        moves = views.found(["moves"])
        since, upper, held = views.view(item)
        compared = 0
        around = (*{when for _, when, _ in moves.updates["moves"]}, *(at for at, _ in self.queries), upper)
        for at in {t + d for t in around for d in (-1, 0)}:
            if since <= at < upper and upper > item.created:
                found = held(at)
                assert found == self.seen.setdefault(at, found), f"{at} has changed"
                query = [q for start, q in self.queries if start <= at][-1]
                assert found == QUERIES[query][1](moves.at("moves", at)), f"at {at} of {self.queries}"
                compared += 1
        return compared


def _write(dsn: str, stop: threading.Event, done: list[int]) -> None:
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                n = len(done)
                connection.execute("INSERT INTO moves VALUES (%s, %s)", (n % 5, n % 7))
                if n % 6 == 0:
                    connection.execute("DELETE FROM moves WHERE k = %s AND v = 3", (n % 5,))
                done.append(1)
    except psycopg.Error:
        return


def _replace(dsn: str, query: str, done: list[int]) -> None:
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"ALTER MATERIALIZED VIEW view AS {query}".encode())
            done.append(1)
    except psycopg.Error:
        return


def _live(server: ServerProcess, judge: Judge, step: str) -> None:
    # The catalog's put is that of the switch, behind that of the statement.
    nth = 2 if step == "catalog.put" and not judge.pending else 1
    server.env = {"TIDEMILL_FAILPOINTS": f"{step}=kill@{nth}"}
    try:
        server.start(wait_ready=True)
    except ServerError:
        assert server.returncode == -9, server.log[-4000:]
        return
    stop, done, replaced = threading.Event(), list[int](), list[int]()
    threads = [threading.Thread(target=_write, args=(server.sql_dsn, stop, done), daemon=True)]
    if not judge.pending:
        query = QUERIES[1 - judge.queries[-1][1]][0]
        threads.append(threading.Thread(target=_replace, args=(server.sql_dsn, query, replaced), daemon=True))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIFE_SECONDS
    while server.returncode is None and not (judge.pending and len(done) >= WRITES):
        assert time.monotonic() < deadline, f"the server did not die at {step}\n{server.log[-4000:]}"
        assert not replaced, f"{step} is not visited"
        time.sleep(0.02)
    server.kill9()
    stop.set()
    for thread in threads:
        thread.join(60)


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    server.spark = False
    server.start()
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE moves (k int4, v int4)")
        c.execute("INSERT INTO moves VALUES (1, 2), (1, 1), (2, 5)")
        c.execute(f"CREATE MATERIALIZED VIEW view AS {QUERIES[0][0]}".encode())
    server.kill9()
    server.spark = True
    yield server
    server.close()


def _rounds(server: ServerProcess, steps: tuple[str, ...]) -> None:
    judge = Judge(server.data_dir)
    for step in steps:
        _live(server, judge, step)
        judge.look()
    server.env = {}
    server.start(wait_ready=True)
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        deadline = time.monotonic() + LIFE_SECONDS
        while judge.pending and time.monotonic() < deadline:
            time.sleep(0.1)
            judge.look()
        query = QUERIES[judge.queries[-1][1]][0]
        assert Counter(c.execute("SELECT * FROM view").fetchall()) == Counter(
            c.execute(query.encode()).fetchall()
        )
    server.kill9()
    assert judge.look() > 10 and len(judge.queries) > len(steps) // 2


@pytest.mark.server
@pytest.mark.timeout(3600)
def test_killed_between_the_steps_of_a_switch(server: ServerProcess) -> None:
    _rounds(server, ("view.switched", "view.difference"))


@pytest.mark.server
@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_killed_at_every_step_of_switches(server: ServerProcess) -> None:
    _rounds(server, (*STEPS, *reversed(STEPS)))
