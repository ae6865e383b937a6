"""ENVELOPE DEBEZIUM UPSERT over a real Debezium on a real PostgreSQL. It is killed at work; once it is quiet
the relations equal the upstream table."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess
from tidemill.decode.debezium.placeholders import PLACEHOLDER
from tidemill.envelope.unavailable import UNKNOWN_TEXT

TABLE = "upserted"
# Too long for its row: PostgreSQL keeps it elsewhere, and leaves it out of updates that do not touch it.
LARGE = 4000
KEYS = range(40)
ROUNDS = 2
CHANGES = 60


def change(sql: psycopg.Cursor[Any], chance: random.Random, mark: str) -> None:
    """One change of one row: it comes, goes, changes in its small or in its large column, or gets another
    key."""
    key = chance.choice(KEYS)
    match chance.randrange(6):
        case 0:
            sql.execute(f"DELETE FROM {TABLE} WHERE a = %s".encode(), (key,))
        case 1:
            large = chance.randbytes(LARGE // 2).hex()
            sql.execute(f"UPDATE {TABLE} SET big = %s WHERE a = %s".encode(), (large, key))
        case 2:
            # Small values are always sent.
            sql.execute(
                f"UPDATE {TABLE} SET b = b + 1, big = 'small' WHERE a = %s".encode(),
                (key,),
            )
        case 3:
            large = chance.randbytes(LARGE // 2).hex()
            sql.execute(
                f"INSERT INTO {TABLE} VALUES (%s, 0, %s, %s) ON CONFLICT (a, b) DO NOTHING".encode(),
                (mark, key, large),
            )
        case _:
            sql.execute(f"UPDATE {TABLE} SET note = %s WHERE a = %s".encode(), (mark, key))


def work(debezium: Debezium, chance: random.Random, mark: str) -> None:
    with debezium.sql() as sql:
        for n in range(CHANGES // 4):
            with sql.transaction(), sql.cursor() as cursor:
                for i in range(4):
                    change(cursor, chance, f"{mark}.{n}.{i}")


def outcome(connection: psycopg.Connection[Any], sql: str) -> object:
    """The rows, or the text of an error."""
    try:
        return run(connection, sql)
    except psycopg.errors.DataException as e:
        return e.diag.message_primary


# Kills of Connect, which needs ten seconds to be back, or a minute where the cores are busy.
@pytest.mark.timeout(1200)
def test_a_debezium_that_is_killed_at_work(
    home: psycopg.Connection[Any],
    server: ServerProcess,
    kafka: Kafka,
    registry: SchemaRegistry,
    debezium: Debezium,
) -> None:
    chance = random.Random(5)
    with debezium.sql() as sql:
        sql.execute(f"CREATE TABLE {TABLE} (note text, b int, a int, big text, PRIMARY KEY (b, a))".encode())
        sql.execute(f"ALTER TABLE {TABLE} ALTER COLUMN big SET STORAGE EXTERNAL".encode())
        sql.execute(
            f"INSERT INTO {TABLE} SELECT 'first', 0, n, repeat(md5(n::text), {LARGE // 32}) "
            f"FROM generate_series(0, {len(KEYS) // 2}) n".encode()
        )
    avro, plain = (
        debezium.capture(f"public.{TABLE}"),
        debezium.capture(f"public.{TABLE}", avro=False),
    )
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(home, f"CREATE CONNECTION c TO CONFLUENT SCHEMA REGISTRY (URL '{registry.url}')")
    for prefix in (avro, plain):
        until(lambda topic=f"{prefix}.public.{TABLE}": bool(kafka.read(topic)), True)
    run(
        home,
        f"CREATE SOURCE by_avro FROM KAFKA CONNECTION k (TOPIC '{avro}.public.{TABLE}') "
        "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c ENVELOPE DEBEZIUM UPSERT",
    )
    run(
        home,
        f"CREATE SOURCE by_json FROM KAFKA CONNECTION k (TOPIC '{plain}.public.{TABLE}') "
        "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM UPSERT",
    )
    run(
        home,
        "CREATE VIEW of_json AS SELECT data->>'note' AS note, (data->>'b')::int AS b, "
        "(data->>'a')::int AS a, data->>'big' AS big FROM by_json",
    )
    rows = "SELECT note, b, a, big FROM {} ORDER BY b, a"

    def equal() -> None:
        with debezium.sql() as sql:
            wanted = sql.execute(rows.format(TABLE).encode()).fetchall()
        for relation in ("by_avro", "of_json"):
            until(lambda relation=relation: outcome(home, rows.format(relation)), wanted)

    for number in range(ROUNDS):
        work(debezium, chance, f"before {number}")
        debezium.kill()
        work(debezium, chance, f"away {number}")
        debezium.start()
        work(debezium, chance, f"after {number}")
        if number == 0:
            with debezium.sql() as sql:
                sql.execute(f"TRUNCATE {TABLE}".encode())
        equal()
    # With its key, a row loses what PostgreSQL did not send; it is told until it is sent.
    with debezium.sql() as sql:
        sql.execute(f"INSERT INTO {TABLE} VALUES ('moves', 0, -1, repeat('x', {LARGE}))".encode())
        equal()
        sql.execute(f"UPDATE {TABLE} SET a = -2 WHERE a = -1".encode())
        for relation, column in (("by_avro", "big"), ("by_json", "data")):
            left_out = UNKNOWN_TEXT.format(column=column)
            until(lambda relation=relation: outcome(home, f"SELECT count(*) FROM {relation}"), left_out)
        sql.execute(f"UPDATE {TABLE} SET big = repeat('y', {LARGE}) WHERE a = -2".encode())
        equal()
        # Unless PostgreSQL is to send all of the row before.
        sql.execute(f"ALTER TABLE {TABLE} REPLICA IDENTITY FULL".encode())
        sql.execute(f"UPDATE {TABLE} SET a = -3 WHERE a = -2".encode())
        equal()
    written = [message.value() or b"" for message in kafka.read(f"{plain}.public.{TABLE}")]
    assert any(PLACEHOLDER.encode() in value for value in written)
    for prefix in (avro, plain):
        debezium.release(prefix)
