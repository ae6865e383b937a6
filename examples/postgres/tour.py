"""A tour of PostgreSQL sources: two statements, and the tables of a PostgreSQL are live in Tidemill.

    tour.py --alone

starts all that is needed, and ends it again. Without the flag, start in two other terminals

    tidemill dev postgres
    tidemill serve --data-dir data

The tour drops what it makes. Other addresses: PGDSN (Tidemill) and UPSTREAM (the PostgreSQL).
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

TIDEMILL = os.environ.get("PGDSN", "host=localhost port=6875 user=materialize dbname=materialize")
UPSTREAM = os.environ.get("UPSTREAM", "host=127.0.0.1 port=5433 user=postgres dbname=postgres")
WAIT_SECONDS = 60.0
START_SECONDS = 300.0
READS = 5

# A transfer changes two of the accounts 1, 2 and 3. What is theirs together stays.
SUM = "SELECT sum(balance)::bigint FROM {} WHERE id <= 3"


class Tour:
    """The two databases, and how statements are shown."""

    def __init__(self, tidemill: str, upstream: str) -> None:
        self.tidemill, self.address = tidemill, upstream
        self.upstream = psycopg.connect(upstream, autocommit=True)
        self.sql = psycopg.connect(tidemill, autocommit=True)
        # A source that has never been complete is waited for, but not forever.
        self.sql.execute(f"SET statement_timeout = '{WAIT_SECONDS:.0f}s'".encode())

    def upstream_run(self, *statements: str) -> None:
        """Run statements in PostgreSQL, as one transaction."""
        print(flush=True)
        with self.upstream.transaction():
            for statement in statements:
                print(f"postgres=# {statement};", flush=True)
                self.upstream.execute(statement.encode())

    def run(self, statement: str) -> None:
        print(f"\ntidemill=> {statement};", flush=True)
        self.sql.execute(statement.encode())

    def show(self, query: str) -> list[tuple[Any, ...]]:
        print(f"\ntidemill=> {query};", flush=True)
        rows = self.sql.execute(query.encode()).fetchall()
        for row in rows:
            print_row(row)
        return rows


def print_row(row: Sequence[Any]) -> None:
    print("  ", " | ".join("" if value is None else str(value) for value in row), flush=True)


def heading(text: str) -> None:
    print(f"\n\n== {text} ==", flush=True)


def two_statements(tour: Tour) -> None:
    heading("Two statements")
    place = conninfo_to_dict(tour.address)
    tour.run(
        f"CREATE CONNECTION tour_pg TO POSTGRES (HOST '{place['host']}', PORT {place['port']}, "
        f"USER '{place['user']}', DATABASE '{place['dbname']}')"
    )
    tour.run(
        "CREATE SOURCE tour FROM POSTGRES CONNECTION tour_pg (PUBLICATION 'tidemill')\n"
        "  FOR TABLES (accounts AS tour_accounts, transfers AS tour_transfers)"
    )
    tour.show("SELECT id, owner, balance FROM tour_accounts ORDER BY id")


def whole_transactions(tour: Tour) -> None:
    heading("Whole transactions")
    wanted = tour.upstream.execute(SUM.format("accounts").encode()).fetchall()
    print("\nTransfers are committed all the time. Every read is at one time, behind a whole number of them.")
    for _ in range(READS):
        with tour.upstream.transaction():
            tour.upstream.execute("UPDATE accounts SET balance = balance - 7 WHERE id = 1")
            tour.upstream.execute("UPDATE accounts SET balance = balance + 7 WHERE id = 2")
            tour.upstream.execute("INSERT INTO transfers (from_account, to_account, amount) VALUES (1, 2, 7)")
        if tour.show(SUM.format("tour_accounts")) != wanted:
            raise SystemExit(f"upstream they have {wanted[0][0]} together")
        time.sleep(0.5)


def from_update_to_subscribe(tour: Tour) -> None:
    heading("From an UPDATE to a SUBSCRIBE")
    query = "SUBSCRIBE (SELECT id, owner, balance FROM tour_accounts WHERE owner = 'eve')"
    tour.upstream_run("INSERT INTO accounts VALUES (4, 'eve', 0)")
    with psycopg.connect(tour.tidemill) as subscriber, subscriber.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = '{WAIT_SECONDS:.0f}s'".encode())
        print(f"\ntidemill=> {query};", flush=True)
        for shown, row in enumerate(cursor.stream(query.encode()), 1):
            print_row(row)
            if shown == 1:
                tour.upstream_run("UPDATE accounts SET balance = balance + 5 WHERE id = 4")
                print("\nThe subscription goes on: the old row goes, the new one comes.", flush=True)
            elif shown == 3:
                break


def a_view(tour: Tour) -> None:
    heading("A view that is kept up to date")
    tour.run(
        "CREATE MATERIALIZED VIEW tour_paid AS\n"
        "  SELECT a.owner, sum(t.amount) AS paid FROM tour_transfers AS t\n"
        "  JOIN tour_accounts AS a ON a.id = t.from_account GROUP BY a.owner"
    )
    tour.show("SELECT owner, paid FROM tour_paid ORDER BY owner")


def where_it_is(tour: Tour) -> None:
    heading("Where it is")
    tour.show("SELECT lsn FROM tour_progress")
    tour.show("SELECT status FROM mz_internal.mz_source_statuses WHERE name = 'tour'")


def drop(tour: Tour) -> None:
    tour.sql.execute(b"DROP MATERIALIZED VIEW IF EXISTS tour_paid")
    tour.sql.execute(b"DROP SOURCE IF EXISTS tour CASCADE")
    tour.sql.execute(b"DROP CONNECTION IF EXISTS tour_pg CASCADE")
    tour.upstream.execute(b"DELETE FROM accounts WHERE id = 4")


def run_tour(tidemill: str, upstream: str) -> None:
    try:
        tour = Tour(tidemill, upstream)
    except psycopg.OperationalError as e:
        raise SystemExit(f"{e}Start `tidemill dev postgres` and `tidemill serve`, or use --alone.") from e
    # Of a tour that was killed.
    drop(tour)
    try:
        two_statements(tour)
        whole_transactions(tour)
        from_update_to_subscribe(tour)
        a_view(tour)
        where_it_is(tour)
    finally:
        drop(tour)
    print("\nThat was the tour.")


@contextmanager
def alone() -> Generator[tuple[str, str]]:
    """Tidemill and a PostgreSQL of our own; where they are."""
    sql, http, postgres = free_ports(3)
    tidemill = f"host=127.0.0.1 port={sql} user=materialize dbname=materialize"
    upstream = f"host=127.0.0.1 port={postgres} user=postgres dbname=postgres"
    listen = ("--sql-addr", f"127.0.0.1:{sql}", "--http-addr", f"127.0.0.1:{http}")
    with tempfile.TemporaryDirectory(prefix="tidemill-tour-") as folder:
        print("starting a PostgreSQL and Tidemill", flush=True)
        # The publication is the last thing that the PostgreSQL gets.
        published = "SELECT FROM pg_publication WHERE pubname = 'tidemill'"
        with (
            program(upstream, published, folder, "dev", "postgres", "--port", str(postgres)),
            program(tidemill, "SELECT 1", folder, "serve", "--data-dir", f"{folder}/data", *listen),
        ):
            yield tidemill, upstream


@contextmanager
def program(dsn: str, query: str, folder: str, *arguments: str) -> Generator[None]:
    """`tidemill` with these arguments, from when the query has a row there."""
    log = Path(folder) / f"{arguments[0]}.log"
    command = [sys.executable, "-m", "tidemill.cli", *arguments]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not has_row(dsn, query):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"`tidemill {arguments[0]}` does not start:\n{log.read_text()}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def has_row(dsn: str, query: str) -> bool:
    try:
        with psycopg.connect(dsn, autocommit=True) as sql:
            return bool(sql.execute(query.encode()).fetchall())
    except psycopg.OperationalError:
        return False


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def main() -> None:
    parser = argparse.ArgumentParser(description="A tour of PostgreSQL sources.")
    parser.add_argument("--alone", action="store_true", help="start all that is needed, and end it again")
    if parser.parse_args().alone:
        with alone() as (tidemill, upstream):
            run_tour(tidemill, upstream)
    else:
        run_tour(TIDEMILL, UPSTREAM)


if __name__ == "__main__":
    main()
