"""Sinks with ENVELOPE UPSERT and DEBEZIUM of a real server into a real broker, with a real registry: what is
written is read back by sources of the same server, and is equal; what cannot be is an error of the statement.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.debezium import SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess, connected
from tidemill.sources.kafka.metadata import Admin

SECONDS = 180.0
TYPES = {
    "b": ("bool", "true"),
    "i2": ("int2", "-7"),
    "i4": ("int", "2147483647"),
    "i8": ("int8", "-9223372036854775808"),
    "r": ("real", "1.5"),
    "d": ("double precision", "'-Infinity'"),
    "n": ("numeric(20, 4)", "-12345678.9012"),
    "t": ("text", "e'a\"b\\\\c\\nü'"),
    "y": ("bytea", "'\\x00ff'"),
    "da": ("date", "'infinity'"),
    "ti": ("time", "'24:00:00'"),
    "ts": ("timestamp", "'0044-03-15 12:00:00.5 BC'"),
    "tz": ("timestamptz", "'2026-11-19 01:02:03.000004+05:30'"),
    "u": ("uuid", "'00112233-4455-6677-8899-aabbccddeeff'"),
    "j": ("jsonb", '\'{"a": [1, 2.50, null], "b": "\\"x"}\''),
    "m": ("map[text=>int]", "'{a=>1,b=>NULL}'"),
    "li": ("text list", "'{x,NULL}'"),
}
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


def test_rows_of_all_types_come_back(sql: Connection, kafka: Kafka, registry: SchemaRegistry) -> None:
    topic = connections(sql, kafka, registry)
    names = ", ".join(TYPES)
    run(sql, f"CREATE TABLE t (k int NOT NULL, {', '.join(f'{n} {t}' for n, (t, _) in TYPES.items())})")
    values = ", ".join(v for _, v in TYPES.values())
    run(sql, f"INSERT INTO t VALUES (1, {values}), (2{', NULL' * len(TYPES)})")
    into = f"INTO KAFKA CONNECTION k (TOPIC '{topic}-%s', PARTITION COUNT 2) KEY (k) FORMAT"
    avro = "AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION r"
    run(sql, f"CREATE SINK su FROM t {into % 'u'} {avro} ENVELOPE UPSERT")
    run(sql, f"CREATE SINK sd FROM t {into % 'd'} {avro} ENVELOPE DEBEZIUM")
    run(sql, f"CREATE SINK sj FROM t {into % 'j'} JSON ENVELOPE UPSERT")
    for name, envelope in (("u", "INCLUDE KEY AS id ENVELOPE UPSERT"), ("d", "ENVELOPE DEBEZIUM UPSERT")):
        run(
            sql,
            f"CREATE SOURCE {name} FROM KAFKA CONNECTION k (TOPIC '{topic}-{name}') FORMAT {avro} {envelope}",
        )
    run(
        sql,
        f"CREATE SOURCE j FROM KAFKA CONNECTION k (TOPIC '{topic}-j') "
        "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE UPSERT",
    )

    def equal() -> bool:
        wanted = run(sql, f"SELECT k, {names} FROM t ORDER BY k")
        mine = [run(sql, f"SELECT k, {names} FROM {s} ORDER BY k") for s in ("u", "d")]
        theirs = run(sql, "SELECT key->>'k', data->>'t', data->'j' FROM j ORDER BY 1")
        texts = run(sql, "SELECT k::text, t, j FROM t ORDER BY 1")
        return mine == [wanted] * 2 and theirs == texts

    until(equal)
    # Types that come back as they went, where Avro has them.
    for name in ("d", "n", "da", "ti", "ts", "tz", "u", "j"):
        ((one, other),) = run(
            sql,
            f"SELECT pg_typeof(t.{name})::text, pg_typeof(s.{name})::text "
            "FROM t, u s WHERE t.k = 1 AND s.k = 1",
        )
        assert one == other
    run(sql, "UPDATE t SET t = 'new', n = 1 WHERE k = 1")
    run(sql, "DELETE FROM t WHERE k = 2")
    run(sql, "INSERT INTO t (k, t) VALUES (3, 'x')")
    until(equal)
    run(sql, "INSERT INTO t (k, t) VALUES (2, 'again')")
    until(equal)
    assert len(run(sql, "SELECT k FROM u")) == 3

    rows = run(
        sql,
        "SELECT s.name, s.envelope_type, st.status, n.updates_sent > 0, n.statements_sent > 0, "
        "n.frontier::text::int8 > 0 "
        "FROM mz_sinks s JOIN mz_internal.mz_sink_statuses st ON st.id = s.id "
        "JOIN mz_internal.mz_sink_statistics n ON n.id = s.id "
        f"WHERE s.target LIKE '{topic}%' ORDER BY 1",
    )
    assert rows == [(n, e, "running", True, True, True) for n, e in (
        ("sd", "debezium"), ("sj", "upsert"), ("su", "upsert"))]  # fmt: skip
    ((_, shown),) = run(sql, "SHOW CREATE SINK su")
    assert "KEY (k) FORMAT AVRO" in shown and "ENVELOPE UPSERT" in shown

    # Two rows with one key end the stream, and the error says which.
    run(sql, "INSERT INTO t (k, t) VALUES (3, 'y')")
    status = (
        "SELECT error, details->>'detail' FROM mz_internal.mz_sink_statuses st "
        "JOIN mz_sinks s ON s.id = st.id "
        f"WHERE s.target = '{topic}-u' AND st.status = 'stalled'"
    )
    until(lambda: bool(run(sql, status)))
    ((error, detail),) = run(sql, status)
    assert error == "two rows have one key of the sink" and detail.startswith(
        "Key (k)=(3) has more than one row"
    )
    for name in ("su", "sd", "sj"):
        run(sql, f"DROP SINK {name}")


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
