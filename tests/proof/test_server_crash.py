"""kill -9 of the real server under concurrent writers, over and over: what was acknowledged is there once,
transactions are whole, times never go back, and what was closed never changes.

The server dies at a named failpoint (part, log entry, txns entry, apply, lease, epoch, catalog, compaction,
checkpoint) or by a signal from outside. After every death the ledger is judged against the files themselves,
before anything recovers (`proof_store`); the last life is asked over SQL. `make chaos` goes 200 rounds
through all failpoints that a whole server meets within seconds; cleaning and sweeping come after minutes and
are killed in tests/persist and tests/txns instead. In most lives Spark does not get beyond its start: they
are over before it would be asked anything, and its JVM would take most of the time.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof_ledger import TABLES, Broken, Found, Ledger, Records, Update, judge, run_writers
from proof_store import Store
from psycopg import sql

from support.server import ServerError, ServerProcess

# Where a server is killed, and the greatest hit that a life of a few seconds surely reaches.
FAILPOINTS = {
    "catalog.before_put": 3,
    "catalog.put": 3,
    "epoch.before_fence": 1,
    "epoch.fenced": 1,
    "lease.before_put": 1,
    "lease.put": 1,
    "persist.checkpoint.synced": 1,
    "persist.checkpoint.written": 1,
    "persist.compact.committed": 2,
    "persist.compact.part_written": 2,
    "persist.create.after_entry0": 3,
    "persist.entry.dir_synced": 60,
    "persist.entry.linked": 60,
    "persist.entry.temp_written": 60,
    "persist.fence.written": 3,
    "persist.part.before_fsync": 60,
    "persist.part.written": 60,
    "txns.apply.after": 10,
    "txns.apply.before": 10,
    "txns.entry.before_put": 30,
    "txns.entry.put": 30,
    "txns.part.written": 30,
    "txns.retract.before": 10,
}
WRITERS = 4
# A life without a failpoint is ended by a signal after so many acknowledgements, one whose failpoint does not
# come after so long.
ACKS = 40
SECONDS = 40.0
# One life in so many has a real JVM beside it.
SPARK_EVERY = 10


class Rounds:
    """One data directory and the lives of its servers."""

    def __init__(self, data_dir: Path, seed: int, seconds: float = SECONDS) -> None:
        self.server = ServerProcess(data_dir)
        self.seconds = seconds
        self.ledger = Ledger(f"{data_dir}.ledger")
        self.records = Records()
        self.dice = random.Random(seed)
        self.killed: Counter[str] = Counter()
        # Seconds from each start to the first answer over SQL.
        self.starts: list[float] = []

    def live(self, failpoint: str | None, nth: int = 1) -> None:
        """One life: start, write, die."""
        self.server.spark = self.killed.total() % SPARK_EVERY == 0
        self.server.env = {} if failpoint is None else {"TIDEMILL_FAILPOINTS": f"{failpoint}=kill@{nth}"}
        began = time.monotonic()
        self.server.start(wait_sql=False)
        try:
            self.server.wait_sql()
        except ServerError:
            if self.server.returncode != -9:
                raise
        else:
            self.starts.append(time.monotonic() - began)
            if not self._write_until_death(failpoint):
                failpoint = None
        assert self.server.returncode == -9, self.server.log[-4000:]
        self.killed[failpoint or "signal"] += 1

    def _write_until_death(self, failpoint: str | None) -> bool:
        """Whether it died by itself."""
        enough = self.ledger.count("ack") + ACKS
        stop = threading.Event()
        definer = threading.Thread(target=define, args=(self.server.sql_dsn, stop), daemon=True)
        definer.start()
        end = run_writers(self.server.sql_dsn, self.ledger, self.dice.randrange(2**30), WRITERS)
        deadline = time.monotonic() + self.seconds
        while self.server.returncode is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if failpoint is None and self.ledger.count("ack") >= enough:
                break
        by_itself = self.server.returncode is not None
        self.server.kill9()
        stop.set()
        end()
        definer.join(60)
        return by_itself

    def look(self) -> Found:
        """Judge what is there; remember what is closed."""
        found = Store(self.server.data_dir).found(sorted(TABLES))
        times = judge(self.ledger.lines(), found)
        self.records.check(found)
        self.records.add(
            found, [found.closed - 1, *self.dice.sample(sorted(times.values()), min(3, len(times)))]
        )
        return found


def define(dsn: str, stop: threading.Event) -> None:
    """The tables, and one more that comes and goes, so that the catalog is written too."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for name, columns in TABLES.items():
                text = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
                connection.execute(text.format(sql.Identifier(name), sql.SQL(columns)))
            while not stop.wait(0.05):
                connection.execute("CREATE TABLE IF NOT EXISTS guest (a int)")
                connection.execute("DROP TABLE guest")
    except psycopg.Error:
        return


