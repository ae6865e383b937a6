"""CREATE SOURCE FROM POSTGRES, with kill -9 of the server and of PostgreSQL: at every time three tables show
a whole number of upstream transactions, in the order of their commits, and in the end they equal the
upstream. `make chaos` goes 100 rounds (TIDEMILL_TEST_ROUNDS gives another number), also with an older server.

Several sessions transfer between accounts of different tables, so that the sum of all balances tells a torn
transaction; with savepoints, rollbacks, and now and then a transaction of many rows. What the upstream went
through is asked of PostgreSQL itself (`proof_upstream`). A materialized view of the sum has one value at all
times. Broken on purpose it fails: a receiver leaves out, repeats or divides one transaction in twenty.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proof.proof_upstream import Broken, Course, Row, judge
from support.server import ServerProcess
from support.upstream_postgres import OLDER_BINARIES, start_again
from tidemill.dev.postgres import Postgres
from tidemill.dev.process import HOST
from tidemill.sources.postgres import spool

pytestmark = pytest.mark.server

TABLES = ("east", "north", "west")
ACCOUNTS = 20
BALANCE = 100
TOTAL = len(TABLES) * ACCOUNTS * BALANCE
SESSIONS = 3
# Rows of a large transaction: more than one block of the spool.
LARGE = spool.BLOCK_MESSAGES + 1000
SECONDS = 240.0
# Of `make chaos`.
ROUNDS = int(os.environ.get("TIDEMILL_TEST_ROUNDS", "100"))
ROWS = " UNION ALL ".join(f"SELECT '{table}' AS name, id, balance FROM {table}" for table in TABLES)


class Ledger:
    def __init__(self, server: ServerProcess, upstream: Postgres) -> None:
        self.server = server
        self.upstream = upstream
        self.rng = random.Random(20)
        self.course = Course(upstream.dsn, "judge")
        # The state of the last time that was judged.
        self.place = 0

    def create(self) -> None:
        with self.sql() as sql:
            for table in TABLES:
                sql.execute(f"CREATE TABLE {table} (id int, balance int)".encode())
                sql.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
                sql.execute(f"CREATE INDEX ON {table} (id)".encode())
            self.course.create()
            with sql.transaction():
                for table in TABLES:
                    sql.execute(
                        f"INSERT INTO {table} SELECT n, {BALANCE} "
                        f"FROM generate_series(1, {ACCOUNTS}) n".encode()
                    )
            sql.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(TABLES)}".encode())
        self.server.start(wait_ready=True)
        with self.ask() as c:
            c.execute(
                f"CREATE CONNECTION pg TO POSTGRES (HOST '{HOST}', PORT {self.upstream.port}, "
                "USER 'postgres', DATABASE 'postgres', SSL MODE 'disable')".encode()
            )
            # While the sessions are at work: the snapshot is in the middle of it.
            with ThreadPoolExecutor(1) as pool:
                work = pool.submit(self.work)
                c.execute(
                    b"CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'p') FOR ALL TABLES "
                    b"WITH (RETAIN HISTORY FOR '1 hour')"
                )
                work.result()
            c.execute(f"CREATE VIEW every AS {ROWS}".encode())
            c.execute(b"CREATE MATERIALIZED VIEW total AS SELECT sum(balance) AS n FROM every")

    def sql(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.upstream.dsn, autocommit=True)

    def ask(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.sql_dsn, autocommit=True)

    # -- the upstream

    def work(self) -> None:
        """Sessions beside each other; one of them may have a large transaction."""
        seeds = [self.rng.randrange(1 << 30) for _ in range(SESSIONS)]
        with ThreadPoolExecutor(SESSIONS) as pool:
            for done in [pool.submit(self.transfers, n, seed) for n, seed in enumerate(seeds)]:
                done.result()

    def transfers(self, session: int, seed: int) -> None:
        rng = random.Random(seed)
        try:
            with self.sql() as sql:
                for _ in range(12):
                    try:
                        self.transaction(sql, rng)
                    except psycopg.errors.DeadlockDetected:
                        sql.execute("ROLLBACK")
                if session == 0 and rng.random() < 0.3:
                    self.large(sql, rng)
        except psycopg.OperationalError:
            # It was killed; what of the last transaction happened, the course tells.
            return

    def transaction(self, sql: psycopg.Connection[Any], rng: random.Random) -> None:
        sql.execute("BEGIN")
        for n in range(rng.choice((1, 1, 2, 10))):
            kept = rng.random()
            if kept < 0.4:
                sql.execute(f"SAVEPOINT s{n}".encode())
            amount = rng.randint(1, 9)
            for table, by in zip(rng.sample(TABLES, 2), (amount, -amount), strict=True):
                account = rng.randint(1, ACCOUNTS)
                sql.execute(f"UPDATE {table} SET balance = balance + {by} WHERE id = {account}".encode())
            if kept < 0.2:
                sql.execute(f"ROLLBACK TO s{n}".encode())
            elif kept < 0.3:
                sql.execute(f"RELEASE s{n}".encode())
        sql.execute("ROLLBACK" if rng.random() < 0.2 else "COMMIT")

    def large(self, sql: psycopg.Connection[Any], rng: random.Random) -> None:
        """Many rows of nothing come or go, and a transfer with them; or all of it is taken back."""
        table = rng.choice(TABLES)
        sql.execute("BEGIN")
        ((count,),) = sql.execute(f"SELECT count(*) FROM {table} WHERE id < 0".encode()).fetchall()
        if count:
            sql.execute(f"DELETE FROM {table} WHERE id < 0".encode())
        else:
            sql.execute(f"INSERT INTO {table} SELECT -n, 0 FROM generate_series(1, {LARGE}) n".encode())
        sql.execute(b"UPDATE east SET balance = balance - 1 WHERE id = 1")
        sql.execute(b"UPDATE west SET balance = balance + 1 WHERE id = 2")
        sql.execute("ROLLBACK" if rng.random() < 0.3 else "COMMIT")

    # -- here

    def trouble(self, which: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(self.work)
            time.sleep(self.rng.random())
            if which != "postgres":
                self.server.kill9()
            if which != "server":
                self.upstream.kill()
            work.result()
        if which != "server":
            start_again(self.upstream)
        if which != "postgres":
            # Killed again before Spark is there, or after it has read something.
            self.server.start(wait_ready=self.rng.random() < 0.5)
        self.work()

    def equal(self) -> None:
        """The tables come to be what the upstream has."""
        with self.sql() as sql:
            wanted = sql.execute(f"{ROWS} ORDER BY 1, 2, 3".encode()).fetchall()
        assert sum(row[2] for row in wanted) == TOTAL
        deadline = time.monotonic() + SECONDS
        with self.ask() as c:
            while (found := c.execute(b"SELECT * FROM every ORDER BY 1, 2, 3").fetchall()) != wanted:
                waits = c.execute(
                    b"SELECT name, status, error, details FROM mz_internal.mz_source_statuses"
                ).fetchall()
                assert time.monotonic() < deadline, (len(found), len(wanted), waits)
                time.sleep(0.2)

    def whole(self) -> None:
        """At every time so far the tables are those of a state of the upstream, in order."""
        self.course.read()
        with self.ask() as c:
            seen = c.execute(b"SUBSCRIBE every AS OF EARLIEST UP TO LATEST").fetchall()
        updates: list[tuple[int, int, Row]] = [
            (int(row[0]), int(row[1]), (row[2], row[3], row[4])) for row in seen
        ]
        place = judge(self.course, updates, 0)
        with self.ask() as c:
            seen = c.execute(b"SUBSCRIBE total AS OF EARLIEST UP TO LATEST").fetchall()
            assert [(row[1], row[2]) for row in seen] == [(1, TOTAL)], seen
            # A time in the middle, which was maybe bound by a server that was killed.
            at = updates[len(updates) // 2][0]
            earlier = c.execute(f"SELECT sum(balance) FROM every AS OF {at}".encode()).fetchall()
            assert earlier == [(TOTAL,)], (at, earlier)
        # States come one after the other, and not all of them at once.
        assert place > self.place and len({update[0] for update in updates}) > 1
        self.place = place
        for row, count in self.course.rows.items():
            assert count in (0, 1), row


@pytest.fixture(params=[None])
def ledger(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Ledger]:
    """The parameter: the programs of PostgreSQL."""
    binaries: Path | None = request.param
    if binaries is not None and not binaries.exists():
        pytest.skip("PostgreSQL 15 is not installed (Debian: apt-get install postgresql-15)")
    # Not a folder of pytest: PostgreSQL may run as another user, who must be able to enter.
    folder = Path(tempfile.mkdtemp(prefix="tidemill-ledger-"))
    upstream = Postgres(folder, binaries=binaries)
    server = ServerProcess(tmp_path / "data")
    try:
        upstream.start()
        yield Ledger(server, upstream)
    finally:
        server.close()
        upstream.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(900)
def test_every_time_shows_whole_transactions_whoever_is_killed(ledger: Ledger) -> None:
    ledger.create()
    for which in ("postgres", "server", "postgres", "both", "postgres"):
        ledger.trouble(which)
        if which == "postgres":
            # The server lives: it goes on where it was.
            ledger.equal()
    ledger.whole()


@pytest.mark.chaos
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("ledger", [None, OLDER_BINARIES], indirect=True, ids=["18", "15"])
def test_every_time_shows_whole_transactions_in_many_rounds(ledger: Ledger) -> None:
    ledger.create()
    for n in range(ROUNDS):
        ledger.trouble(ledger.rng.choice(("postgres", "server", "both")))
        if n % 5 == 4:
            ledger.equal()
            ledger.whole()


def test_the_judge_sees_what_is_torn_or_exchanged() -> None:
    course = Course("", "")
    for lines in (
        ["table public.east: INSERT: id[integer]:1 balance[integer]:5", "COMMIT"],
        [
            (
                "table public.east: UPDATE: old-key: id[integer]:1 balance[integer]:5 "
                "new-tuple: id[integer]:1 balance[integer]:4"
            ),
            "table public.west: INSERT: id[integer]:1 balance[integer]:1",
            "COMMIT",
        ],
        ["table public.west: DELETE: id[integer]:1 balance[integer]:1", "COMMIT"],
    ):
        course._fold(lines)  # pyright: ignore[reportPrivateUsage]
    five, four, one = ("east", 1, 5), ("east", 1, 4), ("west", 1, 1)
    first, second, third = [(10, 1, five)], [(20, -1, five), (20, 1, four), (20, 1, one)], [(30, -1, one)]
    assert judge(course, [*first, *second, *third], 0) == 3
    # Several transactions at one time are whole too.
    assert judge(course, [(20, 1, four), (20, 1, one), *third], 0) == 3
    for wrong in (
        [*first, *second[:2], (21, 1, one)],
        [*first, (20, 1, one)],
        [*first, *second, *first],
        [(10, 1, four), *[(t + 10, -d, r) for t, d, r in third], (50, -1, one)],
    ):
        with pytest.raises(Broken):
            judge(course, wrong, 0)
    with pytest.raises(Broken, match="was at 3 before"):
        judge(course, first, 3)
