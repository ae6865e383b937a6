"""Sinks with ENVELOPE UPSERT and DEBEZIUM of a real server into a real broker, with a real registry: what the
page shows runs, and what cannot be is an error of the statement.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.debezium import SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess, connected
from tidemill.sources.kafka.metadata import Admin

SECONDS = 180.0
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


def connections(c: Connection, kafka: Kafka, registry: SchemaRegistry) -> str:
    run(c, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(c, f"CREATE CONNECTION r TO CONFLUENT SCHEMA REGISTRY (URL '{registry.url}')")
    return f"keyed-{time.time_ns()}"


def test_the_statements_of_the_page_run(sql: Connection, kafka: Kafka, registry: SchemaRegistry) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "sql" / "create-sink-rows.md").read_text()
    (block,) = re.findall(r"```sql no-test\n(.*?)```", page, re.DOTALL)
    topic = f"keyed-{time.time_ns()}"
    for word, ours in (
        ("localhost:9092", kafka.bootstrap),
        ("http://localhost:8081", registry.url),
        ("TOPIC 'orders'", f"TOPIC '{topic}'"),
    ):
        assert word in block
        block = block.replace(word, ours)
    for statement in block.split(";\n"):
        run(sql, statement)
    run(sql, "INSERT INTO orders VALUES (1, 'apple', 0.50)")
    run(sql, "DELETE FROM orders")

    partitions = Admin({"brokers": [kafka.bootstrap]}).identity(topic, SECONDS).partitions

    def said() -> list[tuple[bool, list[str]]]:
        return [
            (m.value() is None, [name for name, _ in m.headers() or []])
            for partition in partitions
            for m in kafka.read(topic, partition)
        ]

    until(lambda: said() == [(gone, ["tidemill-timestamp"]) for gone in (False, True)])
    run(sql, "INSERT INTO orders VALUES (2, 'pear', 1.25)")
    until(lambda: run(sql, "SELECT * FROM orders_in") == [(2, 2, "pear", Decimal("1.25"))])
    run(sql, "DROP SINK orders_out")


def refused(c: Connection, statement: str) -> tuple[str | None, str | None]:
    with pytest.raises(psycopg.Error) as caught:
        run(c, statement)
    return caught.value.sqlstate, caught.value.diag.message_primary


def test_what_create_refuses(sql: Connection, kafka: Kafka, registry: SchemaRegistry) -> None:
    topic = connections(sql, kafka, registry)
    run(sql, 'CREATE TABLE t (a int NOT NULL, b text, "c d" int)')
    run(sql, "CREATE MATERIALIZED VIEW v AS SELECT a, b FROM t")
    avro = "AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION r"

    def create(key: str, form: str, envelope: str, more: str = "", of: str = "v", into: str = topic) -> str:
        return (
            f"CREATE SINK s FROM {of} INTO KAFKA CONNECTION k (TOPIC '{into}') {key} FORMAT {form} "
            f"ENVELOPE {envelope} {more}"
        )

    needs = "FORMAT AVRO of a Kafka sink needs a schema registry"
    files = "CREATE SINK s FROM v INTO FILES 'x' KEY (a) FORMAT JSON ENVELOPE UPSERT"
    for statement, code, said in (
        (create("", "JSON", "UPSERT"), "42601", "ENVELOPE UPSERT of a sink needs a KEY"),
        (create("KEY (a)", "JSON", "MATERIALIZE"), "42601", "ENVELOPE MATERIALIZE has no KEY"),
        (create("KEY (z)", "JSON", "UPSERT"), "42703", 'column "z" of the key does not exist'),
        (create("KEY (a, a)", "JSON", "UPSERT"), "42701", 'column "a" appears twice in the key'),
        (create("KEY (a)", "AVRO", "UPSERT"), "42601", needs),
        (create("KEY (a)", avro, "UPSERT", of="t"), "42602", '"c d" is no name of a field in Avro'),
        (create("KEY (a)", "JSON", "UPSERT", "WITH (JOIN)"), "42601", "ENVELOPE UPSERT has no option JOIN"),
        (
            create("KEY (a)", "JSON", "DEBEZIUM", "WITH (SHARE 0 OF 2)"),
            "42601",
            "ENVELOPE DEBEZIUM has no option SHARE",
        ),
        (files, "0A000", "ENVELOPE UPSERT is not supported by a sink into files"),
    ):
        assert refused(sql, statement) == (code, said)
    full = kafka.create_topic()
    kafka.produce(full, [("a", "1")])
    assert refused(sql, create("KEY (a)", "JSON", "UPSERT", into=full)) == (
        "55000",
        f'topic "{full}" is not empty',
    )
    short = kafka.create_topic(config={"retention.ms": "60000"})
    assert refused(sql, create("KEY (a)", "JSON", "UPSERT", into=short)) == (
        "55000",
        f'topic "{short}" forgets messages',
    )
    # Of a topic that is there already, the schemas must fit.
    registry.register(
        f"{topic}-value", {"type": "record", "name": "Value", "fields": [{"name": "a", "type": "string"}]}
    )
    registry.request("PUT", f"/config/{topic}-value", {"compatibility": "BACKWARD"})
    code, said = refused(sql, create("KEY (a)", avro, "UPSERT"))
    assert code == "58000" and said is not None and "does not take the schema" in said
    run(sql, create("KEY (a, b) NOT ENFORCED", "JSON", "UPSERT"))
    assert refused(sql, create("KEY (a)", "JSON", "UPSERT").replace("SINK s", "SINK s2")) == (
        "42710", 'sink "s" writes to the same topic',
    )  # fmt: skip
    admin = Admin({"brokers": [kafka.bootstrap]})
    for name in (topic, f"{topic}-tidemill-progress"):
        assert admin.compacted(name, SECONDS)
    run(sql, "INSERT INTO t VALUES (1, 'x', 2)")
    until(lambda: [json.loads(m.value() or b"") for m in kafka.read(topic)] == [{"a": 1, "b": "x"}])
    run(sql, "DROP SINK s")
