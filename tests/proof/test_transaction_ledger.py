"""TRANSACTION METADATA over a real Debezium on a real PostgreSQL, with kill -9 of Connect, the broker and
the server in turn: at every time three tables show a whole number of upstream transactions, in their order,
and in the end they equal the upstream. `make chaos` goes 100 rounds.

A transfer goes between accounts of different tables, so the sum of all tells a torn transaction. One writer
also numbers its transactions in every table, so unequal numbers tell a torn or exchanged one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof_debezium import SECONDS, VICTIMS, DebeziumProof

from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka

TABLES = ("east", "north", "west")
ACCOUNTS = 8
BALANCE = 100
# By the form of the messages: the envelope, the format, and a table's rows from its relation.
FORMS = {
    "avro": ("DEBEZIUM", "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c", "id, balance"),
    "json": (
        "DEBEZIUM UPSERT",
        "KEY FORMAT JSON VALUE FORMAT JSON",
        "(data->>'id')::int AS id, (data->>'balance')::int AS balance",
    ),
}
# The number of a writer's last transaction is the balance of this account.
NUMBER = 0


class Ledger(DebeziumProof):
    """`number` of the last numbered transaction. `checked`: from which time on histories were not checked.
    `alone`: whether there is one writer."""

    rng: random.Random
    number: int
    checked: dict[str, int]
    alone = False

    def create(self) -> None:
        self.rng, self.number, self.checked = random.Random(11), 0, dict.fromkeys(FORMS, 0)
        with self.debezium.sql() as sql:
            for table in TABLES:
                sql.execute(f"DROP TABLE IF EXISTS {table}".encode())
                sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)".encode())
                sql.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
                sql.execute(
                    f"INSERT INTO {table} SELECT n, CASE n WHEN 0 THEN 0 ELSE {BALANCE} END "
                    f"FROM generate_series(0, {ACCOUNTS}) n".encode()
                )
        names = [f"public.{table}" for table in TABLES]
        # So that a kill of Connect makes it repeat something.
        often = {"offset.flush.interval.ms": "3000"}
        prefixes = {form: self.debezium.capture(*names, avro=form == "avro", **often) for form in FORMS}
        self.wait_for_records(*(f"{p}.public.{t}" for p in prefixes.values() for t in TABLES))
        # The transaction topic is made by the first transaction.
        self.transfers(1)
        self.wait_for_records(*(f"{prefix}.transaction" for prefix in prefixes.values()))
        self.server.start()
        with self.ask() as c:
            self.connect(c)
            for form, (envelope, clauses, columns) in FORMS.items():
                topic, plain = prefixes[form], clauses.replace("KEY FORMAT JSON VALUE ", "")
                read = "FROM KAFKA CONNECTION k"
                c.execute(f"CREATE SOURCE {form}_tx {read} (TOPIC '{topic}.transaction') {plain}".encode())
                for table in TABLES:
                    c.execute(
                        f"CREATE SOURCE {form}_{table} {read} (TOPIC '{topic}.public.{table}') {clauses} "
                        f"ENVELOPE {envelope} (TRANSACTION METADATA (SOURCE {form}_tx, "
                        f"COLLECTION 'public.{table}')) WITH (RETAIN HISTORY FOR '1 hour')".encode()
                    )
                of_all = " UNION ALL ".join(
                    f"SELECT '{table}' AS name, {columns} FROM {form}_{table}" for table in TABLES
                )
                c.execute(f"CREATE VIEW {form}_all AS {of_all}".encode())
                c.execute(
                    f"CREATE VIEW {form}_state AS SELECT count(*) AS rows, "
                    f"sum(CASE id WHEN {NUMBER} THEN 0 ELSE balance END) AS total, "
                    f"min(CASE id WHEN {NUMBER} THEN balance END) AS least, "
                    f"max(CASE id WHEN {NUMBER} THEN balance END) AS most FROM {form}_all".encode()
                )

    def transfers(self, count: int, *, numbered: bool = True, seed: int = 0) -> None:
        rng = random.Random(seed)
        with self.debezium.sql() as sql:
            for _ in range(count):
                number = self.number + 1 if numbered else None
                try:
                    self.transfer(sql, rng, number)
                except psycopg.errors.DeadlockDetected:
                    continue
                self.number = number or self.number

    def transfer(self, sql: psycopg.Connection[Any], rng: random.Random, number: int | None) -> None:
        with sql.transaction(), sql.cursor() as cursor:
            if number is not None:
                for table in TABLES:
                    cursor.execute(f"UPDATE {table} SET balance = %s WHERE id = {NUMBER}".encode(), (number,))
            for _ in range(rng.choice((1, 1, 2, 30))):
                amount = rng.randint(1, 9)
                for table, by in zip(rng.sample(TABLES, 2), (amount, -amount), strict=True):
                    cursor.execute(
                        f"UPDATE {table} SET balance = balance + %s WHERE id = %s".encode(),
                        (by, rng.randint(1, ACCOUNTS)),
                    )

    def trouble(self, which: str) -> None:
        """Debezium 3.6.2, when it is killed, can lose a transaction that ran beside another: nothing of it is
        in the topics. So there is one writer then, who begins when all before was read."""
        self.alone = which == "connect"
        if self.alone:
            self.equal()
        super().trouble(which)
        if self.alone:
            self.equal()

    def work(self) -> None:
        """Two writers, whose commits are in another order than their changes."""
        seed = self.rng.randrange(1 << 30)
        if self.alone:
            self.transfers(25, seed=seed)
            return
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(self.transfers, 10, numbered=False, seed=seed)
            self.transfers(15, seed=seed + 1)
            other.result()

    def equal(self) -> None:
        """All tables come to hold what the upstream holds."""
        rows = " UNION ALL ".join(f"SELECT '{table}', id, balance FROM {table}" for table in TABLES)
        with self.debezium.sql() as sql:
            wanted = sql.execute(f"{rows} ORDER BY 1, 2".encode()).fetchall()
        deadline = time.monotonic() + SECONDS
        with self.ask() as c:
            for form in FORMS:
                query = f"SELECT name, id, balance FROM {form}_all ORDER BY 1, 2".encode()
                while (found := c.execute(query).fetchall()) != wanted:
                    waits = c.execute(
                        b"SELECT name, status, error, details FROM mz_internal.mz_source_statuses"
                    ).fetchall()
                    assert time.monotonic() < deadline, (form, set(found) ^ set(wanted), waits)
                    time.sleep(0.2)

    def whole(self) -> None:
        """At every time that was not checked yet, the tables show whole transactions."""
        total = len(TABLES) * ACCOUNTS * BALANCE
        with self.ask() as c:
            for form in FORMS:
                since = self.checked[form]
                begin = f"AS OF {since}" if since else "AS OF EARLIEST"
                seen = c.execute(f"SUBSCRIBE {form}_state {begin} UP TO LATEST".encode()).fetchall()
                rows = [row for row in seen if row[1] > 0]
                assert rows or since
                torn = [
                    r for r in rows if r[3] != total or r[4] != r[5] or r[2] != len(TABLES) * (ACCOUNTS + 1)
                ]
                assert torn == [], (form, torn[:5])
                numbers = [int(row[4]) for row in rows]
                assert numbers == sorted(numbers), (form, numbers)
                if rows:
                    self.checked[form] = int(rows[-1][0])


@pytest.fixture
def ledger(tmp_path: Path, kafka: Kafka, registry: SchemaRegistry, debezium: Debezium) -> Generator[Ledger]:
    with Ledger.of(tmp_path, kafka, registry, debezium) as made:
        yield made


@pytest.mark.timeout(1200)
def test_every_time_shows_whole_transactions_whoever_is_killed(ledger: Ledger) -> None:
    ledger.create()
    ledger.equal()
    for which in ("connect", "server", "broker", "server", "connect"):
        ledger.trouble(which)
    ledger.equal()
    ledger.whole()


@pytest.mark.chaos
@pytest.mark.timeout(14400)
def test_every_time_shows_whole_transactions_in_many_rounds(ledger: Ledger) -> None:
    ledger.create()
    for n in range(100):
        ledger.trouble(ledger.rng.choice(VICTIMS))
        if n % 5 == 4:
            ledger.equal()
            ledger.whole()
