"""kill -9 of the real server while it keeps materialized views up to date, under writes: every closed time
reads as before, and is what the view's query says there.

The server dies between the steps of a view's append, or by a signal. After every death the views are judged
from the files alone, before anything recovers, against queries in Python over the tables' own updates; the
last life is asked over SQL. `make chaos` goes 40 rounds.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof_store import Store
from psycopg import sql

from support.server import ServerError, ServerProcess
from tidemill.catalog import codec
from tidemill.catalog.items import MaterializedView
from tidemill.catalog.store import CATALOG_SHARD
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.names import physical_names

# Where a server is killed.
STEPS = ("view.before_append", "view.part_written", "view.appended")
# For a death that must come, on a machine however busy; and writes of a life that ends by a signal.
LIFE_SECONDS = 400.0
WRITES = 40

Answer = Counter[tuple[Any, ...]] | str


def _picked(rows: Counter[tuple[Any, ...]]) -> Answer:
    return Counter({(k, v * 2): n for (k, v), n in rows.items() if v > 1})


def _sums(rows: Counter[tuple[Any, ...]]) -> Answer:
    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for (k, v), n in rows.items():
        counts[k] += n
        sums[k] += v * n
    return Counter((k, counts[k], sums[k]) for k in counts)


def _above(rows: Counter[tuple[Any, ...]]) -> Answer:
    return Counter([(len({k for k, _ in rows}),)])


def _shares(rows: Counter[tuple[Any, ...]]) -> Answer:
    if any(v == 0 for _, v in rows):
        return "division by zero"
    found: Counter[tuple[Any, ...]] = Counter()
    for (k, v), n in rows.items():
        found[(k, int(12 / v))] += n
    return found


VIEWS: dict[str, tuple[str, Callable[[Counter[tuple[Any, ...]]], Answer]]] = {
    "picked": ("SELECT k, v * 2 AS w FROM moves WHERE v > 1", _picked),
    "sums": ("SELECT k, count(*) AS n, sum(v) AS s FROM moves GROUP BY k", _sums),
    "above": ("SELECT count(*) AS n FROM sums", _above),
    "shares": ("SELECT k, 12 / v AS share FROM moves", _shares),
}


class Views(Store):
    """The views as their files have them."""

    def views(self) -> dict[str, MaterializedView]:
        shard = self._open(CATALOG_SHARD)
        assert shard.upper is not None
        with shard.snapshot(shard.upper - 1) as snapshot:
            rows = snapshot.read()
        pairs = zip(rows.column("id").to_pylist(), rows.column("body").to_pylist(), strict=True)
        items = [codec.decode(i, b) for i, b in pairs if i != "next_id" and not i.startswith("dropped:")]
        return {i.name: i for i in items if isinstance(i, MaterializedView)}

    def view(self, item: MaterializedView) -> tuple[int, int, Callable[[int], Answer]]:
        """Readable from, complete before, and what it holds at a time."""
        shard = self._open(item.shard)
        assert shard.upper is not None
        columns = [*physical_names(shard.desc), ERROR_COLUMN, TIME_COLUMN, DIFF_COLUMN]
        updates: list[tuple[Any, ...]] = []
        for part in shard.parts:
            table = shard.reader.read(part, shard.desc).select(columns)
            updates += zip(*(column.to_pylist() for column in table.columns), strict=True)

        def at(time: int) -> Answer:
            held: Counter[tuple[Any, ...]] = Counter()
            for *row, when, diff in updates:
                if when <= time:
                    held[tuple(row)] += diff
            held = Counter({row: n for row, n in held.items() if n})
            errors = [row[-1] for row in held if row[-1] is not None]
            if errors:
                return str(errors[0])
            return Counter({row[:-1]: n for row, n in held.items()})

        return shard.since, shard.upper, at


class Judge:
    """Looks after every death, and remembers."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self.seen: dict[tuple[str, int], Answer] = {}

    def look(self) -> dict[str, int]:
        """How many times of each view were compared."""
        views = Views(self._data_dir)
        moves = views.found(["moves"])
        times = sorted({when for _, when, _ in moves.updates["moves"]})
        compared: dict[str, int] = {}
        for name, item in views.views().items():
            since, upper, held = views.view(item)
            if upper <= item.created:
                continue
            for at in {t + d for t in (*times, since, upper) for d in (-1, 0)}:
                if not since <= at < upper:
                    continue
                found = held(at)
                assert found == self.seen.setdefault((name, at), found), f"{name} at {at} has changed"
                if moves.since <= at:
                    wanted = VIEWS[name][1](moves.at("moves", at))
                    assert found == wanted, f"{name} at {at}: {found}, not {wanted}"
                    compared[name] = compared.get(name, 0) + 1
        return compared


