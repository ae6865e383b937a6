"""ENVELOPE DEBEZIUM on a real server and broker: what breaks its constraints stops that source and no other.

The records are those of the captures (`tests/kafka/data`), so that no Debezium is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.asking import run, until
from support.kafka import Kafka

DATA = Path(__file__).parent.parent / "kafka" / "data"
FORMATS = "KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE DEBEZIUM"


def captured(name: str, topic: str) -> list[tuple[bytes | None, ...]]:
    records: list[tuple[bytes | None, ...]] = []
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        if record["topic"].endswith(topic):
            value = record["value"]
            told = None if value is None else json.dumps(value, separators=(",", ":")).encode()
            records.append((json.dumps(record["key"], separators=(",", ":")).encode(), told))
    return records


class Reader:
    def __init__(self, home: psycopg.Connection[Any], kafka: Kafka) -> None:
        self._home = home
        self._kafka = kafka
        self.topic = kafka.create_topic()
        run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")

    def create(self) -> None:
        run(self._home, f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{self.topic}') {FORMATS}")

    def produce(self, *names: str, table: str = "customers") -> None:
        for name in names:
            self._kafka.produce(self.topic, captured(name, table))

    def names(self) -> object:
        """The rows, or the first line of an error, its detail and its hint."""
        try:
            return run(self._home, "SELECT data->>'id', data->>'name' FROM s ORDER BY 1")
        except psycopg.Error as e:
            return e.diag.message_primary, e.diag.message_detail, e.diag.message_hint

    def status(self) -> object:
        return run(
            self._home,
            "SELECT status, error FROM mz_internal.mz_source_statuses WHERE name = 's'",
        )


@pytest.fixture
def reader(home: psycopg.Connection[Any], kafka: Kafka) -> Reader:
    return Reader(home, kafka)


def test_changes_of_a_capture_repeated(reader: Reader) -> None:
    reader.produce("pgf_a_snapshot", "pgf_b_crud", "pgf_c_pkupdate")
    reader.create()
    wanted = [("1", "Ann"), ("2", "Bob"), ("33", "Cy")]
    until(reader.names, wanted)
    # A connector that was killed: all since its last flush comes again.
    reader.produce("pgf_b_crud", "pgf_c_pkupdate", "pgf_i_interleaved", "pgf_c_pkupdate", "pgf_i_interleaved")
    until(reader.names, [*wanted, ("60", "T1-after-T2-commit"), ("70", "T2-first")])


def test_rows_without_before_stop_the_source_alone(
    reader: Reader, home: psycopg.Connection[Any], kafka: Kafka
) -> None:
    other = kafka.create_topic()
    run(home, f"CREATE SOURCE calm FROM KAFKA CONNECTION k (TOPIC '{other}') FORMAT TEXT")
    reader.produce("pgf_a_snapshot")
    reader.create()
    until(reader.names, [("1", "Ann"), ("2", "Bob"), ("3", "Cy")])
    reader.produce("pgd_b_crud")
    until(reader.status, [("stalled", "a change does not have the row before it")])
    found = reader.names()
    assert isinstance(found, tuple)
    assert found[0] == 'source "s" has failed: a change does not have the row before it'
    assert "REPLICA IDENTITY FULL" in str(found[2])
    kafka.produce(other, [(None, b"on")])
    until(lambda: run(home, "SELECT * FROM calm"), [("on",)])


def test_a_truncate_stops_the_source(reader: Reader) -> None:
    reader.produce("pgf_e_multirow", "pgf_g_truncate", table="bulk")
    reader.create()
    until(reader.status, [("stalled", "ENVELOPE DEBEZIUM cannot read a TRUNCATE")])


def test_a_change_of_a_row_that_is_not_there_is_an_error_of_reads(reader: Reader) -> None:
    """The topic was cut before it was read. Nothing crashes, and the row is named."""
    changes = captured("pgf_b_crud", "customers")
    reader._kafka.produce(reader.topic, changes[1:2])  # pyright: ignore[reportPrivateUsage]
    reader.create()

    def primary() -> object:
        found = reader.names()
        return found[0].partition(":")[0] if isinstance(found, tuple) else found

    until(primary, "Invalid data in source, saw retractions (1) for row that does not exist")


def test_a_compacted_topic_is_refused(home: psycopg.Connection[Any], kafka: Kafka) -> None:
    topic = kafka.create_topic(config={"cleanup.policy": "compact,delete"})
    run(home, f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
    statement = f"CREATE SOURCE s FROM KAFKA CONNECTION k (TOPIC '{topic}') {FORMATS}"
    with pytest.raises(psycopg.Error) as caught:
        run(home, statement)
    assert caught.value.diag.message_primary == f'topic "{topic}" is compacted'
    run(home, f"{statement} WITH (VALIDATE = false)")
