"""The statements about Kafka on a real server, broker and registry: sources that are read, connections and
secrets that change under them, and a broker that says nothing."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest

from engine.asking import run, until
from support.debezium import SchemaRegistry
from support.kafka import Kafka
from support.server import ServerProcess
from tidemill.dev.broker import PASSWORD, USER

WRONG = "wrong-hunter2"


def status(connection: psycopg.Connection[Any], name: str) -> tuple[str, str | None]:
    sql = (
        "SELECT st.status, st.error FROM mz_internal.mz_source_statuses st JOIN mz_sources s ON s.id = st.id"
    )
    sql += " JOIN mz_schemas sc ON sc.id = s.schema_id JOIN mz_databases d ON d.id = sc.database_id"
    ((state, error),) = run(connection, f"{sql} WHERE s.name = '{name}' AND d.name = current_database()")
    return state, error


def test_a_secured_broker_whose_password_changes(
    home: psycopg.Connection[Any], server: ServerProcess, kafka: Kafka
) -> None:
    secure = kafka.broker.secure
    assert secure is not None
    topic = kafka.create_topic()
    kafka.produce(topic, [("a", "1"), ("b", "2"), ("a", "3")])
    run(home, f"CREATE SECRET password AS '{WRONG}'")
    connection = (
        f"CREATE CONNECTION k TO KAFKA (BROKER '{secure.sasl}', SECURITY PROTOCOL SASL_PLAINTEXT, "
        f"SASL MECHANISMS 'SCRAM-SHA-512', SASL USERNAME '{USER}', SASL PASSWORD = SECRET password)"
    )
    with pytest.raises(psycopg.Error, match="does not accept the user or the password") as refused:
        run(home, connection)
    assert refused.value.sqlstate == "28P01"
    run(home, f"ALTER SECRET password AS '{PASSWORD}'")
    run(home, connection)
    upsert = f"(TOPIC '{topic}') KEY FORMAT TEXT VALUE FORMAT TEXT INCLUDE OFFSET ENVELOPE UPSERT"
    run(home, f"CREATE SOURCE s FROM KAFKA CONNECTION k {upsert}")
    assert run(home, 'SELECT key, text, "offset"::text FROM s ORDER BY 1') == [
        ("a", "3", "2"),
        ("b", "2", "1"),
    ]
    assert run(home, 'SELECT partition, "offset"::text FROM s_progress') == [(0, "3")]

    # Another address of the same broker, and then a secret that is wrong: it stalls, and comes back.
    run(
        home,
        f"ALTER CONNECTION k SET (BROKER '{kafka.bootstrap}'), RESET (SECURITY PROTOCOL, SASL MECHANISMS,"
        " SASL USERNAME, SASL PASSWORD)",
    )
    kafka.produce(topic, [("b", None), ("c", "4")])
    until(lambda: run(home, "SELECT key FROM s ORDER BY 1"), [("a",), ("c",)])
    run(home, f"ALTER SECRET password AS '{WRONG}'")
    run(
        home,
        f"ALTER CONNECTION k SET (BROKER '{secure.sasl}', SECURITY PROTOCOL SASL_PLAINTEXT, "
        f"SASL MECHANISMS 'SCRAM-SHA-512', SASL USERNAME '{USER}', SASL PASSWORD = SECRET password) "
        "WITH (VALIDATE = false)",
    )
    until(lambda: status(home, "s"), ("stalled", "the Kafka broker does not accept the user or the password"))
    kafka.produce(topic, [("d", "5")])
    run(home, f"ALTER SECRET password AS '{PASSWORD}'")
    until(lambda: run(home, "SELECT key FROM s ORDER BY 1"), [("a",), ("c",), ("d",)])
    until(lambda: status(home, "s"), ("running", None))

    # Nobody has heard of the passwords.
    (shown,) = run(home, "SHOW CREATE CONNECTION k")
    told = [server.log, str(shown), *(str(run(home, f"SELECT * FROM {r}")) for r in RELATIONS)]
    for word in (PASSWORD, WRONG):
        assert not any(word in text for text in told)
        assert {p.parent.name for p in holding(server.data_dir, word)} <= {"secrets"}
    (secret,) = holding(server.data_dir, PASSWORD)
    assert secret.stat().st_mode & 0o777 == 0o600
    run(home, "DROP SECRET password CASCADE")
    assert not secret.exists()
    assert run(home, "SHOW SOURCES") == []


def holding(folder: str, word: str) -> list[Path]:
    """The files that have it. Some go away while they are looked for: a server works there."""
    found: list[Path] = []
    for name, _, files in os.walk(folder):
        for path in (Path(name, file) for file in files):
            with contextlib.suppress(FileNotFoundError):
                found += [path] if word.encode() in path.read_bytes() else []
    return found


RELATIONS = ("mz_connections", "mz_secrets", "mz_kafka_connections", "mz_kafka_sources", "mz_sources")


def framed(schema_id: int, schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_several_tables_of_one_topic_with_a_registry(
    home: psycopg.Connection[Any], kafka: Kafka, registry: SchemaRegistry
) -> None:
    topic = kafka.create_topic(partitions=2)
    schema = {"type": "record", "name": "v", "fields": [{"name": "n", "type": "int"}]}
    number = registry.register(f"{topic}-value", schema)
    kafka.produce(
        topic, [(f"k{n % 3}", framed(number, schema, {"n": n}), None, None, n % 2) for n in range(6)]
    )
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(home, f"CREATE CONNECTION c TO CONFLUENT SCHEMA REGISTRY (URL '{registry.url}')")
    run(home, f"CREATE SOURCE raw FROM KAFKA CONNECTION k (TOPIC '{topic}', START OFFSET (1, 0))")
    avro = "AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c"
    run(home, f'CREATE TABLE every FROM SOURCE raw (REFERENCE "{topic}") FORMAT {avro} INCLUDE PARTITION')
    run(
        home,
        f'CREATE TABLE last (id, n) FROM SOURCE raw (REFERENCE "{topic}") '
        f"KEY FORMAT TEXT VALUE FORMAT {avro} ENVELOPE UPSERT",
    )
    assert run(home, "SELECT n, partition FROM every ORDER BY 1") == [(1, 1), (2, 0), (3, 1), (4, 0), (5, 1)]
    latest = run(home, "SELECT id, n FROM last ORDER BY 1")
    assert [key for key, _ in latest] == ["k0", "k1", "k2"] and {n for _, n in latest} <= {1, 2, 3, 4, 5}
    # A table that comes later has everything from the first record on.
    run(home, f'CREATE TABLE later FROM SOURCE raw (REFERENCE "{topic}") FORMAT BYTES INCLUDE OFFSET')
    until(lambda: run(home, "SELECT count(*) FROM later"), [(5,)])
    # One more registered schema changes no columns.
    wider = {**schema, "fields": [*schema["fields"], {"name": "extra", "type": "int", "default": 0}]}
    registry.register(f"{topic}-value", wider)
    (create,) = [row[1] for row in run(home, "SHOW CREATE TABLE every")]
    assert f"CONNECTION {home.info.dbname}.public.c INCLUDE PARTITION" in create
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="cannot drop connection c"):
        run(home, "DROP CONNECTION c")
    run(home, "DROP TABLE later")
    # What cannot be decoded as a row with its reason, and a key of several fields.
    run(
        home,
        f'CREATE TABLE told FROM SOURCE raw (REFERENCE "{topic}") KEY FORMAT REGEX '
        "'(?P<letter>.)(?P<digit>.)' VALUE FORMAT TEXT INCLUDE KEY AS k "
        "ENVELOPE UPSERT (VALUE DECODING ERRORS = (INLINE))",
    )
    told = "SELECT (k).letter, (k).digit, left((error).description, 22) FROM told ORDER BY (k).digit"
    until(lambda: run(home, told), [("k", f"{n}", "text deserialization e") for n in range(3)])
    run(home, "DROP TABLE told")
    run(home, "DROP CONNECTION c CASCADE")
    assert run(home, "SHOW TABLES") == []
    assert run(home, "SHOW SOURCES") == [("raw", "kafka", "k")]


def test_what_retention_took_is_an_error_of_the_table_that_lacks_it_alone(
    home: psycopg.Connection[Any], kafka: Kafka
) -> None:
    topic = kafka.create_topic(partitions=3)
    kafka.produce(topic, [(f"k{n}", f"v{n}", None, None, 1) for n in range(6)])
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(home, f"CREATE SOURCE raw FROM KAFKA CONNECTION k (TOPIC '{topic}')")
    made = f'FROM SOURCE raw (REFERENCE "{topic}")'
    run(home, f"CREATE TABLE early {made} FORMAT TEXT")
    until(lambda: run(home, "SELECT count(*) FROM early"), [(6,)])
    # Partitions have their rows before they have records.
    progress = 'SELECT partition, "offset"::text FROM raw_progress ORDER BY 1'
    assert run(home, progress) == [(0, "0"), (1, "6"), (2, "0")]

    kafka.delete_records(topic, {1: 4})
    run(home, f"CREATE TABLE late {made} FORMAT TEXT")
    run(home, f"CREATE TABLE keyed {made} KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT")
    text = (
        f'Source error: the table cannot begin where its source does: partition 1 of topic "{topic}" does '
        "not have the records that are to be read"
    )
    for table in ("late", "keyed"):
        with pytest.raises(psycopg.Error) as missing:
            run(home, f"SELECT * FROM {table}")
        assert str(missing.value).startswith(text), missing.value
        assert "It has those from 4 up to 6" in str(missing.value)
    kafka.produce(topic, [("k0", "w", None, None, partition) for partition in range(3)])
    until(lambda: run(home, "SELECT count(*) FROM early"), [(9,)])
    assert run(home, progress) == [(0, "1"), (1, "7"), (2, "1")]
    assert status(home, "raw") == ("running", None)
    for table in ("late", "keyed"):
        with pytest.raises(psycopg.Error, match="cannot begin where its source does"):
            run(home, f"SELECT * FROM {table}")
        run(home, f"DROP TABLE {table}")


def test_a_broker_that_says_nothing_keeps_nobody_waiting(
    home: psycopg.Connection[Any], server: ServerProcess
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{address}') WITH (VALIDATE = false)")
        run(home, "SET statement_timeout = '1s'")
        for sql in (
            f"CREATE CONNECTION l TO KAFKA (BROKER '{address}')",
            "CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC 't') FORMAT TEXT",
            f"CREATE CONNECTION c TO CONFLUENT SCHEMA REGISTRY (URL 'http://{address}')",
        ):
            with pytest.raises(psycopg.errors.QueryCanceled):
                run(home, sql)
            with psycopg.connect(server.sql_dsn, autocommit=True) as other:
                assert run(other, "SELECT 1") == [(1,)]
        run(home, "RESET statement_timeout")
        with pytest.raises(psycopg.Error, match="cannot be reached") as late:
            run(home, "CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC 't') FORMAT TEXT")
        assert late.value.sqlstate == "08001"
        assert run(home, "SHOW SOURCES") == [] and run(home, "SHOW CONNECTIONS") == [("k", "kafka")]


def test_secrets_need_a_place(tmp_path: Path) -> None:
    """With the folder of one's choice they are there, below the data directory's own id."""
    server = ServerProcess(tmp_path / "data", args=("--secrets-dir", str(tmp_path / "hidden")))
    server.spark = False
    try:
        for life in range(2):
            server.start()
            with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
                run(connection, f"CREATE SECRET s{life} AS 'text {life}'")
                run(connection, "CREATE SECRET IF NOT EXISTS s0 AS 'never'")
            server.kill9()
        assert not os.path.exists(tmp_path / "data" / "secrets")
        (folder,) = (tmp_path / "hidden").iterdir()
        assert sorted(p.read_text() for p in folder.iterdir()) == ["text 0", "text 1"]
    finally:
        server.close()
