"""CDCv2 from topics on a real server, broker and registry: both encodings, repeated, mixed up, an error."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from engine.asking import run, until
from support.debezium import SchemaRegistry
from support.kafka import Kafka, Record
from tidemill.cdcv2 import AvroCodec, JsonCodec, Progress, UpdateColumns

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def history(times: int) -> tuple[list[UpdateColumns | Progress], dict[tuple[int, str], int]]:
    """Everything twice, in any order; and the rows that it gives."""
    rng = Random(5)
    said: list[UpdateColumns | Progress] = []
    rows: dict[tuple[int, str], int] = {}
    for t in range(times):
        changed = {(rng.randrange(5), rng.choice("ab")): rng.choice([1, 2]) for _ in range(3)}
        data = [{"id": i, "name": n} for i, n in changed]
        batch = pa.RecordBatch.from_pylist(data, schema=SCHEMA)
        said += [UpdateColumns.of(batch, [t] * len(data), list(changed.values()))] * 2
        said += [Progress([t], [t + 1], [(t, len(data))])] * 2
        for row, diff in changed.items():
            rows[row] = rows.get(row, 0) + diff
    rng.shuffle(said)
    return said, rows


def test_topics_in_both_encodings(
    home: psycopg.Connection[Any], kafka: Kafka, registry: SchemaRegistry
) -> None:
    said, rows = history(30)
    avro, plain = kafka.create_topic(partitions=2), kafka.create_topic(partitions=2)
    codec = AvroCodec(SCHEMA)
    number = registry.register(f"{avro}-value", json.loads(codec.avro_schema))
    framed = AvroCodec(SCHEMA, schema_id=number)
    half = len(said) // 2

    def produce(messages: list[UpdateColumns | Progress]) -> None:
        for topic, encode in ((avro, framed.encode), (plain, JsonCodec(SCHEMA).encode)):
            records = [raw for m in messages for raw in encode(m)]
            kafka.produce(topic, [Record(None, raw, partition=n % 2) for n, raw in enumerate(records)])

    produce(said[:half])
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    run(home, f"CREATE CONNECTION r TO CONFLUENT SCHEMA REGISTRY (URL '{registry.url}')")
    form = "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION r ENVELOPE MATERIALIZE"
    run(home, f"CREATE SOURCE a FROM KAFKA CONNECTION k (TOPIC '{avro}') {form}")
    run(home, f"CREATE SOURCE raw FROM KAFKA CONNECTION k (TOPIC '{plain}')")
    table = f'CREATE TABLE j FROM SOURCE raw (REFERENCE "{plain}") FORMAT JSON ENVELOPE MATERIALIZE'
    run(home, table)
    produce(said[half:])

    def found(sql: str) -> dict[tuple[int, str], int]:
        return {(i, n): count for i, n, count in run(home, sql)}

    until(lambda: found("SELECT id, name, count(*) FROM a GROUP BY id, name"), rows)
    until(lambda: found("SELECT (data->>'id')::int, data->>'name', count(*) FROM j GROUP BY 1, 2"), rows)
    kafka.produce(avro, [Record(None, b"garbage", partition=1)])
    at = kafka.end(avro, 1) - 1

    def error() -> tuple[str | None, str | None]:
        try:
            run(home, "SELECT count(*) FROM a")
        except psycopg.Error as e:
            return e.diag.message_primary, e.diag.message_detail
        return None, None

    until(lambda: error()[0], "Decode error: not a message in Confluent's framing")
    assert error()[1] == f'In topic "{avro}", partition 1, offset {at}.'
    assert found("SELECT (data->>'id')::int, data->>'name', count(*) FROM j GROUP BY 1, 2") == rows
    for wrong, text in (
        ("FORMAT TEXT ENVELOPE MATERIALIZE", "requires that FORMAT is AVRO or JSON"),
        ("FORMAT AVRO ENVELOPE MATERIALIZE", "FORMAT AVRO needs USING"),
        ("FORMAT JSON INCLUDE OFFSET ENVELOPE MATERIALIZE", "INCLUDE is not possible"),
        ("KEY FORMAT TEXT VALUE FORMAT JSON ENVELOPE MATERIALIZE", "KEY FORMAT is not possible"),
    ):
        with pytest.raises(psycopg.Error, match=text):
            run(home, f"CREATE SOURCE z FROM KAFKA CONNECTION k (TOPIC '{avro}') {wrong}")