def _write(dsn: str, seed: int, stop: threading.Event, done: list[int]) -> None:
    dice = random.Random(seed)
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                k, v = dice.randrange(4), dice.choice([-2, 1, 2, 3, 4, 0])
                if v == 0 or dice.randrange(4) == 0:
                    # An error of one of the views goes soon after it has come.
                    connection.execute("DELETE FROM moves WHERE v = %s OR k = %s", (v, k))
                connection.execute("INSERT INTO moves VALUES (%s, %s)", (k, v))
                done.append(1)
    except psycopg.Error:
        return


def _live(server: ServerProcess, step: str | None, hit: int, seed: int) -> None:
    """One life under writes, that ends at the step or by a signal."""
    server.env = {} if step is None else {"TIDEMILL_FAILPOINTS": f"{step}=kill@{hit}"}
    try:
        server.start(wait_ready=True)
    except ServerError:
        # A view that goes on where it stood may meet the step as soon as Spark is there.
        assert server.returncode == -9, server.log[-4000:]
        return
    stop, done = threading.Event(), list[int]()
    writers = [
        threading.Thread(target=_write, args=(server.sql_dsn, seed + n, stop, done), daemon=True)
        for n in range(2)
    ]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + LIFE_SECONDS
    while server.returncode is None and not (step is None and len(done) >= WRITES):
        assert time.monotonic() < deadline, f"the server did not die at {step}\n{server.log[-4000:]}"
        time.sleep(0.02)
    server.kill9()
    stop.set()
    for writer in writers:
        writer.join(60)


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    server = ServerProcess(tmp_path / "data")
    server.spark = False
    server.start()
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE moves (k int4, v int4)")
        for name, (text, _) in VIEWS.items():
            c.execute(f"CREATE MATERIALIZED VIEW {name} AS {text}".encode())
    server.kill9()
    server.spark = True
    yield server
    server.close()


def _rounds(server: ServerProcess, steps: list[tuple[str | None, int]]) -> Judge:
    judge = Judge(server.data_dir)
    for number, (step, hit) in enumerate(steps):
        _live(server, step, hit, number * 10)
        judge.look()
    server.env = {}
    server.start(wait_ready=True)
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("DELETE FROM moves WHERE v = 0")
        for name, (text, _) in VIEWS.items():
            view = sql.SQL("SELECT * FROM {}").format(sql.Identifier(name))
            assert Counter(c.execute(view).fetchall()) == Counter(c.execute(text.encode()).fetchall()), name
        # And of the times before the deaths.
        for (name, at), answer in random.Random(1).sample(sorted(judge.seen.items(), key=str), 6):
            old = sql.SQL("SELECT * FROM {} AS OF {}").format(sql.Identifier(name), sql.Literal(at))
            try:
                assert Counter(c.execute(old).fetchall()) == answer, (name, at)
            except psycopg.DataError as e:
                assert e.diag.message_primary == answer
    server.kill9()
    compared = judge.look()
    assert compared.keys() == VIEWS.keys() and min(compared.values()) >= 4, compared
    return judge


@pytest.mark.server
@pytest.mark.timeout(3600)
def test_killed_between_the_steps_of_an_append(server: ServerProcess) -> None:
    # A commit is at most one append of each view: there were several by then.
    judge = _rounds(server, [("view.appended", 24), ("view.part_written", 16)])
    # The judge is judged: another row at a closed time, and another answer, are seen.
    key = max(k for k, answer in judge.seen.items() if isinstance(answer, Counter))
    judge.seen[key] = Counter([("planted",)])
    with pytest.raises(AssertionError, match="has changed"):
        judge.look()


@pytest.mark.server
@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
def test_killed_many_times_with_views(server: ServerProcess, seed: int) -> None:
    """40 deaths, eight in each data directory."""
    dice = random.Random(seed)
    steps = [(dice.choice([*STEPS, None]), dice.randrange(1, 20)) for _ in range(8)]
    _rounds(server, steps)
