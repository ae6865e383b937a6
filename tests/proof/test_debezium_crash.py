"""ENVELOPE DEBEZIUM over a real Debezium on a real PostgreSQL, with kill -9 of Connect, the broker and the
server in turn: no change is lost or counted twice. `make chaos` goes 100 rounds.

Of a change that is applied twice or not at all a row would be left over, or be there less often than not at
all: either is seen, because nothing in the relation's state knows of keys.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from proof_debezium import SECONDS, SEED, VICTIMS, DebeziumProof

from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka

TABLE = "accounts"
ACCOUNTS = 30
ROWS = "SELECT id, balance, note FROM {} ORDER BY id"
RELATIONS = {
    "by_avro": "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c",
    "by_json": "KEY FORMAT JSON VALUE FORMAT JSON",
}


class Bank(DebeziumProof):
    """The upstream is read through Avro and through JSON."""

    rng: random.Random
    work_done: int

    def create(self) -> None:
        self.rng, self.work_done = random.Random(7 + SEED), 0
        with self.debezium.sql() as sql:
            sql.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
            sql.execute(
                f"CREATE TABLE {TABLE} (id int PRIMARY KEY, balance int NOT NULL, note text)".encode()
            )
            sql.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL".encode())
            sql.execute(f"INSERT INTO {TABLE} SELECT n, 100 FROM generate_series(1, {ACCOUNTS}) n".encode())
        # So that a kill of Connect makes it repeat something.
        noted = {"offset.flush.interval.ms": "5000"}
        prefixes = [self.debezium.capture(f"public.{TABLE}", avro=avro, **noted) for avro in (True, False)]
        topics = [f"{prefix}.public.{TABLE}" for prefix in prefixes]
        self.wait_for_records(*topics)
        self.server.start()
        with self.ask() as c:
            self.connect(c)
            for (relation, form), topic in zip(RELATIONS.items(), topics, strict=True):
                c.execute(
                    f"CREATE SOURCE {relation} FROM KAFKA CONNECTION k (TOPIC '{topic}') {form} "
                    "ENVELOPE DEBEZIUM".encode()
                )
            c.execute(
                b"CREATE VIEW of_json AS SELECT (data->>'id')::int AS id, "
                b"(data->>'balance')::int AS balance, data->>'note' AS note FROM by_json"
            )

    def work(self, transactions: int = 15) -> None:
        """Transfers; now and then an account is opened, closed or renumbered, or many rows come by COPY."""
        rng = self.rng
        with self.debezium.sql() as sql:
            for _ in range(transactions):
                self.work_done += 1
                n, some = self.work_done, rng.randint(1, ACCOUNTS)
                with sql.transaction(), sql.cursor() as cursor:
                    a, b = rng.sample(range(1, ACCOUNTS + 1), 2)
                    amount = rng.randint(1, 9)
                    for account, by in ((a, -amount), (b, amount)):
                        cursor.execute(
                            f"UPDATE {TABLE} SET balance = balance + %s, note = %s WHERE id = %s".encode(),
                            (by, f"n{n}", account),
                        )
                    step = rng.random()
                    if step < 0.1:
                        cursor.execute(f"DELETE FROM {TABLE} WHERE id = %s".encode(), (some,))
                    elif step < 0.2:
                        cursor.execute(
                            f"INSERT INTO {TABLE} VALUES (%s, 7, 'again') ON CONFLICT DO NOTHING".encode(),
                            (some,),
                        )
                    elif step < 0.3:
                        cursor.execute(f"UPDATE {TABLE} SET id = %s WHERE id = %s".encode(), (1000 + n, some))
                    elif step < 0.4:
                        with cursor.copy(f"COPY {TABLE} (id, balance) FROM STDIN".encode()) as copy:
                            for i in range(50):
                                copy.write_row((10_000 + 100 * n + i, i))

    def equal(self) -> None:
        """Both relations hold what the upstream holds, or come to it."""
        with self.debezium.sql() as sql:
            wanted = sql.execute(ROWS.format(TABLE).encode()).fetchall()
        deadline = time.monotonic() + SECONDS
        with self.ask() as c:
            for relation in ("by_avro", "of_json"):
                while (found := c.execute(ROWS.format(relation).encode()).fetchall()) != wanted:
                    assert time.monotonic() < deadline, (relation, set(found) ^ set(wanted))
                    time.sleep(0.2)


@pytest.fixture
def bank(tmp_path: Path, kafka: Kafka, registry: SchemaRegistry, debezium: Debezium) -> Generator[Bank]:
    with Bank.of(tmp_path, kafka, registry, debezium) as made:
        yield made


@pytest.mark.timeout(1200)
def test_each_change_counts_once_whoever_is_killed(bank: Bank) -> None:
    bank.create()
    bank.equal()
    for which in VICTIMS:
        bank.trouble(which)
    bank.equal()


@pytest.mark.chaos
@pytest.mark.timeout(7200)
def test_each_change_counts_once_in_many_rounds(bank: Bank) -> None:
    bank.create()
    for compared in bank.rounds():
        if compared:
            bank.equal()
