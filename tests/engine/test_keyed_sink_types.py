"""What keyed sinks of a real server write is read back by its sources, and is equal, for all types."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from support.debezium import SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess, connected

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
    # As text: drivers have no infinite dates. (Lists and maps come as text anyway.)
    names = ", ".join(n if n in ("m", "li") else f"{n}::text" for n in TYPES)
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
