"""Sinks of a real server into a real broker, with a real registry: tables, sources and materialized views,
read back with the library; what goes on after a drop; a broker that goes away.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from support.debezium import SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess, connected
from tidemill.cdcv2 import AvroCodec, ColumnRecovery, Message
from tidemill.cdcv2.untyped import from_json
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

SECONDS = 180.0
SCHEMA = arrow_schema(RelationDesc((Column("a", INT4), Column("b", TEXT))))

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def sql(server: ServerProcess, database: str) -> Any:
    with connected(server, database) as connection:
        yield connection


def run(c: Connection, statement: str) -> list[tuple[Any, ...]]:
    cursor = c.execute(statement.encode())
    return [] if cursor.description is None else cursor.fetchall()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def status(c: Connection, name: str) -> tuple[str, str | None]:
    ((state, error),) = run(
        c,
        "SELECT st.status, st.error FROM mz_internal.mz_sink_statuses st JOIN mz_sinks s ON s.id = st.id "
        "JOIN mz_schemas sc ON sc.id = s.schema_id JOIN mz_databases d ON d.id = sc.database_id "
        f"WHERE s.name = '{name}' AND d.name = current_database()",
    )
    return state, error


def read_avro(kafka: Kafka, topic: str, number: int, schema: pa.Schema = SCHEMA) -> Counter[Any]:
    """What the topic says now, complete times alone, accumulated."""
    codec = AvroCodec(schema, schema_id=number)
    recovery = ColumnRecovery(schema)
    found: Counter[Any] = Counter()
    for message in codec.decode([bytes(m.value() or b"") for m in kafka.read(topic)]):
        for updates, _ in recovery.push(message):
            for row, _, diff in updates.rows():
                found[row] += diff
    return Counter({row: n for row, n in found.items() if n})


def test_a_table_and_a_view_over_it(sql: Connection, kafka: Kafka, registry: SchemaRegistry) -> None:
    topic = f"sink-{time.time_ns()}"
    run(sql, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(sql, f"CREATE CONNECTION r TO CONFLUENT SCHEMA REGISTRY (URL '{registry.url}')")
    run(sql, "CREATE TABLE t (a int, b text)")
    run(sql, "CREATE MATERIALIZED VIEW v AS SELECT a, b FROM t WHERE a > 1")
    run(sql, "INSERT INTO t VALUES (1, 'x'), (2, 'y'), (2, 'y')")
    avro = "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION r ENVELOPE MATERIALIZE"
    run(sql, f"CREATE SINK s FROM t INTO KAFKA CONNECTION k (TOPIC '{topic}', PARTITION COUNT 1) {avro}")
    run(sql, f"CREATE SINK sv FROM v INTO KAFKA CONNECTION k (TOPIC '{topic}-v', PARTITION COUNT 1) {avro}")
    number = registry.register(f"{topic}-value", AvroCodec(SCHEMA).avro_schema)
    run(sql, "INSERT INTO t VALUES (3, NULL)")
    run(sql, "DELETE FROM t WHERE a = 1")
    run(sql, "UPDATE t SET b = 'z' WHERE a = 2")
    wanted = Counter({(2, "z"): 2, (3, None): 1})
    until(lambda: read_avro(kafka, topic, number) == wanted)
    until(lambda: read_avro(kafka, f"{topic}-v", number) == wanted)
    until(lambda: [status(sql, n) for n in ("s", "sv")] == [("running", None)] * 2)

    # What it has done is told.
    ((messages, updates, frontier, lag),) = run(
        sql,
        "SELECT messages_sent, updates_sent, frontier::text, extract(epoch FROM lag)::float8 "
        "FROM mz_internal.mz_sink_statistics st "
        "JOIN mz_sinks s ON s.id = st.id WHERE s.target = '" + topic + "'",
    )
    assert messages >= 5 and updates >= 6 and int(frontier) > 0 and 0 <= lag < SECONDS

    # A drop leaves the topic; another sink goes on with it only if it is told that it may.
    run(sql, "DROP SINK s")
    again = f"CREATE SINK s FROM t INTO KAFKA CONNECTION k (TOPIC '{topic}') {avro}"
    with pytest.raises(psycopg.Error, match="is not empty") as refused:
        run(sql, again)
    assert refused.value.sqlstate == "55000"
    # Nor then, if it would write something else than lies there.
    run(sql, "CREATE TABLE wide (a int, b text, c bigint)")
    for wrong, found in (
        (again.replace(avro, "FORMAT JSON ENVELOPE MATERIALIZE"), "is Avro"),
        (
            again.replace("FROM t", "FROM wide"),
            "has the columns a integer, b text. The sink writes Avro, with",
        ),
    ):
        with pytest.raises(psycopg.Error, match="holds something else than the sink would write") as refused:
            run(sql, f"{wrong} WITH (JOIN = true)")
        assert refused.value.sqlstate == "55000" and found in str(refused.value.diag.message_detail)
    run(sql, "INSERT INTO t VALUES (4, 'after')")
    run(sql, f"{again} WITH (JOIN = true)")
    wanted[(4, "after")] = 1
    until(lambda: read_avro(kafka, topic, number) == wanted)
    with pytest.raises(psycopg.Error, match="other objects depend on it"):
        run(sql, "DROP TABLE t")
    with pytest.raises(psycopg.Error, match="other objects depend on it"):
        run(sql, "DROP CONNECTION k")


def test_a_source_of_records(sql: Connection, kafka: Kafka) -> None:
    topic, out = kafka.create_topic(), f"sink-{time.time_ns()}"
    kafka.produce(topic, [("a", "1"), ("b", "2"), ("a", "3")])
    run(sql, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(
        sql,
        f"CREATE SOURCE src FROM KAFKA CONNECTION k (TOPIC '{topic}') "
        "KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT",
    )
    run(
        sql,
        f"CREATE SINK s FROM src INTO KAFKA CONNECTION k (TOPIC '{out}') FORMAT JSON ENVELOPE MATERIALIZE",
    )

    def rows() -> Counter[str]:
        from tidemill.cdcv2 import Recovery

        recovery, found = Recovery(), Counter[str]()
        said: list[Message] = [from_json(bytes(m.value() or b""), "") for m in kafka.read(out)]
        for message in said:
            for updates, _ in recovery.push(message):
                for data, _, diff in updates:
                    found[str(data)] += diff
        return Counter({row: n for row, n in found.items() if n})

    until(lambda: set(rows()) == {'{"key":"a","text":"3"}', '{"key":"b","text":"2"}'})
    kafka.produce(topic, [("b", None), ("c", "4")])
    until(lambda: set(rows()) == {'{"key":"a","text":"3"}', '{"key":"c","text":"4"}'})


def test_a_broker_that_goes_away_and_comes_back(sql: Connection, kafka: Kafka) -> None:
    out = f"sink-{time.time_ns()}"
    run(sql, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(sql, "CREATE TABLE t (a int)")
    into = f"INTO KAFKA CONNECTION k (TOPIC '{out}') FORMAT JSON ENVELOPE MATERIALIZE"
    run(sql, f"CREATE SINK s FROM t {into}")
    until(lambda: status(sql, "s")[0] == "running")
    kafka.kill()
    run(sql, "INSERT INTO t VALUES (1)")
    until(lambda: status(sql, "s")[0] == "stalled")
    assert "cannot be reached" in (status(sql, "s")[1] or "")
    with pytest.raises(psycopg.Error, match="cannot be reached"):
        run(
            sql,
            f"CREATE SINK other FROM t INTO KAFKA CONNECTION k (TOPIC '{out}-2') FORMAT JSON "
            "ENVELOPE MATERIALIZE",
        )
    run(sql, "INSERT INTO t VALUES (2)")
    kafka.start()
    until(lambda: status(sql, "s") == ("running", None))

    def texts() -> str:
        return " ".join(bytes(m.value() or b"").decode() for m in kafka.read(out))

    until(lambda: '"a":1' in texts() and '"a":2' in texts())
