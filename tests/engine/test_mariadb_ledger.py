"""ENVELOPE DEBEZIUM with the transaction topic over a real MariaDB, whose connector is killed at work: two
tables show whole transactions at every time, and come to equal the upstream.

One transaction moves an amount from an account of one table to one of the other, so the sum of both is
constant. After a kill MariaDB's connector numbers the changes of a transaction anew, and repeats BEGIN.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.debezium import Debezium
from support.kafka import Kafka
from support.mariadb import MariaDb

TABLES = ("here", "there")
ACCOUNTS = 6
BALANCE = 100


def transfers(mariadb: MariaDb, chance: random.Random, count: int) -> None:
    statements: list[str] = []
    for _ in range(count):
        statements.append("START TRANSACTION")
        for _ in range(chance.choice((1, 1, 2, 40))):
            amount = chance.randint(1, 9)
            for table, by in zip(chance.sample(TABLES, 2), (amount, -amount), strict=True):
                account = chance.randint(1, ACCOUNTS)
                statements.append(f"UPDATE {table} SET balance = balance + {by} WHERE id = {account}")
        statements.append("COMMIT")
    mariadb.sql(*statements)


@pytest.mark.timeout(1200)
def test_transactions_of_a_mariadb_whose_connector_is_killed(
    home: psycopg.Connection[Any], kafka: Kafka, debezium: Debezium, mariadb: MariaDb
) -> None:
    chance = random.Random(17)
    for table in TABLES:
        rows = ", ".join(f"({n}, {BALANCE})" for n in range(1, ACCOUNTS + 1))
        mariadb.sql(
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)",
            f"INSERT INTO {table} VALUES {rows}",
        )
    prefix = f"m{uuid.uuid4().hex[:10]}"
    often = {"offset.flush.interval.ms": "2000"}
    debezium.connect.create(prefix, mariadb.connector(prefix, kafka.bootstrap, *TABLES) | often)
    until(lambda: all(kafka.read(f"{prefix}.app.{table}") for table in TABLES), True)
    transfers(mariadb, chance, 1)
    until(lambda: bool(kafka.read(f"{prefix}.transaction")), True)

    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(home, f"CREATE SOURCE tx FROM KAFKA CONNECTION k (TOPIC '{prefix}.transaction') FORMAT JSON")
    for table in TABLES:
        run(
            home,
            f"CREATE SOURCE {table} FROM KAFKA CONNECTION k (TOPIC '{prefix}.app.{table}') "
            "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM "
            f"(TRANSACTION METADATA (SOURCE tx, COLLECTION 'app.{table}')) "
            "WITH (RETAIN HISTORY FOR '1 hour')",
        )
    both = " UNION ALL ".join(
        f"SELECT '{t}' AS t, data->>'id' AS id, data->>'balance' AS b FROM {t}" for t in TABLES
    )
    run(home, f"CREATE VIEW of_both AS {both}")

    def equal() -> None:
        query = " UNION ALL ".join(f"SELECT '{t}' AS t, id, balance FROM {t}" for t in TABLES)
        wanted = [tuple(row) for row in mariadb.sql(f"{query} ORDER BY 1, 2")]
        until(lambda: run(home, "SELECT t, id, b FROM of_both ORDER BY 1, 2"), wanted)

    equal()
    for _ in range(2):
        transfers(mariadb, chance, 25)
        debezium.kill()
        transfers(mariadb, chance, 10)
        debezium.start()
        transfers(mariadb, chance, 10)
        equal()
    seen = run(home, "SUBSCRIBE (SELECT sum(b::int) FROM of_both) AS OF EARLIEST UP TO LATEST")
    assert {row[-1] for row in seen} == {len(TABLES) * ACCOUNTS * BALANCE}

    # A log to which another server writes: its positions cannot be compared.
    kept = run(home, "SELECT t, id, b FROM of_both ORDER BY 1, 2")
    mariadb.sql("SET GLOBAL server_id = 8")
    try:
        mariadb.sql("START TRANSACTION", *(f"UPDATE {table} SET balance = 0" for table in TABLES), "COMMIT")
    finally:
        mariadb.sql("SET GLOBAL server_id = 7")
    for table in TABLES:
        until(lambda table=table: status(home, table), ["the changes come from another upstream than before"])
        ((detail,),) = run(
            home, f"SELECT details->>'detail' FROM mz_internal.mz_source_statuses WHERE name = '{table}'"
        )
        of = f'connector "mariadb", name "{prefix}", server_id'
        topic = f'in topic "{prefix}.app.{table}", partition 0'
        assert detail.startswith(f"Until now they came from {of} 7; {topic} they come from {of} 8. ")
    run(home, "SET transaction_isolation = 'serializable'")
    assert run(home, "SELECT t, id, b FROM of_both ORDER BY 1, 2") == kept
    debezium.connect.delete(prefix)


def status(home: psycopg.Connection[Any], table: str) -> list[object]:
    found = run(home, f"SELECT error FROM mz_internal.mz_source_statuses WHERE name = '{table}'")
    return [error for (error,) in found]
