"""A tour of Debezium: from an UPDATE in PostgreSQL to a SUBSCRIBE in Tidemill.

Start in two other terminals

    tidemill dev kafka --debezium
    tidemill serve --data-dir data

and run this. It drops what it makes in Tidemill. Other addresses: PGDSN (Tidemill), KAFKA, REGISTRY and
UPSTREAM (the PostgreSQL).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import psycopg

TIDEMILL = os.environ.get("PGDSN", "host=localhost port=6875 user=materialize dbname=materialize")
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
REGISTRY = os.environ.get("REGISTRY", "http://127.0.0.1:8081/apis/ccompat/v7")
UPSTREAM = os.environ.get("UPSTREAM", "host=127.0.0.1 port=5433 user=postgres dbname=postgres")
WAIT_SECONDS = 60.0

TABLES = ("accounts", "transfers")
BALANCES = "SELECT id, owner, balance FROM {} ORDER BY id"


class Tour:
    """The two databases, and how statements are shown."""

    def __init__(self) -> None:
        self.upstream = psycopg.connect(UPSTREAM, autocommit=True)
        self.sql = psycopg.connect(TIDEMILL, autocommit=True)
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

    def wait_for(self, query: str, wanted: list[tuple[Any, ...]]) -> None:
        """Show the query when it has this answer; the next tick brings what was written."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.sql.execute(query.encode()).fetchall() != wanted:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.show(query)} is not {wanted}")
            time.sleep(0.2)
        self.show(query)


def print_row(row: Sequence[Any]) -> None:
    print("  ", " | ".join("" if value is None else str(value) for value in row), flush=True)


def heading(text: str) -> None:
    print(f"\n\n== {text} ==", flush=True)


def two_tables(tour: Tour) -> None:
    heading("Two tables of a PostgreSQL, and its transactions")
    avro = "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION tour_registry"
    tour.run(
        "CREATE SOURCE tour_transactions FROM KAFKA CONNECTION tour_kafka (TOPIC 'dev.transaction')\n"
        f"  {avro}"
    )
    for table in TABLES:
        tour.run(
            f"CREATE SOURCE tour_{table} FROM KAFKA CONNECTION tour_kafka (TOPIC 'dev.public.{table}')\n"
            f"  {avro}\n"
            "  ENVELOPE DEBEZIUM (TRANSACTION METADATA\n"
            f"    (SOURCE tour_transactions, COLLECTION 'public.{table}'))"
        )
    tour.wait_for(BALANCES.format("tour_accounts"), upstream_rows(tour))


def from_update_to_subscribe(tour: Tour) -> None:
    heading("From an UPDATE to a SUBSCRIBE")
    query = "SUBSCRIBE tour_accounts"
    with psycopg.connect(TIDEMILL) as subscriber, subscriber.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = '{WAIT_SECONDS:.0f}s'".encode())
        print(f"\ntidemill=> {query};", flush=True)
        accounts = len(upstream_rows(tour))
        for shown, row in enumerate(cursor.stream(query.encode()), 1):
            print_row(row)
            if shown == accounts:
                tour.upstream_run("UPDATE accounts SET balance = balance + 5 WHERE id = 3")
                print("\nThe subscription goes on: the old row goes, the new one comes.", flush=True)
            elif shown == accounts + 2:
                break


def a_transfer(tour: Tour) -> None:
    heading("A transfer between two accounts")
    query = (
        "SUBSCRIBE (SELECT t.count AS transfers, a.sum AS total\n"
        "  FROM (SELECT count(*) FROM tour_transfers) AS t, (SELECT sum(balance) FROM tour_accounts) AS a)"
    )
    with psycopg.connect(TIDEMILL) as subscriber, subscriber.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = '{WAIT_SECONDS:.0f}s'".encode())
        print(f"\ntidemill=> {query};", flush=True)
        totals: list[Any] = []
        for row in cursor.stream(query.encode()):
            print_row(row)
            totals.append(row[-1])
            if len(totals) == 1:
                tour.upstream_run(
                    "UPDATE accounts SET balance = balance - 20 WHERE id = 2",
                    "UPDATE accounts SET balance = balance + 20 WHERE id = 3",
                    "INSERT INTO transfers (from_account, to_account, amount) VALUES (2, 3, 20)",
                )
                print("\nAll of it is there at one time: the total stays.", flush=True)
            elif len(totals) == 3:
                break
    if len(set(totals)) > 1:
        raise SystemExit(f"a part of a transaction was seen: {totals}")
    tour.wait_for(BALANCES.format("tour_accounts"), upstream_rows(tour))


def upstream_rows(tour: Tour) -> list[tuple[Any, ...]]:
    return tour.upstream.execute(BALANCES.format("accounts").encode()).fetchall()


def state_by_key(tour: Tour) -> None:
    heading("What is kept beside the rows")
    tour.wait_for(
        "SELECT s.name, coalesce(t.bytes_indexed, 0) AS bytes_of_state_by_key\n"
        "  FROM mz_internal.mz_source_statistics AS t JOIN mz_sources AS s ON s.id = t.id\n"
        "  WHERE s.name LIKE 'tour\\_%' ORDER BY s.name",
        [("tour_accounts", 0), ("tour_transactions", 0), ("tour_transfers", 0)],
    )


def drop(tour: Tour) -> None:
    for source in (*TABLES, "transactions"):
        tour.sql.execute(f"DROP SOURCE IF EXISTS tour_{source} CASCADE".encode())
    for connection in ("tour_kafka", "tour_registry"):
        tour.sql.execute(f"DROP CONNECTION IF EXISTS {connection} CASCADE".encode())


def main() -> None:
    try:
        tour = Tour()
    except psycopg.OperationalError as e:
        raise SystemExit(f"{e}Start `tidemill dev kafka --debezium` and `tidemill serve`.") from e
    # Of a tour that was killed.
    drop(tour)
    try:
        tour.run(f"CREATE CONNECTION tour_kafka TO KAFKA (BROKER '{KAFKA}', SECURITY PROTOCOL PLAINTEXT)")
        tour.run(f"CREATE CONNECTION tour_registry TO CONFLUENT SCHEMA REGISTRY (URL '{REGISTRY}')")
        two_tables(tour)
        from_update_to_subscribe(tour)
        a_transfer(tour)
        state_by_key(tour)
    finally:
        drop(tour)
    print("\nThat was the tour.")


if __name__ == "__main__":
    main()
