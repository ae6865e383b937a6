"""Messages that cannot be read, on a real server and broker: put aside with ON ERROR DEAD LETTER, an error of
the relation without; told of in the status, and listed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.kafka import Kafka


@pytest.fixture
def connected(home: psycopg.Connection[Any], kafka: Kafka) -> psycopg.Connection[Any]:
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    return home


def test_bad_messages_are_put_aside(connected: psycopg.Connection[Any], kafka: Kafka) -> None:
    topic = kafka.create_topic()
    kafka.produce(topic, [("a", '{"n": 1}'), ("a", '{"n": '), ("b", '{"n": 2}'), (None, "{}"), ("c", "x")])
    made = f"FROM KAFKA CONNECTION k (TOPIC '{topic}')"
    run(connected, f"CREATE SOURCE plain {made} FORMAT JSON INCLUDE OFFSET ON ERROR DEAD LETTER INTO bad")
    run(connected, f"CREATE SOURCE raw {made}")
    table = f'FROM SOURCE raw (REFERENCE "{topic}") KEY FORMAT TEXT VALUE FORMAT JSON ENVELOPE UPSERT'
    run(connected, f"CREATE TABLE latest {table} ON ERROR DEAD LETTER")
    run(connected, f"CREATE TABLE strict {table}")
    rows = "SELECT (data->>'n')::int FROM plain ORDER BY \"offset\""
    until(lambda: run(connected, rows), [(1,), (2,), (None,)])
    letters = 'SELECT partition, "offset"::int, key, value FROM {} ORDER BY 2'
    assert run(connected, letters.format("bad")) == [(0, 1, b"a", b'{"n": '), (0, 4, b"c", b"x")]
    ((error, stamped),) = run(
        connected, "SELECT error, \"timestamp\" > now() - INTERVAL '1 day' FROM bad LIMIT 1"
    )
    assert error.startswith("Decode error: ") and stamped
    # As if it had not been written: the key keeps the row that it had.
    keyed = "SELECT key, (data->>'n')::int FROM latest ORDER BY 1"
    until(lambda: run(connected, keyed), [("a", 1), ("b", 2)])
    aside = [(0, 1, b"a", b'{"n": '), (0, 3, None, b"{}"), (0, 4, b"c", b"x")]
    assert run(connected, letters.format("latest_dead_letters")) == aside
    with pytest.raises(psycopg.errors.DataException, match="Envelope error: Upsert: "):
        run(connected, "SELECT count(*) FROM strict")
    # The status tells of the one that cannot be read, and a relation lists why.
    told = "SELECT status, error, (details->>'errors')::int, (details->>'dead_letters')::int, "
    told += (
        "details->>'detail' FROM mz_internal.mz_source_statuses WHERE name = '{}' AND id IN (SELECT id FROM "
    )
    told += "mz_objects WHERE schema_id IN (SELECT id FROM mz_schemas WHERE database_id = (SELECT id FROM "
    told += "mz_databases WHERE name = current_database())))"
    ((status, error, errors, letters_told, detail),) = run(connected, told.format("strict"))
    assert (status, errors, letters_told) == ("running", 3, None)
    assert error.startswith("Envelope error: Upsert: ") and topic in detail
    assert [row[:4] for row in run(connected, told.format("plain"))] == [("running", None, None, 2)]
    listed = 'SELECT partition, "offset"::int, error, detail FROM mz_internal.mz_source_errors '
    listed += (
        f"WHERE detail LIKE '%{topic}%' AND name = 'strict' AND mz_timestamp > 0 AND count = 1 ORDER BY 2"
    )
    found = run(connected, listed)
    assert [row[:2] for row in found] == [("0", 1), ("0", 3), ("0", 4)]
    assert all(row[2].startswith("Envelope error: Upsert: ") for row in found)
    # Both at one time, and what is put aside stays.
    kafka.produce(topic, [("a", '{"n": 3}'), ("a", "y")])
    until(lambda: run(connected, keyed), [("a", 3), ("b", 2)])
    assert run(connected, letters.format("latest_dead_letters"))[-1] == (0, 6, b"a", b"y")
    run(connected, "DROP TABLE latest")
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(connected, "SELECT * FROM latest_dead_letters")
    until(lambda: run(connected, "SELECT count(*) FROM bad"), [(3,)])
