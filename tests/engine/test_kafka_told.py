"""What a server tells of the Kafka sources that it reads: which offset became visible when, what was read and
what is left, and what became of brokers and topics."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.kafka import Kafka, Record
from support.server import ServerProcess


@pytest.fixture
def connected(home: psycopg.Connection[Any], kafka: Kafka) -> psycopg.Connection[Any]:
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    return home


def asked(connection: psycopg.Connection[Any], what: str, relation: str, source: str) -> list[Any]:
    """Of a source of this database."""
    sql = f"SELECT {what} FROM mz_internal.{relation} x JOIN mz_sources s ON s.id = x.id"
    sql += " JOIN mz_schemas c ON c.id = s.schema_id JOIN mz_databases d ON d.id = c.database_id"
    (row,) = run(connection, f"{sql} WHERE s.name = '{source}' AND d.name = current_database()")
    return [*row]


def status(connection: psycopg.Connection[Any], source: str) -> list[Any]:
    return asked(connection, "x.status, x.error", "mz_source_statuses", source)


def test_which_offset_became_visible_when(connected: psycopg.Connection[Any], kafka: Kafka) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Record(b"k", b"%d" % n, None, None, n % 2) for n in range(6)])
    run(
        connected,
        f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{topic}') FORMAT TEXT INCLUDE OFFSET, PARTITION "
        "WITH (TIMESTAMP INTERVAL '200ms')",
    )
    until(lambda: run(connected, "SELECT count(*) FROM s"), [(6,)])
    kafka.transaction(topic, [Record(b"k", b"taken back", None, None, 1)] * 5, commit=False)
    kafka.produce(topic, [Record(b"k", b"late", None, None, 1)])
    # Three that are there, five that were taken back, and the mark that says so.
    found = [("late", "9", 1)]
    until(
        lambda: run(connected, "SELECT text, \"offset\"::text, partition FROM s WHERE text = 'late'"), found
    )
    sql = "SELECT min(b.mz_timestamp)::text FROM mz_internal.mz_source_bindings b "
    sql += "JOIN mz_source_progresses p ON p.source_id = b.source_id JOIN mz_objects o ON o.id = p.id "
    sql += "JOIN mz_schemas c ON c.id = o.schema_id JOIN mz_databases d ON d.id = c.database_id "
    sql += "WHERE p.name = 's_progress' AND d.name = current_database() AND b.partition = '1' AND b.value > 9"
    ((seen,),) = run(connected, sql)
    late = "SELECT text FROM s WHERE text = 'late' AS OF {}"
    progress = 'SELECT partition, "offset"::text FROM s_progress ORDER BY 1 AS OF {}'
    assert run(connected, late.format(seen)) == [("late",)]
    assert run(connected, progress.format(seen)) == [(0, "3"), (1, "10")]
    # Nobody saw it before.
    assert run(connected, late.format(int(seen) - 1)) == []
    ((_, earlier), (_, offset)) = run(connected, progress.format(int(seen) - 1))
    assert earlier == "3" and int(offset) <= 9


def test_what_is_to_be_read_is_counted_from_where_reading_begins(
    connected: psycopg.Connection[Any], kafka: Kafka
) -> None:
    topic = kafka.create_topic(partitions=2)
    kafka.produce(topic, [Record(b"k", b"value", None, None, n % 2) for n in range(40)])
    kafka.delete_records(topic, {0: 15})
    run(
        connected,
        f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{topic}', START OFFSET (0, 8)) FORMAT TEXT",
    )
    until(lambda: run(connected, "SELECT count(*) FROM s"), [(17,)])
    what = "updates_committed, offset_known::text, offset_committed::text, snapshot_records_known, "
    what += "snapshot_records_staged"
    counted = what
    # They are told a moment after the rows.
    until(lambda: asked(connected, counted, "mz_source_statistics", "s"), [17, "40", "40", 17, 17])
    # What was read twice, because an attempt failed, counts twice.
    what = "messages_received, bytes_received, updates_staged"
    messages, size, staged = asked(connected, what, "mz_source_statistics", "s")
    assert messages >= 17 and size == messages * len(b"kvalue") and staged >= 17
    until(lambda: asked(connected, "rehydration_latency > '0 s'", "mz_source_statistics", "s"), [True])
    until(lambda: asked(connected, "status, error", "mz_source_statuses", "s"), ["running", None])


def test_the_state_by_key_is_counted(connected: psycopg.Connection[Any], kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k%d" % (n % 20), b"value") for n in range(100)])
    made = f"FROM KAFKA CONNECTION k (TOPIC '{topic}')"
    run(connected, f"CREATE SOURCE keyed {made} KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT")
    run(connected, f"CREATE SOURCE plain {made} FORMAT TEXT")
    what = "records_indexed, bytes_indexed > 0"
    until(lambda: asked(connected, what, "mz_source_statistics", "keyed"), [20, True])
    kafka.produce(topic, [*((b"k%d" % n, None) for n in range(8)), (b"k9", b"other"), (b"k20", b"new")])
    until(lambda: asked(connected, what, "mz_source_statistics", "keyed"), [13, True])
    assert asked(connected, what, "mz_source_statistics", "plain") == [None, None]


def test_topics_that_are_not_what_was_read(connected: psycopg.Connection[Any], kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [(b"k", b"v")] * 8)
    kafka.delete_records(topic, {0: 5})
    made = f"FROM KAFKA CONNECTION k (TOPIC '{topic}'"
    run(connected, f"CREATE SOURCE late {made}, START OFFSET (2)) FORMAT TEXT WITH (VALIDATE = false)")
    run(connected, f"CREATE SOURCE good {made}) FORMAT TEXT")
    until(lambda: run(connected, "SELECT count(*) FROM good"), [(3,)])
    lacks = f'partition 0 of topic "{topic}" does not have the records that are to be read'
    until(lambda: status(connected, "late"), ["stalled", lacks])
    (details,) = asked(connected, "x.details", "mz_source_statuses", "late")
    assert "Those from 2 up to 8" in details["detail"] and "from 5 up to 8" in details["detail"]
    assert details["hint"]

    kafka.delete_topic(topic)
    until(lambda: status(connected, "good"), ["stalled", f'topic "{topic}" does not exist any more'])
    kafka.create_topic(topic)
    until(lambda: status(connected, "good"), ["stalled", f'topic "{topic}" was deleted and created anew'])
    # Nobody waits for what cannot come; with the text, detail and hint of the status.
    with pytest.raises(psycopg.errors.SystemError) as e:
        run(connected, "SELECT count(*) FROM good")
    assert (
        e.value.diag.message_primary
        == f'source "good" has failed: topic "{topic}" was deleted and created anew'
    )
    assert "The source reads the topic with the id" in str(e.value.diag.message_detail)
    assert "Drop the source and create it again" in str(e.value.diag.message_hint)
    for sql in ("SUBSCRIBE TO good", "SELECT * FROM good_progress"):
        with pytest.raises(psycopg.errors.SystemError, match="was deleted and created anew"):
            run(connected, sql)
    with pytest.raises(psycopg.errors.SnapshotTooOld, match='source "late" has failed: partition 0 of topic'):
        run(connected, "SELECT count(*) FROM late")
    # What was read stays.
    run(connected, "SET transaction_isolation = 'serializable'")
    assert run(connected, "SELECT text FROM good") == [("v",)] * 3


def test_a_broker_that_is_away_is_waited_for(
    connected: psycopg.Connection[Any], server: ServerProcess, kafka: Kafka
) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [("a", "1"), ("b", "2")])
    run(
        connected,
        f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{topic}') "
        "KEY FORMAT TEXT VALUE FORMAT TEXT ENVELOPE UPSERT",
    )
    run(connected, "CREATE SOURCE calm FROM LOAD GENERATOR COUNTER (TICK INTERVAL '100ms')")
    rows = "SELECT key, text FROM s ORDER BY 1"
    until(lambda: run(connected, rows), [("a", "1"), ("b", "2")])
    kafka.kill()
    away = f"the Kafka brokers cannot be reached: {kafka.bootstrap}"
    until(lambda: status(connected, "s"), ["stalled", away])
    ((before,),) = run(connected, "SELECT count(*) FROM calm")
    until(lambda: run(connected, f"SELECT count(*) > {before} FROM calm"), [(True,)])
    assert status(connected, "calm") == ["running", None]
    kafka.start()
    kafka.produce(topic, [("a", None), ("c", "3")])
    until(lambda: run(connected, rows), [("b", "2"), ("c", "3")])
    until(lambda: status(connected, "s"), ["running", None])