@contextmanager
def rounds(folder: Path, seed: int, seconds: float = SECONDS) -> Generator[Rounds]:
    made = Rounds(folder / "data", seed, seconds)
    try:
        yield made
    finally:
        made.server.close()


@pytest.mark.server
@pytest.mark.timeout(3600)
def test_five_restarts(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    plan = [
        ("txns.entry.put", 20),
        ("txns.apply.after", 4),
        ("persist.compact.committed", 1),
        ("epoch.fenced", 1),
        (None, 1),
    ]
    # Every one of them comes, however busy the machine is.
    with rounds(tmp_path, seed=1, seconds=400) as lives:
        for failpoint, nth in plan:
            lives.live(failpoint, nth)
            lives.look()
        assert lives.killed == Counter(failpoint or "signal" for failpoint, _ in plan)
        record_property("seconds until SQL answers after kill -9", [round(s, 1) for s in lives.starts])
        found = lives.look()
        assert len(found.updates["transfers"]) > ACKS
        lives.server.env, lives.server.spark = {}, True
        lives.server.start(wait_ready=True)
        ask(lives, found)
        update_until_death(lives)


@pytest.mark.server
@pytest.mark.chaos
@pytest.mark.parametrize("count", [200])
def test_many_restarts(tmp_path: Path, count: int, record_property: Callable[[str, object], None]) -> None:
    names = sorted(FAILPOINTS)
    with rounds(tmp_path, seed=2) as lives:
        for number in range(count):
            failpoint: str | None = names[number % len(names)]
            # Now and then from outside, at any moment. Seven and the number of names share no divisor, so
            # every name comes up.
            if number % 7 == 6:
                failpoint = None
            nth = 1 if failpoint is None else lives.dice.randint(1, FAILPOINTS[failpoint])
            lives.live(failpoint, nth)
            lives.look()
        assert len(set(lives.killed) - {"signal"}) >= 12, lives.killed
        assert lives.killed["signal"] >= count // 10
        record_property("killed at", dict(lives.killed))
        record_property("acknowledged transactions", lives.ledger.count("ack"))
        record_property("old times looked at after the last death", len(lives.records.seen))
        lives.server.env, lives.server.spark = {}, True
        lives.server.start(wait_ready=True)
        ask(lives, lives.look())


def ask(lives: Rounds, found: Found) -> None:
    """The same over SQL: now, and AS OF the times that were looked at."""
    times = sorted({time for _, time in lives.records.seen if time >= found.since})
    chosen = sorted({times[0], times[-1], *lives.dice.sample(times, min(3, len(times)))})
    with psycopg.connect(lives.server.sql_dsn, autocommit=True) as connection:
        for name in TABLES:
            table = sql.Identifier(name)
            now = connection.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall()
            assert Counter(now) == found.at(name, found.closed)
            for at in chosen:
                text = sql.SQL("SELECT * FROM {} AS OF {}").format(table, sql.Literal(at))
                assert Counter(connection.execute(text).fetchall()) == found.at(name, at), (name, at)
        total = connection.execute("SELECT sum(amount)::int8 FROM postings").fetchone()
        assert total == (0,)


# -- transactions that read what they write ------------------------------------------------------------

ACCOUNTS = 4
MOVES = 12


def update_until_death(lives: Rounds) -> None:
    """Transfers between balances by UPDATE, from several sessions, until MOVES are acknowledged; then a kill.
    At every time the balances are the fold of the moves before it."""
    ledger = Ledger(f"{lives.server.data_dir}.moves")
    dsn = lives.server.sql_dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE moves (txn int8, source int4, target int4, amount int8)")
        connection.execute("CREATE TABLE balances (account int4, balance int8)")
        connection.execute("INSERT INTO balances VALUES (0, 0), (1, 0), (2, 0), (3, 0)")
    stop = threading.Event()
    movers = [
        threading.Thread(target=move, args=(dsn, ledger, random.Random(n), stop), daemon=True)
        for n in range(3)
    ]
    for mover in movers:
        mover.start()
    deadline = time.monotonic() + 600
    while ledger.count("ack") < MOVES and time.monotonic() < deadline:
        time.sleep(0.02)
    lives.server.kill9()
    stop.set()
    for mover in movers:
        mover.join(60)
    found = Store(lives.server.data_dir).found(["moves", "balances"])
    times = judge(ledger.lines(), Found({"moves": found.updates["moves"]}, found.closed))
    assert len(times) >= MOVES
    check_balances(found, sorted(set(times.values())))
    group = lives.server.pid
    deadline = time.monotonic() + 180
    while _alive(group):
        assert time.monotonic() < deadline, "what the server started lives on without it"
        time.sleep(0.1)


def move(dsn: str, ledger: Ledger, dice: random.Random, stop: threading.Event) -> None:
    add = "UPDATE balances SET balance = balance + %s WHERE account = %s"
    try:
        with psycopg.connect(dsn) as connection:
            while not stop.is_set():
                txn = ledger.next_id()
                source, target = dice.sample(range(ACCOUNTS), 2)
                row = (txn, source, target, dice.randrange(1, 100))
                ledger.write("intent", id=txn, rows={"moves": [row]})
                try:
                    connection.execute(add, (-row[3], source))
                    connection.execute("INSERT INTO moves VALUES (%s, %s, %s, %s)", row)
                    connection.execute(add, (row[3], target))
                    connection.commit()
                except psycopg.errors.SerializationFailure:
                    connection.rollback()
                    ledger.write("failed", id=txn)
                    continue
                ledger.write("ack", id=txn)
    except psycopg.Error:
        return


def check_balances(found: Found, times: list[int]) -> None:
    for at in times:
        balances = dict.fromkeys(range(ACCOUNTS), 0)
        for _, source, target, amount in found.at("moves", at):
            balances[source] -= amount
            balances[target] += amount
        assert found.at("balances", at) == Counter(balances.items()), f"at {at}"


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# -- the judge is judged -------------------------------------------------------------------------------

LINES: list[dict[str, Any]] = [
    {"what": "intent", "id": 1, "rows": {"a": [[1, 5], [1, -5]], "b": [[1]]}},
    {"what": "ack", "id": 1},
    {"what": "ask", "id": 2},
    {"what": "told", "id": 2, "time": 15},
    {"what": "intent", "id": 3, "rows": {"a": [[3, 7]], "b": [[3]]}},
    {"what": "intent", "id": 4, "rows": {"a": [[4, 1]], "b": [[4]]}},
    {"what": "failed", "id": 4},
]
GOOD: dict[str, list[Update]] = {
    "a": [((1, 5), 10, 1), ((1, -5), 10, 1), ((3, 7), 20, 1)],
    "b": [((1,), 10, 1), ((3,), 20, 1)],
}


def _shift(updates: dict[str, list[Update]], txn: int, to: int) -> None:
    for table, of in updates.items():
        updates[table] = [(row, to if row[0] == txn else time, diff) for row, time, diff in of]


BREAKS: dict[str, Callable[[dict[str, list[Update]]], object]] = {
    "one row lost": lambda u: u["a"].pop(0),
    "one row twice": lambda u: u["a"].append(u["a"][0]),
    "an acknowledged transaction lost": lambda u: u.update(a=u["a"][2:], b=u["b"][1:]),
    "an open transaction in part": lambda u: u["b"].pop(),
    "a refused transaction": lambda u: (u["a"].append(((4, 1), 21, 1)), u["b"].append(((4,), 21, 1))),
    "an unknown row": lambda u: u["b"].append(((9,), 21, 1)),
    "tables apart in time": lambda u: u.update(b=[((1,), 11, 1), ((3,), 20, 1)]),
    "later than the clock told": lambda u: _shift(u, 1, 16),
    "earlier than what was known": lambda u: _shift(u, 3, 15),
    "in the open future": lambda u: _shift(u, 3, 30),
}


def test_the_judge_accepts_what_is_right() -> None:
    assert judge(LINES, Found(GOOD, closed=25)) == {1: 10, 3: 20}
    without = {"a": GOOD["a"][:2], "b": GOOD["b"][:1]}
    assert judge(LINES, Found(without, closed=25)) == {1: 10}


@pytest.mark.parametrize("name", BREAKS)
def test_the_judge_finds_what_is_wrong(name: str) -> None:
    updates = {table: list(of) for table, of in GOOD.items()}
    BREAKS[name](updates)
    with pytest.raises(Broken):
        judge(LINES, Found(updates, closed=25))


def test_a_changed_past_is_found() -> None:
    records = Records()
    records.add(Found(GOOD, closed=25), [10, 24])
    moved: dict[str, list[Update]] = {
        "a": [((1, 5), 10, 1), ((1, -5), 10, 1), ((3, 7), 10, 1)],
        "b": GOOD["b"],
    }
    assert records.check(Found(GOOD, closed=99)) == 4
    with pytest.raises(Broken, match="a at 10"):
        records.check(Found(moved, closed=99))
    assert records.check(Found(moved, closed=99, since=20)) == 2
